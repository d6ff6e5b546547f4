"""Corral's vector envs with Stable-Baselines3's face. The only importer of ``stable_baselines3``."""

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

_MASKS, _MASK_IN_INFO = "action_masks", "action_mask"


class CorralVecEnv(VecEnv):
    """Any Corral vector env as a ``VecEnv``.

    Action masks lie in shared memory, so asking for them costs no message. Finished episodes are reported in
    ``info["episode"]``, as SB3's ``Monitor`` does, unless the env has one of its own.
    """

    def __init__(self, env: CorralVectorEnv) -> None:
        self.env = env
        self._started = time.time()
        self._reward = np.zeros(env.num_envs)
        self._length = np.zeros(env.num_envs, np.int64)
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
        self._reward[:], self._length[:] = 0.0, 0
        self._reset_seeds()
        self._reset_options()
        return cast("VecEnvObs", self._observations())

    def step_async(self, actions: Any) -> None:
        """Begin a step with a sequence of actions, one for each env."""
        if isinstance(dtype := self.action_space.dtype, np.dtype):
            actions = np.asarray(given := actions)
            if dtype.kind != "f" and actions.dtype.kind == "f":  # Bernoulli samples come as floats
                if not ((np.abs(actions) < 2**53) & (actions == np.round(actions))).all():
                    raise InvalidAction(f"actions are {given!r:.80}, expected whole numbers for {self.action_space}")
                actions = actions.astype(np.int64)
        elif not isinstance(actions, Mapping):
            actions = self._batch(actions)
        self.env.step_async(actions)

    def _batch(self, actions: Sequence[Any]) -> Any:
        """Actions of a Dict or Tuple space, one for each env, as one of arrays."""
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
        """Finish it."""
        rows = self.env.recv()
        a = self.env.arrays
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if self.env.mask_dtype is not None:
            for env, info in enumerate(infos):
                self._add_mask(env, info)
        for row in rows:
            self._take(row, infos)
        for info, cut in zip(infos, (a.truncated & ~a.terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = cut
        self._reward += a.rewards
        self._length += 1
        done = a.terminated | a.truncated
        for i in np.flatnonzero(done):
            self._finish(int(i), infos[i])
        return self._observations(), a.rewards.astype(np.float32), done, infos

    def _take(self, row: InfoRow, infos: list[dict[str, Any]]) -> None:
        if isinstance(self.env, SerialVectorEnv):  # the env may change later what it put into its infos
            row = copy.deepcopy(row)
        if row.final is None:
            infos[row.env].update(row.info)
        else:
            infos[row.env] = row.final
            self.reset_infos[row.env] = row.info
            self._add_mask(row.env, row.info)

    def _add_mask(self, i: int, info: dict[str, Any]) -> None:
        """Put an env's mask into its info, if the env does: it travels by itself."""
        if self.env.mask_dtype is not None:
            info[_MASK_IN_INFO] = self.env.arrays.masks[i].astype(self.env.mask_dtype)

    def _finish(self, i: int, info: dict[str, Any]) -> None:
        a = self.env.arrays
        info["terminal_observation"] = self.env.layout.read(a.final_observations, i)
        elapsed = round(time.time() - self._started, 6)
        info.setdefault("episode", {"r": round(float(self._reward[i]), 6), "l": int(self._length[i]), "t": elapsed})
        self._reward[i], self._length[i] = 0.0, 0

    def _observations(self) -> Any:
        return self.env.layout.batch(self.env.arrays.observations)

    # ---- reaching into the envs ------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the workers."""
        self.env.close()

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs themselves, as of ``DummyVecEnv``; only with backend serial, where they live in this process."""
        if not isinstance(self.env, SerialVectorEnv):
            raise AttributeError("the envs live in worker processes; use get_attr, set_attr and env_method")
        return self.env.envs

    def has_attr(self, attr_name: str) -> bool:
        """Whether every env has the attribute; it is looked up where the env lives and need not be picklable."""
        if attr_name == _MASKS and self._has_masks():  # perhaps in infos, which SB3 does not look at
            return True
        return all(self.env.apply(lambda env: env.has_wrapper_attr(attr_name)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Read an attribute of some envs."""
        return self.env.apply(lambda env: env.get_wrapper_attr(attr_name), self._indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some envs: of the env or wrapper that has it, or of the outermost if none has."""
        given = _Arguments((value,), {})
        self.env.apply(lambda env: env.set_wrapper_attr(attr_name, *given.args), self._indices(indices))

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some envs, or of the wrappers around them. ``action_masks`` is answered from shared memory.

        A model of Stable-Baselines3 among the arguments reaches a worker as a copy that was saved and loaded, without
        its env, its buffers and its logger.
        """
        chosen = self._indices(indices)
        if method_name == _MASKS and not method_args and not method_kwargs and self._has_masks():
            return [self.env.arrays.masks[i].copy() for i in chosen]
        given = _Arguments(method_args, method_kwargs)
        return self.env.apply(lambda env: env.get_wrapper_attr(method_name)(*given.args, **given.kwargs), chosen)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Whether some envs have a wrapper of this class."""

        def wrapped(env: Any) -> bool:
            while isinstance(env, gym.Wrapper):
                if isinstance(env, wrapper_class):
                    return True
                env = env.env
            return False

        return self.env.apply(wrapped, self._indices(indices))

    def get_images(self) -> Sequence[npt.NDArray[np.uint8] | None]:
        """A frame of every env."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return list(self.env.render())

    def _indices(self, indices: VecEnvIndices) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        chosen = indices if isinstance(indices, Iterable) else [indices]
        return [range(self.num_envs)[int(i)] for i in chosen]

    def _has_masks(self) -> bool:
        """Whether the envs mask their actions: the first reset tells, and SB3 asks before that."""
        if self.env.has_masks is None:
            self.env.reset_arrays()
        return bool(self.env.has_masks)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Arguments of a call on envs. A model among them is pickled as what it saves: its env could not be sent."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        named = {name: _SavedModel.wrap(value) for name, value in self.kwargs.items()}
        return _unpack, (tuple(_SavedModel.wrap(value) for value in self.args), named)


@dataclass(frozen=True, slots=True)
class _SavedModel:
    """A model of Stable-Baselines3 on its way to a worker."""

    kind: type[BaseAlgorithm]
    data: bytes

    @classmethod
    def wrap(cls, value: Any) -> Any:
        """A model as what it saves, and anything else as it is."""
        if not isinstance(value, BaseAlgorithm):
            return value
        value.save(buffer := io.BytesIO())
        return cls(type(value), buffer.getvalue())

    def load(self) -> BaseAlgorithm:
        """The model; on the processor, because many workers would fill a GPU's memory."""
        return self.kind.load(io.BytesIO(self.data), device="cpu")


def _unpack(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    """Arguments in a worker."""
    loaded = (value.load() if isinstance(value, _SavedModel) else value for value in args)
    named = {name: value.load() if isinstance(value, _SavedModel) else value for name, value in kwargs.items()}
    return _Arguments(tuple(loaded), named)


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
    """A ``VecEnv`` of ``n_envs`` copies of ``env`` (8, if it is not given), several in each worker process.

    ``env`` is a name (as on the command line), a callable, or as for ``SubprocVecEnv`` a list with one for each env;
    lambdas and local classes work, and so do scripts without a ``__main__`` guard. ``seed`` seeds the first reset, as
    ``VecEnv.seed`` does.
    """
    method: StartMethod = start_method or "auto"
    made = make_gymnasium_env(env, n_envs, num_workers=num_workers, start_method=method, backend=backend, **env_kwargs)
    vec_env = CorralVecEnv(made)
    if seed is not None:
        vec_env.seed(seed)
    return vec_env
