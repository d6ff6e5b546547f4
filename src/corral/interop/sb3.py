"""Corral's vector envs as a ``VecEnv`` of Stable-Baselines3. Only this module imports ``stable_baselines3``."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from corral.core.errors import MissingPackage
from corral.envs.env_lists import EnvName
from corral.processes.pool import StartMethod
from corral.vec.api import CorralVectorEnv, InfoRow
from corral.vec.calls import InvalidAction
from corral.vec.make_vec import make_parallel_env as make_gymnasium_env
from corral.vec.serial import SerialVectorEnv

try:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices, VecEnvObs, VecEnvStepReturn
except ImportError:
    raise MissingPackage("corral.sb3 needs Stable-Baselines3: pip install stable-baselines3 sb3-contrib") from None

__all__ = ["CorralVecEnv", "make_parallel_env"]

_MASK_METHOD = "action_masks"
"""Method of an env that returns its action mask; sb3-contrib calls it."""
_MASK_INFO_KEY = "action_mask"
"""Key of ``info`` under which envs return their action mask."""


class CorralVecEnv(VecEnv):
    """A Corral vector env as a ``VecEnv``.

    Action masks are read from shared memory, without a message to the workers. Finished episodes are reported in
    ``info["episode"]``, as SB3's ``Monitor`` does, unless the env sets that key itself.
    """

    def __init__(self, env: CorralVectorEnv) -> None:
        self.env = env
        self._start_time = time.time()
        self._episode_reward = np.zeros(env.num_envs)  # [N]
        self._episode_length = np.zeros(env.num_envs, np.int64)  # [N]
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    # ---- stepping --------------------------------------------------------------------------------------------

    def reset(self) -> VecEnvObs:
        """Reset every env, with the seeds and options that were set for it."""
        rows = self.env.reset_arrays(list(self._seeds), [options or None for options in self._options])
        self.reset_infos = [{} for _ in range(self.num_envs)]
        for row in rows:
            self.reset_infos[row.env] = row.info
        for i in range(self.num_envs):
            self._add_mask(i, self.reset_infos[i])
        self._episode_reward[:], self._episode_length[:] = 0.0, 0
        self._reset_seeds()
        self._reset_options()
        return cast("VecEnvObs", self._observations())

    def step_async(self, actions: Any) -> None:
        """Start a step with a sequence of actions, one for each env."""
        if isinstance(dtype := self.action_space.dtype, np.dtype):
            actions = np.asarray(given := actions)
            if dtype.kind != "f" and actions.dtype.kind == "f":  # SB3's Bernoulli distribution samples floats
                if not ((np.abs(actions) < 2**53) & (actions == np.round(actions))).all():
                    raise InvalidAction(f"actions are {given!r:.80}, expected whole numbers for {self.action_space}")
                actions = actions.astype(np.int64)
        elif not isinstance(actions, Mapping):
            actions = self._batch(actions)
        self.env.step_async(actions)

    def _batch(self, actions: Sequence[Any]) -> Any:
        """Return actions of a Dict or Tuple space, one for each env, as a value of the batched space."""
        if len(actions) != self.num_envs:
            raise ValueError(f"step got {len(actions)} actions, expected one for each of the {self.num_envs} envs")
        layout = self.env.codec.layout
        leaves = layout.allocate(self.num_envs)
        for i, action in enumerate(actions):
            try:
                layout.write(leaves, i, action)
            except ValueError as error:
                raise InvalidAction(f"the action of env {i} has {error}") from None
        return layout.batch(leaves, copy=False)

    def step_wait(self) -> VecEnvStepReturn:
        """Wait for the end of the step that was started, and return its result."""
        rows = self.env.recv()
        arrays = self.env.arrays
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if self.env.mask_dtype is not None:
            for env, info in enumerate(infos):
                self._add_mask(env, info)
        for row in rows:
            self._add_info(row, infos)
        for info, truncated in zip(infos, (arrays.truncated & ~arrays.terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = truncated
        self._episode_reward += arrays.rewards
        self._episode_length += 1
        done = arrays.terminated | arrays.truncated  # [N]
        for i in np.flatnonzero(done):
            self._add_episode(int(i), infos[i])
        return self._observations(), arrays.rewards.astype(np.float32), done, infos

    def _add_info(self, row: InfoRow, infos: list[dict[str, Any]]) -> None:
        """Add the info of an env to ``infos``; after the end of an episode, also to ``reset_infos``."""
        if isinstance(self.env, SerialVectorEnv):  # copied, because the env can change the objects in its infos later
            row = copy.deepcopy(row)
        if row.final is None:
            infos[row.env].update(row.info)
        else:
            infos[row.env] = row.final
            self.reset_infos[row.env] = row.info
            self._add_mask(row.env, row.info)

    def _add_mask(self, i: int, info: dict[str, Any]) -> None:
        """Add the mask of env ``i`` to its info, if the env has it there. Workers send masks apart from infos."""
        if self.env.mask_dtype is not None:
            info[_MASK_INFO_KEY] = self.env.arrays.masks[i].astype(self.env.mask_dtype)

    def _add_episode(self, i: int, info: dict[str, Any]) -> None:
        """Add the final observation and the episode's reward, length and time of env ``i`` to its info."""
        info["terminal_observation"] = self.env.layout.read(self.env.arrays.final_observations, i)
        reward, length = round(float(self._episode_reward[i]), 6), int(self._episode_length[i])
        info.setdefault("episode", {"r": reward, "l": length, "t": round(time.time() - self._start_time, 6)})
        self._episode_reward[i], self._episode_length[i] = 0.0, 0

    def _observations(self) -> Any:
        return self.env.layout.batch(self.env.arrays.observations)

    # ---- attributes and methods of the envs ------------------------------------------------------------------

    def close(self) -> None:
        """Close the envs and end the workers."""
        self.env.close()

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs themselves, as of ``DummyVecEnv``; only with backend serial, where they are in this process."""
        if not isinstance(self.env, SerialVectorEnv):
            raise AttributeError("the envs live in worker processes; use get_attr, set_attr and env_method")
        return self.env.envs

    def has_attr(self, attr_name: str) -> bool:
        """Return whether every env has the attribute; the value stays in its process and need not be picklable."""
        if attr_name == _MASK_METHOD and self._has_masks():  # envs may return masks only in infos, which SB3 ignores
            return True
        return all(self.env.apply(lambda env: env.has_wrapper_attr(attr_name)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the envs ``indices`` (default: all)."""
        return self.env.apply(lambda env: env.get_wrapper_attr(attr_name), self._indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the envs ``indices`` (default: all).

        It is set on the env or wrapper that has the attribute, or on the outermost wrapper if none has it.
        """
        arguments = _Arguments((value,), {})
        self.env.apply(lambda env: env.set_wrapper_attr(attr_name, *arguments.args), self._indices(indices))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the envs ``indices`` (default: all) or of their wrappers, and return the results.

        The result of ``action_masks`` is read from shared memory. A model of Stable-Baselines3 among the arguments is
        saved and loaded again in the worker, without its env, its buffers and its logger.
        """
        envs = self._indices(indices)
        if method_name == _MASK_METHOD and not method_args and not method_kwargs and self._has_masks():
            return [self.env.arrays.masks[i].copy() for i in envs]
        arguments = _Arguments(method_args, method_kwargs)
        return self.env.apply(lambda env: env.get_wrapper_attr(method_name)(*arguments.args, **arguments.kwargs), envs)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return whether each of the envs ``indices`` (default: all) has a wrapper of this class."""

        def is_wrapped(env: Any) -> bool:
            while isinstance(env, gym.Wrapper):
                if isinstance(env, wrapper_class):
                    return True
                env = env.env
            return False

        return self.env.apply(is_wrapped, self._indices(indices))

    def get_images(self) -> Sequence[npt.NDArray[np.uint8] | None]:
        """Return a rendered frame of every env; None for each without render mode rgb_array."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return list(self.env.render())

    def _indices(self, indices: VecEnvIndices) -> list[int]:
        """Return ``indices`` as a list of indices from 0; None means all envs."""
        if indices is None:
            return list(range(self.num_envs))
        items = indices if isinstance(indices, Iterable) else [indices]
        return [range(self.num_envs)[int(i)] for i in items]

    def _has_masks(self) -> bool:
        """Return whether the envs have action masks.

        That is known after the first reset. SB3 asks before it resets, so the envs may have to be reset here.
        """
        if self.env.has_masks is None:
            self.env.reset_arrays()
        return bool(self.env.has_masks)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Arguments of a call in envs. A model among them is pickled in its saved form: its env is not picklable."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        kwargs = {name: _SavedModel.wrap(value) for name, value in self.kwargs.items()}
        return _load_arguments, (tuple(_SavedModel.wrap(value) for value in self.args), kwargs)


@dataclass(frozen=True, slots=True)
class _SavedModel:
    """A model of Stable-Baselines3 in the form in which it is sent to a worker."""

    algorithm: type[BaseAlgorithm]
    data: bytes

    @classmethod
    def wrap(cls, value: Any) -> Any:
        """Return a model in its saved form; any other value is returned unchanged."""
        if not isinstance(value, BaseAlgorithm):
            return value
        value.save(buffer := io.BytesIO())
        return cls(type(value), buffer.getvalue())

    def load(self) -> BaseAlgorithm:
        """Load the model on the CPU, because many workers would fill the memory of a GPU."""
        return self.algorithm.load(io.BytesIO(self.data), device="cpu")


def _load_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Return unpickled arguments with their models loaded, in the worker."""
    loaded_args = (value.load() if isinstance(value, _SavedModel) else value for value in args)
    loaded_kwargs = {name: value.load() if isinstance(value, _SavedModel) else value for name, value in kwargs.items()}
    return _Arguments(tuple(loaded_args), loaded_kwargs)


def make_parallel_env(
    env: EnvName | Sequence[EnvName],
    n_envs: int | None = None,
    *,
    num_workers: int | None = None,
    start_method: StartMethod | None = "auto",
    backend: Literal["serial", "process"] = "process",
    seed: int | None = None,
    **env_kwargs: Any,
) -> CorralVecEnv:
    """Return a ``VecEnv`` of ``n_envs`` copies (default: 8) of ``env``, several in each worker process.

    ``env`` is a name (as on the command line), a callable, or, as for ``SubprocVecEnv``, a list with one of these for
    each env. Lambdas and local classes work, and so do scripts without a ``__main__`` guard. ``seed`` seeds the first
    reset, as ``VecEnv.seed`` does.
    """
    vector_env = make_gymnasium_env(
        env, n_envs, num_workers=num_workers, start_method=start_method or "auto", backend=backend, **env_kwargs
    )
    vec_env = CorralVecEnv(vector_env)
    if seed is not None:
        vec_env.seed(seed)
    return vec_env
