"""Step Gymnasium envs one after another and write what they return into arrays.

``Stepper`` resets and steps the envs of one process: the trainer (backend serial) or a worker (process and worker).

For each env, a step calls ``env.step``, checks the returned values and copies them into the env's row of the arrays. If
the episode ended, the same step resets the env for its next episode (Gymnasium's ``AutoresetMode.SAME_STEP``). An env
may mask its actions in two ways: with a method ``action_masks()``, or with ``info["action_mask"]``.

A position is a point in an episode, with the data to reach it again: the seed and options of the reset and the actions
since then; or, for envs that have ``get_state``, a state that was read during the episode and the actions since then.
The replay log keeps these data for each env. If an env raises an exception, the stepper makes a new env with the env
factory, restores it to the position before the exception, and repeats the failed call. An episode that still cannot be
continued is truncated, one that cannot begin is skipped.

An exception ends the run, as an ``EnvFault``, if recovery is switched off (``StepperOptions.recover``), or if these
envs have never completed a step (not before a restart or a resume either): they are then probably set up wrongly. It
also ends the run if three episodes in a row of one env had to be truncated or skipped because of exceptions
(``vec/episode_ledger``), or if a step or a reset raised too often; ``_retry_step`` and ``_begin_episode`` have the
details. Invalid data (NaN, a wrong shape) in a step or reset always ends the run, as ``InvalidEnvData``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from corral.core.errors import EnvFault, EnvLocation
from corral.core.types import LIFE_LOST, InfoSums
from corral.envs import lifecycle
from corral.envs.lifecycle import ENV_EXCEPTIONS, FLAG_TYPES, close_env, describe_error, unwrap_scalar
from corral.envs.opponent_protocol import OPPONENT, opponent_number
from corral.vec.api import EnvReport, InfoRow, OpponentSampler, StepArrays
from corral.vec.episode_ledger import EpisodeLedger, add_numbers
from corral.vec.replay_log import EnvPosition, ReplayLog
from corral.vec.restorable_envs import MAX_ATTEMPTS, RestorableEnvs
from corral.vec.stepper_options import StepperOptions
from corral.vec.validation import MASK, InvalidRow, RowWriter, describe_value, public_info

__all__ = ["CURRENT_ENV", "OTHER_CALLS", "STEPS_STARTED", "Stepper"]

Env = gym.Env[Any, Any]
CURRENT_ENV, STEPS_STARTED, OTHER_CALLS = 0, 1, 2
"""Indices into ``Stepper.heartbeat``: the env in use, how many steps were started, and how many other calls (resets,
replayed steps, reading of states). A parent process watches these numbers to detect that its worker hangs."""
_MAX_STEP_ATTEMPTS = 3
"""Limit on the calls of ``env.step`` for one step, the first included. There are fewer attempts if two in a row raise
the same type of exception."""
_STATE_WAIT_FACTOR = 100
"""``get_state`` may be slow. If it took ``x`` seconds for all envs, the next calls follow at the earliest ``100 x``
seconds after these began, unless an episode's log is nearly full."""


class Stepper:
    """Steps a list of envs, and writes what env ``i`` of the list returns into row ``i`` of ``arrays``.

    Observations and actions of nested spaces are stored flat: ``arrays.observations`` and ``arrays.actions`` are
    dictionaries with one array, called a leaf, for each path in the space.
    """

    def __init__(self, envs: Sequence[Env], arrays: StepArrays, options: StepperOptions) -> None:
        self.arrays = arrays
        self.first_env = options.first_env
        """The index in the whole run of env 0 of this stepper; workers hold consecutive envs of the run."""
        self.info_mode = options.infos
        """``full``: ``reset`` and ``step`` return infos; ``summed``: ``take_report`` returns sums of their numbers."""
        self.opponent_sampler: OpponentSampler | None = None
        """Chooses the opponent (a player inside the env) of each new episode; None: the env chooses it, if any."""
        self.heartbeat: Any = [0, 0, 0] if options.heartbeat is None else options.heartbeat
        self.row_writer = RowWriter(envs[0].observation_space, envs[0].action_space, arrays)
        self._restorable = RestorableEnvs(
            envs,
            self.row_writer,
            factory=options.factory if options.recover else None,  # without a factory, envs are not replaced
            first_env=options.first_env,
            globals_seed=options.seed if options.seed_globals else None,  # for Python's and numpy's global generators
        )
        self.envs = self._restorable.envs  # the same lists as there, so they change when an env is replaced
        self._mask_methods = self._restorable.action_mask_methods
        # Copies with few checks. After a ``ValueError``, ``write_observation`` raises ``InvalidRow`` with the reason.
        self._copy_observation = self.row_writer.copy_observation
        self._read_action = self.row_writer.codec.layout.reader(arrays.actions)
        self._next_state_time = 0.0  # when states may be read again, on the clock of ``time.perf_counter``
        self._replay_log = ReplayLog(arrays.actions, options.first_env, options.seed)
        # Keeps the steps of each episode, counts of faults, and the indices of envs that could not be restored.
        self._ledger = EpisodeLedger(arrays, steps=[0] * len(envs), options=options)
        self._info_sums: list[dict[str, InfoSums]] = [{} for _ in envs]  # by env; filled in mode ``summed``

    @property
    def has_masks(self) -> bool | None:
        """Whether the envs mask their actions; None before the first reset."""
        return self.row_writer.has_masks

    def reset(
        self,
        seeds: Sequence[int | None],
        options: Sequence[dict[str, Any] | None],
        reset_mask: Sequence[bool] | None = None,
    ) -> list[InfoRow]:
        """Begin a new episode in every env, or in the envs where ``reset_mask`` [N] is true, and return the infos.

        Where ``seeds`` has None, the seed follows from ``StepperOptions.seed`` and the indices of env and episode;
        if that option is None too, the episode has no seed.
        """
        rows: list[InfoRow] = []
        for i in range(len(self.envs)) if reset_mask is None else itertools.compress(itertools.count(), reset_mask):
            self._ledger.unrestored_envs.discard(i)
            info = self._begin_episode(i, seeds[i], options[i])
            if info and self.info_mode == "full":  # mode ``summed`` adds up only the infos of steps
                rows.append(InfoRow(i, public_info(info)))
        return rows

    def step(self) -> list[InfoRow]:
        """Step every env with its row of ``arrays.actions`` and return the infos; reset envs whose episode ended."""
        rows: list[InfoRow] = []
        heartbeat, action_mask_methods, ledger = self.heartbeat, self._mask_methods, self._ledger
        steps, unrestored_envs = ledger.steps, ledger.unrestored_envs
        self._replay_log.append()  # the actions of this step, for all envs
        self.arrays.life_lost.fill(False)
        heartbeat[STEPS_STARTED] += 1
        for i, env in enumerate(self.envs):
            heartbeat[CURRENT_ENV] = i
            action = self._read_action(i)
            steps[i] += 1
            if unrestored_envs and i in unrestored_envs:  # the env is not at its position: the step would be wrong
                self._truncate_episode(i, rows)
                continue
            try:
                outcome = env.step(action)
                # ``mask_after`` calls the method unless the outcome ends the episode. Most envs have no such method.
                mask = None if action_mask_methods[i] is None else lifecycle.mask_after(action_mask_methods[i], outcome)
            except ENV_EXCEPTIONS as error:
                if (retried := self._retry_step(i, action, error)) is None:
                    self._truncate_episode(i, rows)
                    continue
                outcome, mask = retried
            try:
                self._write_outcome(i, outcome, mask, rows)
            except InvalidRow as invalid:
                self._raise_invalid_data(i, invalid, action)
        try:
            self.row_writer.check_all_finite()  # all rows at once: faster than one by one
        except InvalidRow as invalid:
            assert invalid.row is not None
            self._raise_invalid_data(invalid.row, invalid, self._read_action(invalid.row))
        ledger.completed_first_step = True
        return rows

    def take_report(self) -> EnvReport:
        """Return the sums of infos, fault counts and faults since the last call, and env states if they are due."""
        states = self._read_states()
        info_sums, self._info_sums = self._info_sums, [{} for _ in self.envs]
        return self._ledger.take_report(info_sums, states)

    def _read_states(self) -> dict[int, bytes]:
        """Return the state of each env that has ``get_state``.

        The replay log drops the actions before a state, because a new env can start from the state. Returns nothing if
        states were read a short time ago, unless the log of an episode is nearly full. If an opponent may be a
        recurrent policy, no states are read: its hidden state is not part of the env's state, so its episodes have to
        be replayed from their reset.
        """
        started = time.perf_counter()
        if started < self._next_state_time and not self._replay_log.near_limit:
            return {}
        if self.opponent_sampler is not None and self.opponent_sampler.is_recurrent:
            return {}
        states: dict[int, bytes] = {}
        for i, methods in enumerate(self._restorable.state_methods):
            self._update_heartbeat(i)
            if methods is None or i in self._ledger.unrestored_envs:
                continue
            state = methods.get()
            if state is not None:  # None if ``get_state`` raised or did not return bytes
                states[i] = state
                self._replay_log.start_from_state(i, state)
        elapsed = time.perf_counter() - started
        self._next_state_time = max(self._next_state_time, started + _STATE_WAIT_FACTOR * elapsed)
        return states

    def close(self) -> None:
        """Close every env."""
        for i, env in enumerate(self.envs):
            close_env(env, self.first_env + i)

    # ---- writing what an env returned ------------------------------------------------------------------------

    def _write_outcome(self, i: int, outcome: Any, mask: Any, rows: list[InfoRow]) -> None:
        """Check and write what ``env.step`` returned; if it ended the episode, begin the next one."""
        if not isinstance(outcome, tuple) or len(outcome) != 5:
            raise InvalidRow(
                f"step returned {describe_value(outcome)}, expected (obs, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = outcome
        arrays = self.arrays
        if not (isinstance(terminated, FLAG_TYPES) and isinstance(truncated, FLAG_TYPES)):
            terminated, truncated = unwrap_scalar(terminated), unwrap_scalar(truncated)
        if not (isinstance(terminated, FLAG_TYPES) and isinstance(truncated, FLAG_TYPES)):
            raise InvalidRow(f"terminated and truncated are {terminated!r:.40}, {truncated!r:.40}, expected booleans")
        if not isinstance(info, dict):
            raise InvalidRow(f"info is {describe_value(info)}, expected a dict")
        try:
            self._copy_observation(i, observation)
        except ValueError:
            self.row_writer.write_observation(i, observation)  # raises the error as ``InvalidRow``
        if type(reward) is float:  # the usual case, which needs no check of the type
            arrays.rewards[i] = reward
        else:
            self.row_writer.write_reward(i, reward)
        arrays.terminated[i], arrays.truncated[i] = terminated, truncated
        if terminated or truncated:
            self.row_writer.check_finite(i, with_reward=True)  # now, because the reset overwrites the observation
            self._ledger.consecutive_faulty_episodes[i] = 0
            self._end_episode(i, info, rows)
            return
        if self.row_writer.has_masks or mask is not None or MASK in info:
            self.row_writer.write_mask(i, info.get(MASK) if mask is None else mask)  # raises if some steps have none
        if info:
            self.row_writer.write_life_lost(i, info.get(LIFE_LOST, False))
            if self.info_mode == "full":
                rows.append(InfoRow(i, public_info(info)))  # without the mask, which ``arrays`` holds
            else:
                add_numbers(self._info_sums[i], info)

    def _end_episode(self, i: int, info: dict[str, Any], rows: list[InfoRow]) -> None:
        """Keep the final observation and info of env ``i``, then begin its next episode.

        Both are copied before the reset (the info in mode ``full`` only), because an env may return the same array or
        dictionary again. In the info, the arrays directly in it are copied; objects nested deeper are not.
        """
        for path, leaf in self.arrays.final_observations.items():
            leaf[i] = self.arrays.observations[path][i]
        if self.info_mode == "full":
            final_info = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()}
            reset_info = self._begin_episode(i, None, None)
            rows.append(InfoRow(i, public_info(reset_info), final_info))
        else:
            add_numbers(self._info_sums[i], info)
            self._begin_episode(i, None, None)

    def _truncate_episode(self, i: int, rows: list[InfoRow]) -> None:
        """End an episode that cannot be continued: truncated at its last observation, with reward 0."""
        arrays = self.arrays
        self._ledger.unrestored_envs.discard(i)
        arrays.rewards[i], arrays.terminated[i], arrays.truncated[i] = 0.0, False, True
        self._end_episode(i, {}, rows)

    # ---- beginning an episode --------------------------------------------------------------------------------

    def _begin_episode(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Reset env ``i`` for its next episode, write its first observation and mask, and return the info.

        If ``reset`` raises, the env is replaced and reset for the same episode. If the reset raises the same type of
        exception twice in a row, this episode is skipped, and the env is reset for the episode after it. The run ends
        with an ``EnvFault`` if no step was completed before, if no new env can be made, after ``MAX_ATTEMPTS`` resets
        (those for skipped episodes included), after too many faulty episodes in a row, or if the episode would be
        skipped although the caller requested it, with ``seed`` or ``options``.
        """
        is_requested = seed is not None or options is not None
        last_fault: EnvFault | None = None  # from the last reset for this episode, if it raised
        last_type: type[BaseException] | None = None
        attempts = 0
        self.arrays.episode[i] += 1
        self._ledger.steps[i] = 0
        while True:
            attempts += 1
            self._update_heartbeat(i)
            reset_options = self._log_episode(i, seed, options)
            try:
                info = self._try_to_begin(i, reset_options)
            except InvalidRow as invalid:
                self._raise_invalid_data(i, invalid, None)
            except ENV_EXCEPTIONS as error:
                start = self._replay_log.position(i, observation={}, mask=None)  # seed and options, no actions
                fault = self._make_fault(i, error, None, start.reproduction(last_action=None))
                may_retry = self._ledger.completed_first_step and attempts < MAX_ATTEMPTS
                if not may_retry or not self._restorable.replace(i):
                    raise fault from error
                is_repeated = type(error) is last_type
                if is_repeated and is_requested:
                    raise fault from error
                if is_repeated:
                    self._ledger.record_repeated_fault(i, fault, "reset")  # raises after too many such episodes
                    self.arrays.episode[i] += 1  # skip the episode, and try the next one
                    last_fault, last_type = None, None
                else:
                    last_fault, last_type = fault, type(error)  # try the same episode again
                continue
            if last_fault is not None:
                self._ledger.record_successful_retry(last_fault)
            return info

    def _try_to_begin(self, i: int, options: dict[str, Any] | None) -> dict[str, Any]:
        """Reset env ``i`` once, write its first observation and mask, and return the info."""
        observation, mask, info = self._restorable.reset(i, self._replay_log.seed(i), options, self.opponent_sampler)
        self.row_writer.write_observation(i, observation)
        self.row_writer.check_finite(i, with_reward=False)
        self.row_writer.detect_masks(self._mask_methods[i] is not None, info)
        self.row_writer.write_mask(i, mask)
        return info

    def _log_episode(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Record the start of an episode in the replay log; return its options, with an opponent if one was sampled.

        The opponent is sampled with the episode's seed, so that a replay has the same one. Episodes without a seed, and
        those for which the caller gave options, get no sampled opponent.
        """
        self._replay_log.begin(i, int(self.arrays.episode[i]), seed, options)
        if options is None and self.opponent_sampler is not None:
            episode_seed = self._replay_log.seed(i)
            if episode_seed is not None:
                options = {OPPONENT: self.opponent_sampler.draw(episode_seed)}
                self._replay_log.set_options(i, options)
        self.arrays.opponent[i] = opponent_number(options)
        return options

    # ---- recovery after an exception -------------------------------------------------------------------------

    def _retry_step(self, i: int, action: Any, error: BaseException) -> tuple[Any, Any] | None:
        """Replace env ``i`` and repeat the step that raised ``error``; return the outcome and mask.

        Returns None if the episode has to be truncated: because no new env could be restored to the position before the
        step, or because the new env raised the same type of exception. After another type of exception the env is
        replaced once more. After ``_MAX_STEP_ATTEMPTS`` calls the run ends with an ``EnvFault``, which describes
        the first exception and has the last one as its cause.
        """
        # Raises ``InvalidAction`` if the action is not in the action space: the caller is at fault, not the env.
        self.row_writer.check_action(self.first_env + i, action, describe_error(error))
        position = self._position_before_step(i)
        action_leaves = {path: leaf[i].copy() for path, leaf in self.arrays.actions.items()}  # as fault files store it
        fault = self._make_fault(i, error, action, position.reproduction(action_leaves))
        if not self._restorable.can_replace or not self._ledger.completed_first_step:
            raise fault from error
        for _ in range(_MAX_STEP_ATTEMPTS - 1):
            # ``replace`` closes the old env first. If it can make no new one, the closed env stays in the list. The
            # caller truncates its episode and resets it; if that raises, ``_begin_episode`` tries again to replace it.
            if not self._restorable.replace(i) or not self._restore_env(i, position):
                self._ledger.record_failed_restore(i, fault)
                return None
            self._ledger.steps[i] += 1  # again, because restoring has set it to the steps before this one
            try:
                outcome = self.envs[i].step(action)  # the heartbeat has counted this step already
                mask = lifecycle.mask_after(self._mask_methods[i], outcome)
            except ENV_EXCEPTIONS as next_error:
                if type(next_error) is type(error):
                    self._ledger.record_repeated_fault(i, fault, "step")
                    return None
                error = next_error
            else:
                self._ledger.record_successful_retry(fault)
                return outcome, mask
        raise fault from error

    def _position_before_step(self, i: int) -> EnvPosition:
        """Return the position before the current step: the log has the step's action already, so it is left out."""
        observation = {path: leaf[i].copy() for path, leaf in self.arrays.observations.items()}
        mask = self.arrays.masks[i].copy() if self.has_masks else None
        return self._replay_log.position(i, observation, mask, without_last_action=True)

    # ---- restoring positions ---------------------------------------------------------------------------------

    def restore(
        self, positions: Sequence[EnvPosition], has_masks: bool, already_there: Collection[int] = ()
    ) -> list[int]:
        """Bring every env to its position: in a new worker, after a resume, or when envs move between workers.

        ``already_there`` are the indices in ``envs`` of those that are at their positions, because this worker had them
        before the move. Returns the indices of envs that could not be restored, whose episodes the next step truncates.
        """
        self.row_writer.has_masks = has_masks
        for i, position in enumerate(positions):
            if i in already_there:
                self._write_position(i, position)
            else:
                self._restore_env(i, position)
        self._replay_log.restore(positions)
        return sorted(self._ledger.unrestored_envs)

    def _restore_env(self, i: int, position: EnvPosition) -> bool:
        """Bring env ``i`` to a position; return whether that succeeded. If not, mark the env as unrestored.

        The position is written to the arrays in any case: the episode of an unrestored env is truncated with the
        position's observation as its last one.
        """
        is_restored = self._restorable.restore(i, position, self.opponent_sampler, self._update_heartbeat)
        if not is_restored:
            self._ledger.mark_unrestored_envs([i])
        self._write_position(i, position)
        return is_restored

    def _write_position(self, i: int, position: EnvPosition) -> None:
        """Write the observation, mask, counters and opponent that env ``i`` has at a position."""
        self._ledger.write_position(i, position)
        self.arrays.opponent[i] = opponent_number(position.options)
        # A position beyond the start of episode 0 shows that the env has completed a step, perhaps in another process.
        self._ledger.completed_first_step |= position.steps > 0 or position.episode > 0

    # ---- heartbeat and errors --------------------------------------------------------------------------------

    def _update_heartbeat(self, i: int) -> None:
        """Show the parent process that this one makes progress, with a reset, replay or ``get_state`` of env ``i``."""
        self.heartbeat[OTHER_CALLS] += 1
        self.heartbeat[CURRENT_ENV] = i

    def _raise_invalid_data(self, i: int, invalid: InvalidRow, action: Any) -> NoReturn:
        """Raise ``InvalidEnvData``, which ends the run: the message of ``invalid`` with the env, episode and step."""
        self._ledger.raise_invalid_data(invalid, self._location(i, action))

    def _make_fault(self, i: int, error: BaseException, action: Any, reproduction: Any) -> EnvFault:
        """Return the ``EnvFault`` for an exception of env ``i``; ``reproduction`` is the data that repeats it."""
        return self._ledger.make_fault(
            f"the env raised {describe_error(error)}", self._location(i, action), error, reproduction
        )

    def _location(self, i: int, action: Any) -> EnvLocation:
        return self._ledger.location(i, self._replay_log.seed(i), action)
