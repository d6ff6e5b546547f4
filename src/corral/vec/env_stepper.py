"""Steps a few envs and writes what they return into arrays, checking all of it on the way.

The one place that calls ``env.reset`` and ``env.step``. It is hosted unchanged in this process (``serial``) and in
worker processes (``process``, ``worker``), so that all behave alike. No value passes unless the learner can use it.

Given a factory it also heals: an env that raises is made again, brought to where it was, and asked once more.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Collection, MutableSequence, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from corral.core.errors import EnvFault, EnvLocation, UsageError
from corral.core.seeding import seed_global_generators
from corral.core.types import LIFE_LOST, InfoSums
from corral.envs import lifecycle
from corral.envs.lifecycle import (
    ENV_EXCEPTIONS,
    FLAG,
    build_envs,
    close_env,
    mask_method,
    named,
    scalar,
    seeding_maker,
)
from corral.envs.opponent_protocol import OPPONENT, opponent_number
from corral.envs.state_protocol import state_methods
from corral.vec.api import EnvReport, InfoMode, InfoRow, OpponentSampler, StepArrays
from corral.vec.episode_ledger import EpisodeLedger, add_numbers
from corral.vec.replay_log import EnvPosition, ReplayLog
from corral.vec.validation import MASK, InvalidRow, RowWriter, public_info, shape_of

__all__ = ["CURRENT_ENV", "OTHER_CALLS", "STEPS_STARTED", "Stepper"]

Env = gym.Env[Any, Any]
CURRENT_ENV, STEPS_STARTED, OTHER_CALLS = 0, 1, 2
"""Signs of life, where ``heartbeat`` is given: which env is being used, steps begun, and other things begun."""
_ATTEMPTS = 10  # to bring an env back: one that raises now and then may well raise while it is being replayed
_MAX_TRIES_PER_STEP = 3  # exceptions at one step of one env, each of another kind
_STATE_INTERVAL = (
    100  # times as long as asking for states took passes before they are asked for again: they may cost a lot
)


class Stepper:
    """A few envs, where each of them is, and the rows of the arrays they write to."""

    def __init__(
        self,
        envs: Sequence[Env],
        arrays: StepArrays,
        *,
        first_env: int = 0,
        seed: int | None = None,
        infos: InfoMode = "full",
        factory: Callable[[], Env] | None = None,
        known_to_work: bool = False,
        heartbeat: MutableSequence[int] | None = None,
        opponent_sampler: OpponentSampler | None = None,
        seed_globals: bool = False,
    ) -> None:
        self.envs = list(envs)
        self._globals_root = seed if seed_globals else None
        self.opponent_sampler = (
            opponent_sampler  # who decides on the opponents of episodes that nobody gave options for
        )
        self.arrays, self.first_env, self.infos, self._factory = arrays, first_env, infos, factory
        self.heartbeat: Any = [0, 0, 0] if heartbeat is None else heartbeat  # where signs of life are written
        self._sums: list[dict[str, InfoSums]] = [{} for _ in envs]
        self.row_writer = self._rows = RowWriter(envs[0].observation_space, envs[0].action_space, arrays)
        self._write = self._rows.write
        layout = self._rows.codec.layout
        self._read_action = layout.reader(arrays.actions)
        self._replayed = layout.allocate(1)  # not in ``arrays``, where an action is that must not be lost
        self._read_replayed = layout.reader(self._replayed)
        self._mask_methods: list[Callable[[], Any] | None] = [mask_method(env) for env in envs]
        self._states, self._ask_again = [state_methods(env) for env in envs], 0.0
        self._replay_log = ReplayLog(arrays.actions, first_env, seed)
        self._ledger = EpisodeLedger(arrays, [0] * len(envs), first_env, infos, known_to_work)

    @property
    def has_masks(self) -> bool | None:
        """Whether the envs mask their actions; known after the first reset."""
        return self._rows.has_masks

    def reset(
        self,
        seeds: Sequence[int | None],
        options: Sequence[dict[str, Any] | None],
        chosen: Sequence[bool] | None = None,
    ) -> list[InfoRow]:
        """Begin a new episode in every env, or in the ``chosen``; a seed that is None is what the root seed says."""
        rows: list[InfoRow] = []
        for i in range(len(self.envs)) if chosen is None else itertools.compress(itertools.count(), chosen):
            self._ledger.lost.discard(i)
            info = self._begin_episode(i, seeds[i], options[i])
            if info and self.infos == "full":  # in sums it has no place: it belongs to no step
                rows.append(InfoRow(i, public_info(info)))
        return rows

    def step(self) -> list[InfoRow]:
        """Step every env with its row of ``arrays.actions``; where an episode ends, begin the next."""
        rows: list[InfoRow] = []
        heartbeat, masks, ledger = self.heartbeat, self._mask_methods, self._ledger
        steps, lost = ledger.steps, ledger.lost
        self._replay_log.append()
        self.arrays.life_lost.fill(False)
        heartbeat[STEPS_STARTED] += 1
        for i, env in enumerate(self.envs):
            heartbeat[CURRENT_ENV] = i
            action = self._read_action(i)
            steps[i] += 1
            if lost and i in lost:
                self._truncate_episode(i, rows)
                continue
            try:
                outcome = env.step(action)
                mask = None if masks[i] is None else lifecycle.mask_after(masks[i], outcome)
            except ENV_EXCEPTIONS as error:
                if (again := self._retry_step(i, action, error)) is None:
                    self._truncate_episode(i, rows)
                    continue
                outcome, mask = again
            try:
                self._write_outcome(i, outcome, mask, rows)
            except InvalidRow as refused:
                self._bad(i, refused, action)
        try:
            self._rows.all_finite()
        except InvalidRow as refused:
            assert refused.row is not None
            self._bad(refused.row, refused, self._read_action(refused.row) if steps[refused.row] else None)
        ledger.completed_first_step = True
        return rows

    def drain(self) -> EnvReport:
        """What there is to say since the last call; and, now and then, the states of envs that have them."""
        states: dict[int, bytes] = {}
        due = (began := time.perf_counter()) >= self._ask_again or self._replay_log.near_limit
        for i, methods in enumerate(
            self._states if due and not (self.opponent_sampler and self.opponent_sampler.is_recurrent) else ()
        ):
            self._count_call(i)
            if methods is not None and i not in self._ledger.lost and (state := methods.get()) is not None:
                states[i] = state
                self._replay_log.start_from_state(i, state)
        self._ask_again = max(self._ask_again, began + _STATE_INTERVAL * (time.perf_counter() - began))
        sums, self._sums = self._sums, [{} for _ in self.envs]
        return self._ledger.drain(sums, states)

    def close(self) -> None:
        """Close every env."""
        for i, env in enumerate(self.envs):
            close_env(env, self.first_env + i)

    # ---- going back to where an env was ----------------------------------------------------------------------

    def restore(self, positions: Sequence[EnvPosition], masked: bool, there: Collection[int] = ()) -> list[int]:
        """Bring every env to its position, except those that are ``there`` already.

        Returns those that do not get there: they end their episode in the next step.
        """
        self._rows.has_masks = masked
        for i, position in enumerate(positions):
            bring = self._show if i in there else self._restore_env
            bring(i, position)
        self._replay_log.restore(positions)
        return sorted(self._ledger.lost)

    def _show(self, i: int, position: EnvPosition) -> None:
        """Write what an env shows at its position."""
        self._ledger.write_position(i, position)
        self.arrays.opponent[i] = opponent_number(position.options)
        self._ledger.completed_first_step |= position.steps > 0 or position.episode > 0

    def _restore_env(self, i: int, position: EnvPosition) -> bool:
        """Bring one env to a position, if need be with another copy of it; False if it does not get there."""
        failed_at, there = -1, False
        for attempt in range(_ATTEMPTS if position.repeatable else 0):
            if attempt and not self._make_again(i):
                break
            try:
                there = self._replay(i, position)
                break
            except ENV_EXCEPTIONS:
                if self._ledger.steps[i] == failed_at:  # it always will
                    break
                failed_at = self._ledger.steps[i]
        if not there:
            self._ledger.mark_lost([i])
        self._show(i, position)
        return there

    def _replay(self, i: int, position: EnvPosition) -> bool:
        """Reset an env as its episode was and play the same actions; False if it then shows something else."""
        env, methods = self.envs[i], self._states[i]
        self._ledger.steps[i] = 0
        observation, mask = self._reset_env(i, position.seed, position.options)[:2]
        if position.state is not None:
            if methods is None:
                return False
            methods.set(position.state)
        assert position.actions is not None
        for row in range(position.length):
            for path, leaf in self._replayed.items():
                leaf[0] = position.actions[path][row]
            self._count_call(i)
            self._ledger.steps[i] += 1
            outcome = env.step(self._read_replayed(0))
            observation, mask = outcome[0], outcome[4].get(MASK)
            if outcome[2] or outcome[3]:
                return False
        if position.state is not None and not position.length:
            return True  # there is nothing to compare with
        self._rows.observation(i, observation)
        method = self._mask_methods[i]
        self._rows.mask(i, mask if method is None else method())
        seen = self.arrays.observations
        same = all(np.array_equal(seen[path][i], leaf) for path, leaf in position.observation.items())
        return same and (position.mask is None or np.array_equal(self.arrays.masks[i], position.mask))

    def _retry_step(self, i: int, action: Any, error: BaseException) -> tuple[Any, Any] | None:
        """The outcome and mask of a step in a new copy of an env that raised; None if its episode is lost."""
        self._rows.check_action(self.first_env + i, action, named(error))
        observation = {path: leaf[i].copy() for path, leaf in self.arrays.observations.items()}
        mask = self.arrays.masks[i].copy() if self.has_masks else None
        position = self._replay_log.position(i, observation, mask, undone=True)
        row = {path: leaf[i].copy() for path, leaf in self.arrays.actions.items()}
        fault = self._fault(i, error, action, position.reproduction(row))
        if self._factory is None or not self._ledger.completed_first_step:
            raise fault from error
        for _ in range(_MAX_TRIES_PER_STEP - 1):
            if not self._make_again(i) or not self._restore_env(i, position):
                self._ledger.mark_lost([i])
                self._ledger.count_faulty_episode(i, fault, "and could not be brought back")
                return None
            self._ledger.steps[i] += 1
            try:
                outcome = self.envs[i].step(action)
                mask = lifecycle.mask_after(self._mask_methods[i], outcome)
            except ENV_EXCEPTIONS as again:
                if type(again) is type(error):
                    self._ledger.count(env_faults=1)
                    self._ledger.count_faulty_episode(i, fault, "in the same step each time")
                    return None
                error = again
                continue
            self._ledger.count(retries=1)
            self._ledger.keep_fault(fault)
            return outcome, mask
        raise fault from error

    def _truncate_episode(self, i: int, rows: list[InfoRow]) -> None:
        """End an episode that cannot go on, as truncated at what the env showed last."""
        a = self.arrays
        self._ledger.lost.discard(i)
        a.rewards[i], a.terminated[i], a.truncated[i] = 0.0, False, True
        self._end_episode(i, {}, rows)

    def _make_again(self, i: int) -> bool:
        """Another copy of an env in its place; False if there cannot be one."""
        if self._factory is None:
            return False
        close_env(self.envs[i], number := self.first_env + i)
        try:
            self.envs[i] = build_envs(seeding_maker(self._factory, number, self._globals_root), number, 1)[0]
        except (EnvFault, UsageError) as error:
            warnings.warn(f"env {number} could not be made again: {error}", stacklevel=2)
            return False
        self._mask_methods[i], self._states[i] = mask_method(self.envs[i]), state_methods(self.envs[i])
        return True

    def _count_call(self, i: int) -> None:
        """Show a sign of life before something that may take its time."""
        self.heartbeat[OTHER_CALLS] += 1
        self.heartbeat[CURRENT_ENV] = i

    # ---- one env ---------------------------------------------------------------------------------------------

    def _write_outcome(self, i: int, outcome: Any, mask: Any, rows: list[InfoRow]) -> None:
        """Write what a step returned; if it ended an episode, begin the next."""
        if not isinstance(outcome, tuple) or len(outcome) != 5:
            raise InvalidRow(f"step returned {shape_of(outcome)}, expected (obs, reward, terminated, truncated, info)")
        observation, reward, terminated, truncated, info = outcome
        a = self.arrays
        if not (isinstance(terminated, FLAG) and isinstance(truncated, FLAG)):
            terminated, truncated = scalar(terminated), scalar(truncated)
        if not (isinstance(terminated, FLAG) and isinstance(truncated, FLAG)):
            raise InvalidRow(f"terminated and truncated are {terminated!r:.40}, {truncated!r:.40}, expected booleans")
        if not isinstance(info, dict):
            raise InvalidRow(f"info is {shape_of(info)}, expected a dict")
        try:
            self._write(i, observation)
        except ValueError:
            self._rows.observation(i, observation)  # says what is wrong with it
        if type(reward) is float:
            a.rewards[i] = reward
        else:
            self._rows.reward(i, reward)
        a.terminated[i], a.truncated[i] = terminated, truncated
        if not (terminated or truncated):
            if self._rows.has_masks or mask is not None or MASK in info:
                self._rows.mask(i, info.get(MASK) if mask is None else mask)
            if info:
                self._rows.life_lost(i, info.get(LIFE_LOST, False))
                if self.infos == "full":
                    rows.append(InfoRow(i, public_info(info)))
                else:
                    add_numbers(self._sums[i], info)
            return
        self._rows.finite(i, with_reward=True)
        self._ledger.faulty_in_a_row[i] = 0
        self._end_episode(i, info, rows)

    def _end_episode(self, i: int, info: dict[str, Any], rows: list[InfoRow]) -> None:
        """Keep what an episode's last step showed and said, and begin the next, which may use the same objects."""
        for path, leaf in self.arrays.final_observations.items():
            leaf[i] = self.arrays.observations[path][i]
        if self.infos == "full":
            final = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in info.items()}
            rows.append(InfoRow(i, public_info(self._begin_episode(i, None, None)), final))
        else:
            add_numbers(self._sums[i], info)
            self._begin_episode(i, None, None)

    def _begin_episode(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Reset an env for its next episode; one that cannot even be reset is skipped."""
        raised: tuple[BaseException, EnvFault] | None = None
        asked = seed is not None or options is not None
        self.arrays.episode[i] += 1
        self._ledger.steps[i] = 0
        for attempt in itertools.count(1):
            self._count_call(i)
            chosen = self._begin_history(i, seed, options)
            try:
                observation, mask, info = self._reset_env(i, self._replay_log.seed(i), chosen)
                self._rows.observation(i, observation)
                self._rows.finite(i, with_reward=False)
                self._rows.learn_masks(self._mask_methods[i] is not None, info)
                self._rows.mask(i, mask)
                if raised is not None:
                    self._ledger.count(retries=1)
                    self._ledger.keep_fault(raised[1])
                return info
            except InvalidRow as refused:
                self._bad(i, refused, None)
            except ENV_EXCEPTIONS as error:
                reproduction = self._replay_log.position(i, {}, None).reproduction(None)
                fault = self._fault(i, error, None, reproduction)
                if not self._ledger.completed_first_step or attempt >= _ATTEMPTS or not self._make_again(i):
                    raise fault from error
                if raised is None or type(error) is not type(raised[0]):
                    raised = error, fault
                elif asked:  # for this very episode, and no other
                    raise fault from error
                else:
                    self._ledger.count(env_faults=1)
                    self._ledger.count_faulty_episode(i, fault, "when reset, each time")
                    self.arrays.episode[i] += 1
                    raised = None
        raise AssertionError

    def _begin_history(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Note that an episode begins; its options, with an opponent if there is one to be drawn."""
        number = int(self.arrays.episode[i])
        self._replay_log.begin(i, number, seed, options)
        if options is None and self.opponent_sampler is not None and (own := self._replay_log.seed(i)) is not None:
            options = {OPPONENT: self.opponent_sampler.draw(own)}
            self._replay_log.begin(i, number, seed, options)
        self.arrays.opponent[i] = opponent_number(options)
        return options

    def _reset_env(self, i: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any, dict[str, Any]]:
        if (opponent := opponent_number(options)) >= 0 and options is not None and self.opponent_sampler is not None:
            options = {name: options[name] for name in options if name != OPPONENT} | self.opponent_sampler.options(
                opponent
            )
        if self._globals_root is not None and seed is not None:
            seed_global_generators(seed)
        outcome = self.envs[i].reset(seed=seed, options=options)
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise InvalidRow(f"reset returned {shape_of(outcome)}, expected (obs, info)")
        observation, info = outcome
        if not isinstance(info, dict):
            raise InvalidRow(f"info is {shape_of(info)}, expected a dict")
        method = self._mask_methods[i]
        return observation, info.get(MASK) if method is None else method(), info

    # ---- errors ----------------------------------------------------------------------------------------------

    def _bad(self, i: int, refused: InvalidRow, action: Any) -> NoReturn:
        self._ledger.refuse(refused, self._place(i, action))

    def _fault(self, i: int, error: BaseException, action: Any, reproduction: Any) -> EnvFault:
        return self._ledger.fault(f"the env raised {named(error)}", self._place(i, action), error, reproduction)

    def _place(self, i: int, action: Any) -> EnvLocation:
        return self._ledger.location(i, self._replay_log.seed(i), action)
