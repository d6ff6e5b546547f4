"""Envs that come many at a time: what a ``gymnasium.vector.VectorEnv`` says of one of them, and one of them alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from corral.core.errors import CorralError, UsageError
from corral.core.spaces import Layout

__all__ = [
    "SingleEnvAdapter",
    "SubEnvView",
    "autoresets_in_same_step",
    "info_of",
    "mask_methods",
    "plain_metadata",
    "unsupported_reason",
]

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


def autoresets_in_same_step(vector: VectorEnv) -> bool:
    """Whether a step that ends an episode shows the next one's first observation, and has the last one in its info."""
    return vector.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP


def _supports_partial_reset(vector: VectorEnv) -> bool:
    """Whether an episode can begin right after another one's end, in that env alone."""
    mode = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return mode != AutoresetMode.NEXT_STEP or isinstance(vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def unsupported_reason(vector: VectorEnv, seeded_at_construction: bool) -> str | None:
    """Why the envs of a vector env cannot live as many single ones would; None if they can."""
    if not _supports_partial_reset(vector):
        return "it begins an episode only in the step after the last one's end (autoreset_mode NEXT_STEP)"
    if not seeded_at_construction:
        seeds: Any = list(range(vector.num_envs))  # Gymnasium's types do not know of lists
        try:
            vector.reset(seed=seeds)
        except Exception as error:
            return f"reset does not take a list of seeds, one for each env ({type(error).__name__}: {error})"
        try:
            if not autoresets_in_same_step(vector):
                vector.reset(options={"reset_mask": np.arange(vector.num_envs) == 0})
        except Exception as error:
            return f"reset does not begin an episode in one env alone ({type(error).__name__}: {error})"
    return None


def mask_methods(vector: VectorEnv) -> Callable[[], Sequence[Any]] | None:
    """Asks all envs of Gymnasium's own vector envs for their ``action_masks``, if they have them."""
    inner: Any = vector.unwrapped
    if not isinstance(inner, SyncVectorEnv | AsyncVectorEnv) or not inner.call("has_wrapper_attr", "action_masks")[0]:
        return None
    return functools.partial(inner.call, "action_masks")


def plain_metadata(vector: VectorEnv) -> dict[str, Any]:
    """The metadata of its envs."""
    return {name: value for name, value in vector.metadata.items() if name != "autoreset_mode"}


def info_of(infos: Mapping[str, Any], i: int, hidden_info_keys: Collection[str] = ()) -> dict[str, Any]:
    """What infos say of env ``i``, without what is ``hidden_info_keys``."""
    found = {}
    for name, value in infos.items():
        there = infos.get(f"_{name}")
        if name.startswith("_") or name in hidden_info_keys or (isinstance(there, np.ndarray) and not there[i]):
            continue
        if isinstance(value, Mapping):
            found[name] = info_of(value, i)
        elif isinstance(value, np.ndarray | list | tuple):
            found[name] = value[i]
    return found


class SubEnvView(gym.Env[Any, Any]):
    """One env of a vector env, as far as it can be had alone: attributes and methods are those of the vector env."""

    def __init__(self, vector: VectorEnv, index: int) -> None:
        self._vector, self._index = vector, index
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self.metadata, self.render_mode = plain_metadata(vector), vector.render_mode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vector, name)

    @property
    def np_random_seed(self) -> int:
        """The env's own seed, where the vector env tells the seed of each; otherwise the vector env's."""
        return self._own(self._vector.np_random_seed)  # type: ignore[no-any-return]

    @property  # type: ignore[misc]
    def np_random(self) -> np.random.Generator:
        """The env's own random numbers, where the vector env has some for each; otherwise the vector env's."""
        return self._own(self._vector.np_random)  # type: ignore[no-any-return]

    def _own(self, value: Any) -> Any:
        return value[self._index] if isinstance(value, tuple) else value

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Not for one env alone."""
        raise CorralError(f"{name!r} cannot be set in one env of {type(self._vector).__name__}: they are one object")

    def render(self) -> Any:
        """A picture of the env."""
        frames = self._vector.render()
        return None if frames is None else frames[self._index]


class SingleEnvAdapter(gym.Env[Any, Any]):
    """A vector env of one env, as a plain env. ``make(seeds)`` makes it, with or without a seed.

    ``seeded_at_construction``: a seed can only be given when it is made, so that it is made again for each.
    """

    def __init__(self, make: Callable[[Sequence[int] | None], VectorEnv], seeded_at_construction: bool) -> None:
        self._make, self._seeded_at_construction = make, seeded_at_construction
        self._vector = make(None)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space
        self.metadata = plain_metadata(self._vector)
        self.render_mode = self._vector.render_mode
        self.frame_stacks = getattr(self._vector, "frame_stacks", {})
        self._hidden_info_keys = getattr(self._vector, "hidden_info_keys", ())
        self._seen, self._acted = Layout(self.observation_space), Layout(self.action_space, "action")
        self._action = self._acted.allocate(1)
        if (masks := mask_methods(self._vector)) is not None:
            self.action_masks = lambda: masks()[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if seed is not None and self._seeded_at_construction:
            self._vector.close()
            self._vector, seed = self._make([seed]), None
        observation, info = self._vector.reset(seed=seed, options=options)
        return self._first(observation), info_of(info, 0, self._hidden_info_keys)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; after an episode's end, ``reset`` begins the next."""
        self._acted.write(self._action, 0, action)
        observation, reward, terminated, truncated, info = self._vector.step(self._acted.batch(self._action))
        told, ended = info_of(info, 0, self._hidden_info_keys), bool(terminated[0] or truncated[0])
        shown = self._first(observation)
        if ended and autoresets_in_same_step(self._vector):
            shown, told = told["final_obs"], told["final_info"]
        return shown, float(reward[0]), bool(terminated[0]), bool(truncated[0]), told

    def render(self) -> Any:
        """A picture of the env."""
        try:
            frames = self._vector.render()
        except RuntimeError as error:  # EnvPool's say that they all can
            raise UsageError(f"this env cannot be drawn: {error}") from None
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the vector env."""
        self._vector.close()

    def _first(self, observation: Any) -> Any:
        return self._seen.read(self._seen.unbatch(observation), 0)
