"""Adapters for envs that come as a ``gymnasium.vector.VectorEnv``, and functions that read single envs out of one."""

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
    "batched_mask_method",
    "single_env_metadata",
    "sub_env_info",
    "unsupported_reason",
]

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


def autoresets_in_same_step(vector: VectorEnv) -> bool:
    """Return whether a step that ends an episode already returns the first observation of the next episode.

    The last observation of the ended episode is then in the info, as ``final_obs``.
    """
    return vector.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP


def _supports_partial_reset(vector: VectorEnv) -> bool:
    """Return whether single envs can be reset as soon as their episode ends, without the others."""
    mode = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    return mode != AutoresetMode.NEXT_STEP or isinstance(vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)


def unsupported_reason(vector: VectorEnv, seeded_at_construction: bool) -> str | None:
    """Return why Corral cannot step a vector env as if its envs were single ones; None if it can."""
    if not _supports_partial_reset(vector):
        return "it begins an episode only in the step after the last one's end (autoreset_mode NEXT_STEP)"
    if not seeded_at_construction:
        seeds: Any = list(range(vector.num_envs))  # Gymnasium declares a single int
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


def batched_mask_method(vector: VectorEnv) -> Callable[[], Sequence[Any]] | None:
    """Return a function that calls ``action_masks`` of all envs; None if they have no such method.

    Only Gymnasium's ``SyncVectorEnv`` and ``AsyncVectorEnv`` can call methods of their envs.
    """
    unwrapped: Any = vector.unwrapped
    if not isinstance(unwrapped, SyncVectorEnv | AsyncVectorEnv):
        return None
    if not unwrapped.call("has_wrapper_attr", "action_masks")[0]:
        return None
    return functools.partial(unwrapped.call, "action_masks")


def single_env_metadata(vector: VectorEnv) -> dict[str, Any]:
    """Return the metadata of the single envs of a vector env."""
    return {name: value for name, value in vector.metadata.items() if name != "autoreset_mode"}


def sub_env_info(infos: Mapping[str, Any], i: int, hidden_info_keys: Collection[str] = ()) -> dict[str, Any]:
    """Return the info of env ``i`` from the infos of a vector env, without the ``hidden_info_keys``.

    Gymnasium marks in a boolean array ``_key`` which envs have an entry in the array ``key``.
    """
    info: dict[str, Any] = {}
    for name, value in infos.items():
        has_entry = infos.get(f"_{name}")
        if name.startswith("_") or name in hidden_info_keys or (isinstance(has_entry, np.ndarray) and not has_entry[i]):
            continue
        if isinstance(value, Mapping):
            info[name] = sub_env_info(value, i)
        elif isinstance(value, np.ndarray | list | tuple):
            info[name] = value[i]
    return info


class SubEnvView(gym.Env[Any, Any]):
    """One env of a vector env, seen as a single env. Unknown attributes and methods are those of the vector env."""

    def __init__(self, vector: VectorEnv, index: int) -> None:
        self._vector, self._index = vector, index
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self.metadata, self.render_mode = single_env_metadata(vector), vector.render_mode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vector, name)

    @property
    def np_random_seed(self) -> int:
        """The env's seed, where the vector env has one for each env; otherwise the vector env's."""
        return self._select(self._vector.np_random_seed)  # type: ignore[no-any-return]

    @property  # type: ignore[misc]
    def np_random(self) -> np.random.Generator:
        """The env's random generator, where the vector env has one for each env; otherwise the vector env's."""
        return self._select(self._vector.np_random)  # type: ignore[no-any-return]

    def _select(self, value: Any) -> Any:
        """Return this env's entry of a tuple with one for each env; return anything else as it is."""
        return value[self._index] if isinstance(value, tuple) else value

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Raise a CorralError: an attribute cannot be set for one env of a vector env."""
        raise CorralError(
            f"{name!r} cannot be set in one env of {type(self._vector).__name__}: its envs share one object"
        )

    def render(self) -> Any:
        """Return an image of this env; None if the vector env returns none."""
        frames = self._vector.render()
        return None if frames is None else frames[self._index]


class SingleEnvAdapter(gym.Env[Any, Any]):
    """A vector env with one env, as a single env.

    ``make(seeds)`` makes the vector env; ``seeds`` is None or a list of one seed. If the env is
    ``seeded_at_construction``, it takes seeds only there, so a reset with a seed makes a new vector env.
    """

    def __init__(self, make: Callable[[Sequence[int] | None], VectorEnv], seeded_at_construction: bool) -> None:
        self._make, self._seeded_at_construction = make, seeded_at_construction
        self._vector = make(None)
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space
        self.metadata = single_env_metadata(self._vector)
        self.render_mode = self._vector.render_mode
        self.frame_stacks = getattr(self._vector, "frame_stacks", {})
        self._hidden_info_keys = getattr(self._vector, "corral_hidden_info_keys", ())
        self._observation_layout = Layout(self.observation_space)
        self._action_layout = Layout(self.action_space, "action")
        self._action_batch = self._action_layout.allocate(1)
        if (call_action_masks := batched_mask_method(self._vector)) is not None:
            self.action_masks = lambda: call_action_masks()[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        if seed is not None and self._seeded_at_construction:
            self._vector.close()
            self._vector, seed = self._make([seed]), None
        observations, infos = self._vector.reset(seed=seed, options=options)
        return self._unbatch(observations), sub_env_info(infos, 0, self._hidden_info_keys)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step. After the end of an episode, ``reset`` begins the next."""
        self._action_layout.write(self._action_batch, 0, action)
        actions = self._action_layout.batch(self._action_batch)
        observations, rewards, terminated, truncated, infos = self._vector.step(actions)
        observation, info = self._unbatch(observations), sub_env_info(infos, 0, self._hidden_info_keys)
        if (terminated[0] or truncated[0]) and autoresets_in_same_step(self._vector):
            observation, info = info["final_obs"], info["final_info"]
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Any:
        """Return an image of the env; None if the vector env returns none."""
        try:
            frames = self._vector.render()
        except RuntimeError as error:  # all of EnvPool's envs declare render modes, but some cannot render
            raise UsageError(f"this env cannot be rendered: {error}") from None
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the vector env."""
        self._vector.close()

    def _unbatch(self, observations: Any) -> Any:
        """Return the observation of the only env."""
        return self._observation_layout.read(self._observation_layout.unbatch(observations), 0)
