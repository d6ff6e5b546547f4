"""Step Gymnasium envs one after another and write what they return into arrays.

``Stepper`` resets and steps the envs of one process. The serial backend runs it in the trainer's process, the process
and worker backends run it in worker processes, so that an env behaves the same under every backend.

For each env, a step calls ``env.step``, checks the returned values and copies them into the env's row of the arrays. If
the episode ended, the same step resets the env for its next episode (Gymnasium's ``AutoresetMode.SAME_STEP``).

If an env raises an exception, the stepper replaces the env by a new copy, restores the copy to the position before the
exception (same seed, same actions), and repeats the failed call. An episode that cannot be continued is truncated, and
the next one begins. Recovery needs a factory that makes new copies; without one, an exception ends the run.
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
_MAX_TRIES_PER_STEP = 3  # tries of one step, as long as each raises another type of exception
_STATE_INTERVAL = 100  # ``get_state`` may be slow: read states again after 100 times as long as reading them took


class Stepper:
    """Steps a list of envs; env ``i`` of the list writes row ``i`` of ``arrays``.

    The options (see ``StepperOptions``) say which index env 0 of the list has in the whole run, how episodes are
    seeded, whether infos are returned or summed, and whether an env that raises is replaced by a new copy.
    """

    def __init__(self, envs: Sequence[Env], arrays: StepArrays, options: StepperOptions) -> None:
        first_env, seed = options.first_env, options.seed
        self.arrays, self.first_env, self.infos = arrays, first_env, options.infos
        self.opponent_sampler: OpponentSampler | None = None
        """Chooses the opponents of new episodes; None: the env does."""
        self.heartbeat: Any = [0, 0, 0] if options.heartbeat is None else options.heartbeat
        self.row_writer = RowWriter(envs[0].observation_space, envs[0].action_space, arrays)
        self._restorable = RestorableEnvs(
            envs,
            self.row_writer,
            options.factory if options.heal else None,
            first_env,
            seed if options.seed_globals else None,
        )
        self.envs = self._restorable.envs
        self._mask_methods = self._restorable.action_mask_methods
        self._write_observation = self.row_writer.copy_observation
        self._read_action = self.row_writer.codec.layout.reader(arrays.actions)
        self._next_state_time = 0.0
        self._replay_log = ReplayLog(arrays.actions, first_env, seed)
        self._ledger = EpisodeLedger(arrays, [0] * len(envs), first_env, options.infos, options.known_to_work)
        self._info_sums: list[dict[str, InfoSums]] = [{} for _ in envs]

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
        """Begin a new episode in every env, or where ``reset_mask`` is true, and return the infos.

        Where ``seeds`` has None, the seed of the episode follows from the root seed.
        """
        rows: list[InfoRow] = []
        for i in range(len(self.envs)) if reset_mask is None else itertools.compress(itertools.count(), reset_mask):
            self._ledger.lost.discard(i)
            info = self._begin_episode(i, seeds[i], options[i])
            if info and self.infos == "full":  # mode ``summed`` adds up only the infos of steps
                rows.append(InfoRow(i, public_info(info)))
        return rows

    def step(self) -> list[InfoRow]:
        """Step every env with its row of ``arrays.actions`` and return the infos; reset envs whose episode ended."""
        rows: list[InfoRow] = []
        heartbeat, action_mask_methods, ledger = self.heartbeat, self._mask_methods, self._ledger
        steps, lost = ledger.steps, ledger.lost
        self._replay_log.append()
        self.arrays.life_lost.fill(False)
        heartbeat[STEPS_STARTED] += 1
        for i, env in enumerate(self.envs):
            heartbeat[CURRENT_ENV] = i
            action = self._read_action(i)
            steps[i] += 1
            if lost and i in lost:  # the env could not be restored to its position
                self._truncate_episode(i, rows)
                continue
            try:
                outcome = env.step(action)
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
            self.row_writer.check_all_finite()
        except InvalidRow as invalid:
            assert invalid.row is not None
            was_reset = steps[invalid.row] == 0  # because its episode ended in this step
            self._raise_invalid_data(invalid.row, invalid, None if was_reset else self._read_action(invalid.row))
        ledger.completed_first_step = True
        return rows

    def drain(self) -> EnvReport:
        """Return the sums of infos, recovery counts and faults since the last call, and, now and then, env states."""
        states = self._read_states()
        info_sums, self._info_sums = self._info_sums, [{} for _ in self.envs]
        return self._ledger.drain(info_sums, states)

    def _read_states(self) -> dict[int, bytes]:
        """Return the state of each env that has ``get_state``; nothing if states were read a short time ago.

        From then on, the replay log needs only the actions after that state. If an opponent may be a recurrent policy,
        no states are read: its hidden state is not part of the env's, so that episodes are replayed from their reset.
        """
        started = time.perf_counter()
        is_due = started >= self._next_state_time or self._replay_log.near_limit
        states: dict[int, bytes] = {}
        if is_due and not (self.opponent_sampler and self.opponent_sampler.is_recurrent):
            for i, methods in enumerate(self._restorable.state_methods):
                self._count_call(i)
                if methods is not None and i not in self._ledger.lost and (state := methods.get()) is not None:
                    states[i] = state
                    self._replay_log.start_from_state(i, state)
        elapsed = time.perf_counter() - started
        self._next_state_time = max(self._next_state_time, started + _STATE_INTERVAL * elapsed)
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
            self._write_observation(i, observation)
        except ValueError:
            self.row_writer.write_observation(i, observation)  # raises an error that says what is wrong
        if type(reward) is float:
            arrays.rewards[i] = reward
        else:
            self.row_writer.write_reward(i, reward)
        arrays.terminated[i], arrays.truncated[i] = terminated, truncated
        if terminated or truncated:
            self.row_writer.check_finite(i, with_reward=True)
            self._ledger.faulty_in_a_row[i] = 0
            self._end_episode(i, info, rows)
            return
        if self.row_writer.has_masks or mask is not None or MASK in info:
            self.row_writer.write_mask(i, info.get(MASK) if mask is None else mask)
        if info:
            self.row_writer.write_life_lost(i, info.get(LIFE_LOST, False))
            if self.infos == "full":
                rows.append(InfoRow(i, public_info(info)))
            else:
                add_numbers(self._info_sums[i], info)

    def _end_episode(self, i: int, info: dict[str, Any], rows: list[InfoRow]) -> None:
        """Keep the final observation and info of env ``i``, then begin its next episode.

        Both are copied before the reset, because an env may return the same array or dictionary again.
        """
        for path, leaf in self.arrays.final_observations.items():
            leaf[i] = self.arrays.observations[path][i]
        if self.infos == "full":
            final = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()}
            rows.append(InfoRow(i, public_info(self._begin_episode(i, None, None)), final))
        else:
            add_numbers(self._info_sums[i], info)
            self._begin_episode(i, None, None)

    def _truncate_episode(self, i: int, rows: list[InfoRow]) -> None:
        """End an episode that cannot be continued: truncated at the last observation, with reward 0."""
        arrays = self.arrays
        self._ledger.lost.discard(i)
        arrays.rewards[i], arrays.terminated[i], arrays.truncated[i] = 0.0, False, True
        self._end_episode(i, {}, rows)

    # ---- beginning an episode --------------------------------------------------------------------------------

    def _begin_episode(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Reset env ``i`` for its next episode, write its first observation and mask, and return the info.

        If ``reset`` raises, a new copy of the env tries to reset for the same episode. If that raises the same type of
        exception, the episode is skipped; but an episode that the caller asked for, by ``seed`` or ``options``, is not.
        """
        is_requested = seed is not None or options is not None
        last_fault: EnvFault | None = None  # from the last reset for this episode, if it raised
        last_type: type[BaseException] | None = None
        attempts = 0
        self.arrays.episode[i] += 1
        self._ledger.steps[i] = 0
        while True:
            attempts += 1
            try:
                info = self._try_to_begin(i, seed, options)
            except InvalidRow as invalid:
                self._raise_invalid_data(i, invalid, None)
            except ENV_EXCEPTIONS as error:
                fault = self._make_fault(i, error, None, self._replay_log.position(i, {}, None).reproduction(None))
                may_retry = self._ledger.completed_first_step and attempts < MAX_ATTEMPTS
                if not may_retry or not self._restorable.replace(i):
                    raise fault from error
                is_repeated = type(error) is last_type
                if is_repeated and is_requested:
                    raise fault from error
                if is_repeated:
                    self._ledger.count_repeated_fault(i, fault, "reset")
                    self.arrays.episode[i] += 1  # skip the episode, and try the next one
                    last_fault, last_type = None, None
                else:
                    last_fault, last_type = fault, type(error)  # try the same episode again
                continue
            if last_fault is not None:
                self._ledger.count_successful_retry(last_fault)
            return info

    def _try_to_begin(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Reset env ``i`` once, write its first observation and mask, and return the info."""
        self._count_call(i)
        options = self._log_episode(i, seed, options)
        observation, mask, info = self._restorable.reset(i, self._replay_log.seed(i), options, self.opponent_sampler)
        self.row_writer.write_observation(i, observation)
        self.row_writer.check_finite(i, with_reward=False)
        self.row_writer.detect_masks(self._mask_methods[i] is not None, info)
        self.row_writer.write_mask(i, mask)
        return info

    def _log_episode(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Record a new episode in the replay log; return its options, with an opponent if one was sampled."""
        number = int(self.arrays.episode[i])
        self._replay_log.begin(i, number, seed, options)
        if options is None and self.opponent_sampler is not None:
            episode_seed = self._replay_log.seed(i)
            if episode_seed is not None:
                options = {OPPONENT: self.opponent_sampler.draw(episode_seed)}
                self._replay_log.begin(i, number, seed, options)
        self.arrays.opponent[i] = opponent_number(options)
        return options

    # ---- recovery after an exception -------------------------------------------------------------------------

    def _retry_step(self, i: int, action: Any, error: BaseException) -> tuple[Any, Any] | None:
        """Repeat a step that raised ``error`` in a new copy of env ``i``; return the outcome and mask.

        Returns None if the episode has to be truncated: because no new copy could be restored to the position before
        the step, or because the new copy raised the same type of exception. After another type of exception the step is
        tried once more; if each try raises another type, the run ends with the first exception.
        """
        self.row_writer.check_action(self.first_env + i, action, describe_error(error))
        position = self._position_before_step(i)
        action_row = {path: leaf[i].copy() for path, leaf in self.arrays.actions.items()}
        fault = self._make_fault(i, error, action, position.reproduction(action_row))
        if not self._restorable.can_replace or not self._ledger.completed_first_step:
            raise fault from error
        for _ in range(_MAX_TRIES_PER_STEP - 1):
            if not self._restorable.replace(i) or not self._restore_env(i, position):
                self._ledger.count_unrestored_episode(i, fault)
                return None
            self._ledger.steps[i] += 1
            try:
                outcome = self.envs[i].step(action)
                mask = lifecycle.mask_after(self._mask_methods[i], outcome)
            except ENV_EXCEPTIONS as next_error:
                if type(next_error) is type(error):
                    self._ledger.count_repeated_fault(i, fault, "step")
                    return None
                error = next_error
            else:
                self._ledger.count_successful_retry(fault)
                return outcome, mask
        raise fault from error

    def _position_before_step(self, i: int) -> EnvPosition:
        """Return where env ``i`` was before the current step, which has not written its row yet."""
        observation = {path: leaf[i].copy() for path, leaf in self.arrays.observations.items()}
        mask = self.arrays.masks[i].copy() if self.has_masks else None
        return self._replay_log.position(i, observation, mask, undone=True)

    # ---- restoring positions ---------------------------------------------------------------------------------

    def restore(
        self, positions: Sequence[EnvPosition], has_masks: bool, at_position: Collection[int] = ()
    ) -> list[int]:
        """Bring every env to its position, except those in ``at_position``, which are at theirs already.

        Returns the envs that could not be restored; their episodes are truncated in the next step.
        """
        self.row_writer.has_masks = has_masks
        for i, position in enumerate(positions):
            if i in at_position:
                self._write_position(i, position)
            else:
                self._restore_env(i, position)
        self._replay_log.restore(positions)
        return sorted(self._ledger.lost)

    def _restore_env(self, i: int, position: EnvPosition) -> bool:
        """Bring env ``i`` to a position; if it cannot be restored, mark it as lost and return False."""
        is_restored = self._restorable.restore(i, position, self.opponent_sampler, self._count_call)
        if not is_restored:
            self._ledger.mark_lost([i])
        self._write_position(i, position)
        return is_restored

    def _write_position(self, i: int, position: EnvPosition) -> None:
        """Write the observation, mask, counters and opponent that env ``i`` has at a position."""
        self._ledger.write_position(i, position)
        self.arrays.opponent[i] = opponent_number(position.options)
        self._ledger.completed_first_step |= position.steps > 0 or position.episode > 0

    # ---- heartbeat and errors --------------------------------------------------------------------------------

    def _count_call(self, i: int) -> None:
        """Change the heartbeat before a call of env ``i`` that is not a step of the rollout and may take long."""
        self.heartbeat[OTHER_CALLS] += 1
        self.heartbeat[CURRENT_ENV] = i

    def _raise_invalid_data(self, i: int, invalid: InvalidRow, action: Any) -> NoReturn:
        """Raise ``InvalidEnvData``, which says what env ``i`` returned and at which step."""
        self._ledger.raise_invalid_data(invalid, self._location(i, action))

    def _make_fault(self, i: int, error: BaseException, action: Any, reproduction: Any) -> EnvFault:
        """Return the ``EnvFault`` for an exception of env ``i``; ``reproduction`` is the data that repeats it."""
        return self._ledger.make_fault(
            f"the env raised {describe_error(error)}", self._location(i, action), error, reproduction
        )

    def _location(self, i: int, action: Any) -> EnvLocation:
        return self._ledger.location(i, self._replay_log.seed(i), action)
