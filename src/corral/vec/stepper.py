"""Steps a few envs and writes what they return into arrays, checking all of it on the way.

The one place that calls ``env.reset`` and ``env.step``. It is hosted unchanged in this process (``serial``) and in
worker processes (``process``), so that both behave alike. No value passes unless the learner can use it.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.actions import ActionCodec
from corral.core.errors import BadEnvData, EnvFault, EnvPlace, MissingPackage, UsageError
from corral.core.seeding import episode_seed
from corral.core.spaces import Layout
from corral.core.types import InfoSums
from corral.vec.api import EnvFacts, InfoMode, InfoRow, StepArrays

__all__ = ["EnvPosition", "Stepper", "build_envs"]

Env = gym.Env[Any, Any]
_NUMBER = (bool, int, float, np.bool_, np.integer, np.floating)
_FLAG = (bool, np.bool_, int, np.integer)
_MASK = "action_mask"
_REPLAYED = 100_000  # steps of an episode that can be played again
_LARGEST = float(np.finfo(np.float32).max)  # the learner computes in single precision


def build_envs(factory: Callable[[], Env], first_env: int, n: int) -> list[Env]:
    """Make ``n`` envs; a constructor that raises is a wrong set-up, reported once with its own traceback."""
    envs: list[Env] = []
    try:
        for _ in range(n):
            envs.append(factory())
            EnvFacts.of(envs[0]).check_same(EnvFacts.of(envs[-1]))
    except (Exception, SystemExit) as error:
        for made in envs:
            made.close()
        if isinstance(error, UsageError):
            raise
        if isinstance(error, gym.error.DependencyNotInstalled):
            raise MissingPackage(f"the env cannot be made: {error}") from None
        place = EnvPlace(first_env + len(envs), episode=-1, seed=None, step=0)
        raise _fault(EnvFault, f"making the env failed: {_named(error)}", place, error, True) from error
    return envs


@dataclass(frozen=True, slots=True)
class EnvPosition:
    """Where an env is in its life: enough to bring another copy of it to the same place."""

    episode: int
    seed: int | None
    actions: list[Any]
    """Since the reset."""


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
        keep_actions: bool = False,
    ) -> None:
        self.envs = list(envs)
        self.arrays = arrays
        self.first_env = first_env
        self.seed = seed
        self.infos = infos
        self.sums: list[dict[str, InfoSums]] = [{} for _ in envs]
        self.has_masks: bool | None = None
        self._layout = Layout(envs[0].observation_space)
        self._codec = ActionCodec(envs[0].action_space)
        self._write = self._layout.writer(arrays.observations)
        self._read_action = self._codec.layout.reader(arrays.actions)
        self._floats = [arrays.observations[leaf.path] for leaf in self._layout.leaves if leaf.is_float]
        self._checked = [(array.reshape(-1), _largest_square(array)) for array in (arrays.rewards, *self._floats)]
        self._one_choice = [head.kind for head in self._codec.heads] == ["categorical"]
        self._mask_methods: list[Callable[[], Any] | None] = [_mask_method(env) for env in envs]
        self._episode = [-1] * len(self.envs)
        self._steps = [0] * len(self.envs)
        self._seeds: list[int | None] = [None] * len(self.envs)
        self._actions: list[list[Any]] | None = [[] for _ in envs] if keep_actions else None
        self._worked = False  # a first step was completed: from here on a fault is an accident

    def reset(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]) -> list[InfoRow]:
        """Begin a new episode in every env, each with its seed (None: what the root seed says) and options."""
        rows: list[InfoRow] = []
        for i in range(len(self.envs)):
            info = self._begin_episode(i, seeds[i], options[i])
            self._note(i, info, None, rows)
        return rows

    def step(self) -> list[InfoRow]:
        """Step every env with its row of ``arrays.actions``; where an episode ends, begin the next."""
        rows: list[InfoRow] = []
        for i, env in enumerate(self.envs):
            action = self._read_action(i)
            self._steps[i] += 1
            if self._actions is not None:
                self._remember(i, action)
            try:
                outcome = env.step(action)
            except (Exception, SystemExit) as error:
                self._raise(EnvFault, f"the env raised {_named(error)}", i, action, error)
            if not isinstance(outcome, tuple) or len(outcome) != 5:
                self._bad(
                    i,
                    action,
                    f"step returned {_shape_of(outcome)}, expected (obs, reward, terminated, truncated, info)",
                )
            self._take(i, action, outcome, rows)
        for flat, most in self._checked:
            if not np.dot(flat, flat) <= most:  # a look at each is for when there is a suspicion
                self._check_finite()
        self._worked = True
        return rows

    def drain_infos(self) -> list[dict[str, InfoSums]]:
        """The sums of numbers in infos since the last call, by env."""
        sums, self.sums = self.sums, [{} for _ in self.envs]
        return sums

    def close(self) -> None:
        """Close every env."""
        for i, env in enumerate(self.envs):
            try:
                env.close()
            except Exception as error:  # nothing depends on it any more, and the others should be closed all the same
                warnings.warn(f"closing env {self.first_env + i} raised {_named(error)}", stacklevel=2)

    def _remember(self, i: int, action: Any) -> None:
        """Keep an action, as it is before the env can change it; too many are not worth keeping."""
        assert self._actions is not None
        if self._steps[i] <= _REPLAYED:
            self._actions[i].append(copy.deepcopy(action))
        else:
            self._actions[i] = []

    def position(self, i: int) -> EnvPosition | None:
        """Where an env is, or None if it has come too far; needs ``keep_actions``."""
        assert self._actions is not None
        if len(self._actions[i]) < self._steps[i]:
            return None
        return EnvPosition(self._episode[i], self._seeds[i], list(self._actions[i]))

    def replay(self, i: int, position: EnvPosition) -> None:
        """Bring an env to a position: reset it as its episode was, and play the same actions."""
        self._episode[i] = position.episode - 1
        info = self._begin_episode(i, position.seed, None)
        for action in position.actions:
            self._steps[i] += 1
            try:
                observation, _, _, _, info = self.envs[i].step(action)
            except (Exception, SystemExit) as error:
                self._raise(EnvFault, f"the env raised {_named(error)}", i, action, error)
        if position.actions:
            self._write_observation(i, observation, position.actions[-1])
            self._write_mask(i, info, position.actions[-1])
        assert self._actions is not None
        self._actions[i] = list(position.actions)
        self._worked = True

    def adopt(self, i: int, other: Stepper, j: int) -> None:
        """Take over env ``j`` of another stepper of this process, as it is."""
        assert self._actions is not None and other._actions is not None
        self._episode[i], self._steps[i], self._seeds[i] = other._episode[j], other._steps[j], other._seeds[j]
        self._actions[i], self.sums[i] = other._actions[j], other.sums[j]
        for path, leaf in self.arrays.observations.items():
            leaf[i] = other.arrays.observations[path][j]
        self.arrays.masks[i] = other.arrays.masks[j]
        self.has_masks, self._worked = other.has_masks, other._worked

    # ---- one env ---------------------------------------------------------------------------------------------

    def _take(self, i: int, action: Any, outcome: tuple[Any, ...], rows: list[InfoRow]) -> None:
        observation, reward, terminated, truncated, info = outcome
        a = self.arrays
        if not isinstance(reward, _NUMBER):
            self._bad(i, action, f"the reward is {_shape_of(reward)} {reward!r:.60}, expected a number")
        if not (isinstance(terminated, _FLAG) and isinstance(truncated, _FLAG)):
            self._bad(
                i, action, f"terminated and truncated are {terminated!r:.40}, {truncated!r:.40}, expected booleans"
            )
        if not isinstance(info, dict):
            self._bad(i, action, f"info is {_shape_of(info)}, expected a dict")
        self._write_observation(i, observation, action)
        try:
            a.rewards[i] = reward
        except OverflowError:
            self._bad(i, action, f"the reward {reward!r:.60} is too large")
        a.terminated[i], a.truncated[i] = terminated, truncated
        if not (terminated or truncated):
            if self.has_masks or self._mask_methods[i] is not None or _MASK in info:
                self._write_mask(i, info, action)
            if info:
                self._note(i, info, None, rows)
            return
        self._check_finite(i, action)
        for path, final in a.final_observations.items():
            final[i] = a.observations[path][i]
        self._note(i, self._begin_episode(i, None, None), info, rows)

    def _begin_episode(self, i: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        self._episode[i] += 1
        self._steps[i] = 0
        if self._actions is not None:
            self._actions[i] = []
        if seed is None and self.seed is not None:
            seed = episode_seed(self.seed, self.first_env + i, self._episode[i])
        self._seeds[i] = seed
        try:
            outcome = self.envs[i].reset(seed=seed, options=options)
        except (Exception, SystemExit) as error:
            self._raise(EnvFault, f"the env raised {_named(error)}", i, None, error)
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            self._bad(i, None, f"reset returned {_shape_of(outcome)}, expected (obs, info)")
        observation, info = outcome
        if not isinstance(info, dict):
            self._bad(i, None, f"info is {_shape_of(info)}, expected a dict")
        self._write_observation(i, observation, None)
        self._check_finite(i)
        if self.has_masks is None:
            self.has_masks = self._mask_methods[i] is not None or _MASK in info
        self._write_mask(i, info, None)
        return info

    def _write_observation(self, i: int, observation: Any, action: Any) -> None:
        try:
            self._write(i, observation)
        except ValueError as error:
            self._bad(i, action, f"the observation has {error}")

    def _write_mask(self, i: int, info: dict[str, Any], action: Any) -> None:
        method = self._mask_methods[i]
        if not self.has_masks:
            if method is not None or _MASK in info:
                self._bad(
                    i, action, "there is an action mask, though the first reset had none: offer one always or never"
                )
            return
        try:
            given = method() if method is not None else info.get(_MASK)
        except (Exception, SystemExit) as error:
            self._raise(EnvFault, f"action_masks() raised {_named(error)}", i, action, error)
        row = self.arrays.masks[i]
        if type(given) is np.ndarray and given.dtype == np.bool_ and given.shape == row.shape and row.size:
            row[:] = given
            if self._one_choice and given.any():
                return
        if given is None:
            self._bad(i, action, f"info has no {_MASK!r}, though the first reset had one")
        try:
            if isinstance(given, tuple):  # one array for each dimension of a MultiDiscrete
                given = np.concatenate([np.asarray(part).reshape(-1) for part in given])
            mask, expected = np.asarray(given), self._codec.n_mask
        except ValueError:
            self._bad(i, action, f"the action mask {given!r:.80} is not an array of numbers")
        if expected == 0:
            self._bad(i, action, f"there is an action mask, but {self.envs[i].action_space} has no choices to mask")
        if mask.shape != (expected,):
            self._bad(i, action, f"the action mask has shape {mask.shape}, expected ({expected},)")
        if mask.dtype.kind != "b" and (mask.dtype.kind not in "iu" or not np.isin(mask, (0, 1)).all()):
            self._bad(
                i,
                action,
                f"the action mask has dtype {mask.dtype} and values {mask!r:.80}, expected booleans or 0 and 1",
            )
        row[:] = mask
        for head in self._codec.heads:
            if head.kind == "gaussian":
                continue
            allowed = row[head.mask].reshape(-1, 2) if head.kind == "bernoulli" else row[head.mask]
            if not allowed.any(-1).all():
                self._bad(
                    i,
                    action,
                    "the action mask forbids every action; a state with no legal action should end the episode",
                )

    def _note(self, i: int, info: dict[str, Any], final: dict[str, Any] | None, rows: list[InfoRow]) -> None:
        """Pass an info on, or add up the numbers in it."""
        if self.infos == "full":
            if info or final is not None:
                rows.append(InfoRow(i, _told(info), None if final is None else _told(final)))
            return
        told = info if final is None else final  # a reset's info belongs to no step
        if told:
            sums = self.sums[i]
            for key, value in told.items():
                if isinstance(value, _NUMBER) and abs(value) <= _LARGEST:  # type: ignore[operator]
                    sums.setdefault(key, InfoSums()).add(float(value))

    # ---- checks ----------------------------------------------------------------------------------------------

    def _check_finite(self, row: int | None = None, action: Any = None) -> None:
        """Look at one row, or at all of them with one number for each array, which is finite if they all are."""
        part = slice(None) if row is None else slice(row, row + 1)
        has_reward = row is None or self._steps[row] > 0
        rewards = self.arrays.rewards[part] if has_reward else self.arrays.rewards[:0]
        with np.errstate(all="ignore"):
            suspects = [
                array
                for array in (rewards, *(leaf[part] for leaf in self._floats))
                if not (np.abs(array).max(initial=0) <= _LARGEST if array.itemsize > 4 else np.isfinite(array.sum()))
            ]
        for array in suspects:
            bad = np.flatnonzero(~(np.abs(array.reshape(len(array), -1)) <= _LARGEST).all(axis=1))
            if bad.size:  # else the terms were finite and only their sum overflowed
                i = int(bad[0]) + (row or 0)
                what = "reward" if array is rewards else "observation"
                if action is None and self._steps[i]:
                    action = self._codec.layout.read(self.arrays.actions, i)
                how = "too large for single precision" if np.isfinite(array[bad[0]]).all() else "not finite"
                self._bad(i, action, f"the {what} is {how}: {array[bad[0]]!r:.120}")

    def _bad(self, i: int, action: Any, message: str) -> NoReturn:
        self._raise(BadEnvData, message, i, action, None)

    def _raise(self, kind: type[EnvFault], message: str, i: int, action: Any, cause: BaseException | None) -> NoReturn:
        plain = action.item() if isinstance(action, np.generic) else action
        shown = None if action is None else f"{plain!r:.120}"
        place = EnvPlace(self.first_env + i, self._episode[i], self._seeds[i], self._steps[i], shown)
        raise _fault(kind, message, place, cause, not self._worked) from cause


def _largest_square(array: npt.NDArray[Any]) -> float:
    """What the squares of an array's numbers may add up to: no more than if one of them is as large as can be."""
    return float(np.finfo(array.dtype).max) if array.itemsize <= 4 else _LARGEST**2


def _fault(
    kind: type[EnvFault], message: str, place: EnvPlace, cause: BaseException | None, at_start: bool
) -> EnvFault:
    text = ""
    if cause is not None:
        frames = cause.__traceback__.tb_next if cause.__traceback__ is not None else None  # ours is of no interest
        text = "".join(traceback.format_exception(type(cause), cause, frames))
    return kind(message, place, text, at_start)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _shape_of(value: Any) -> str:
    if isinstance(value, tuple):
        old = " (the old gym API: wrap it with shimmy.GymV21CompatibilityV0)" if len(value) == 4 else ""
        return f"a tuple of {len(value)}{old}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return type(value).__name__


def _mask_method(env: Env) -> Callable[[], Any] | None:
    return env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None


def _told(info: dict[str, Any]) -> dict[str, Any]:
    """A copy, for the env may keep and change its own; without the mask, which travels by itself."""
    return {key: value for key, value in info.items() if key != _MASK}
