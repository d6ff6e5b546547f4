"""Envs that can be replaced by new ones, and restored to a position in an episode by replaying its actions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from corral.core.errors import EnvFault, UsageError
from corral.core.seeding import seed_global_generators
from corral.envs.lifecycle import ENV_EXCEPTIONS, build_envs, close_env, mask_method, seeded_factory
from corral.envs.opponent_protocol import OPPONENT, opponent_number
from corral.envs.state_protocol import state_methods
from corral.vec.api import OpponentSampler
from corral.vec.replay_log import EnvPosition
from corral.vec.validation import MASK, InvalidRow, RowWriter, describe_value

__all__ = ["MAX_ATTEMPTS", "ResetResult", "RestorableEnvs"]

Env = gym.Env[Any, Any]
MAX_ATTEMPTS = 10
"""Resets until a new episode begins, or replays up to one position. An env that raises at random may raise in them."""


class ResetResult(NamedTuple):
    """What an env shows after ``reset``."""

    observation: Any
    mask: Any
    info: dict[str, Any]


class RestorableEnvs:
    """A list of envs with their optional methods; env ``i`` writes row ``i`` of the arrays of ``row_writer``.

    ``factory`` makes new envs; without one, envs cannot be replaced. ``first_env`` is the index of env 0 in the run.
    ``globals_seed``: the root seed for Python's and numpy's global random generators, which are then seeded whenever an
    env is made or reset; None leaves them alone.
    """

    def __init__(
        self,
        envs: Sequence[Env],
        row_writer: RowWriter,
        factory: Callable[[], Env] | None,
        first_env: int,
        globals_seed: int | None,
    ) -> None:
        self.envs = list(envs)
        self.action_mask_methods: list[Callable[[], Any] | None] = [mask_method(env) for env in envs]
        """The method ``action_masks`` of each env; None if the env does not have it."""
        self.state_methods = [state_methods(env) for env in envs]
        """The methods ``get_state`` and ``set_state`` of each env; None if the env does not have them."""
        self._row_writer, self._factory = row_writer, factory
        self._first_env, self._globals_seed = first_env, globals_seed
        action_layout = row_writer.codec.layout
        self._action = action_layout.allocate(1)  # a replayed action; the arrays hold the action of the current step
        self._read_action = action_layout.reader(self._action)
        self._replayed_steps = 0  # steps that the latest replay has started

    @property
    def can_replace(self) -> bool:
        """Whether there is a factory that makes new envs."""
        return self._factory is not None

    def reset(
        self, i: int, seed: int | None, options: dict[str, Any] | None, opponent_sampler: OpponentSampler | None
    ) -> ResetResult:
        """Reset env ``i``. If ``options`` has the number of an opponent, it plays against that opponent."""
        opponent = opponent_number(options)
        if opponent >= 0 and options is not None and opponent_sampler is not None:
            other_options = {name: value for name, value in options.items() if name != OPPONENT}
            options = other_options | opponent_sampler.options(opponent)
        if self._globals_seed is not None and seed is not None:
            seed_global_generators(seed)
        outcome = self.envs[i].reset(seed=seed, options=options)
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise InvalidRow(f"reset returned {describe_value(outcome)}, expected (obs, info)")
        observation, info = outcome
        if not isinstance(info, dict):
            raise InvalidRow(f"info is {describe_value(info)}, expected a dict")
        method = self.action_mask_methods[i]
        return ResetResult(observation, info.get(MASK) if method is None else method(), info)

    def replace(self, i: int) -> bool:
        """Close env ``i`` and put a new env in its place.

        Returns False if there is no factory, or if it raises; then the closed env stays in its place.
        """
        if self._factory is None:
            return False
        number = self._first_env + i
        close_env(self.envs[i], number)
        try:
            self.envs[i] = build_envs(seeded_factory(self._factory, number, self._globals_seed), number, 1)[0]
        except (EnvFault, UsageError) as error:
            warnings.warn(f"no new env in place of env {number} could be made: {error}", stacklevel=2)
            return False
        self.action_mask_methods[i], self.state_methods[i] = mask_method(self.envs[i]), state_methods(self.envs[i])
        return True

    def restore(
        self,
        i: int,
        position: EnvPosition,
        opponent_sampler: OpponentSampler | None,
        before_step: Callable[[int], None],
    ) -> bool:
        """Bring env ``i`` to a position; return whether it shows the position's observation and mask there.

        If the env raises, new envs try again. ``before_step(i)`` is called before each replayed step.
        """
        if not position.repeatable:
            return False
        failed_step = -1
        for attempt in range(MAX_ATTEMPTS):
            if attempt and not self.replace(i):
                return False
            try:
                return self._replay(i, position, opponent_sampler, before_step)
            except ENV_EXCEPTIONS:
                if self._replayed_steps == failed_step:  # two envs raised at this step: the next one would too
                    return False
                failed_step = self._replayed_steps
        return False

    def _replay(
        self,
        i: int,
        position: EnvPosition,
        opponent_sampler: OpponentSampler | None,
        before_step: Callable[[int], None],
    ) -> bool:
        """Reset env ``i`` as the episode began, set its state if there is one, and repeat the actions since then.

        Returns whether the env then shows the position's observation and mask; a nondeterministic env may not.
        """
        env, methods = self.envs[i], self.state_methods[i]
        self._replayed_steps = 0
        observation, mask, _ = self.reset(i, position.seed, position.options, opponent_sampler)
        if position.state is not None:
            if methods is None:
                return False
            methods.set(position.state)
        assert position.actions is not None
        for t in range(position.length):
            for path, leaf in self._action.items():
                leaf[0] = position.actions[path][t]
            before_step(i)
            self._replayed_steps += 1
            observation, _, terminated, truncated, info = env.step(self._read_action(0))
            mask = info.get(MASK)
            if terminated or truncated:
                return False
        if position.state is not None and not position.length:
            return True  # ``set_state`` returns no observation to compare with
        self._row_writer.write_observation(i, observation)
        method = self.action_mask_methods[i]
        self._row_writer.write_mask(i, mask if method is None else method())
        return self._row_shows(i, position)

    def _row_shows(self, i: int, position: EnvPosition) -> bool:
        """Return whether row ``i`` of the arrays has the observation and mask of a position."""
        arrays = self._row_writer.arrays
        for path, leaf in position.observation.items():
            if not np.array_equal(arrays.observations[path][i], leaf):
                return False
        return position.mask is None or np.array_equal(arrays.masks[i], position.mask)
