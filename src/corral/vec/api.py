"""What serial and process vector envs have in common: the arrays of a step, and Gymnasium's ``VectorEnv`` interface.

Training reads ``arrays`` directly and builds no info dictionaries. All other callers use ``reset`` and ``step`` as with
any ``gymnasium.vector.VectorEnv``.
"""

from __future__ import annotations

import warnings
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from corral.core.actions import ActionCodec
from corral.core.errors import EnvFault
from corral.core.spaces import Layout, poisoned
from corral.core.types import FaultCounts, InfoSums, Leaves, to_columns
from corral.envs.env_info import EnvInfo
from corral.envs.opponent_protocol import OPPONENT
from corral.processes.shared_memory import SharedArrays
from corral.vec import calls
from corral.vec.calls import AsyncCall, CallState, CallTimeout
from corral.vec.replay_log import EnvPosition

__all__ = [
    "CallState",
    "CorralVectorEnv",
    "EnvInfo",
    "EnvReport",
    "InfoMode",
    "InfoRow",
    "OpponentSampler",
    "OpponentSamplerSpec",
    "StepArrays",
    "merge_sums",
]

Array = npt.NDArray[Any]
Env = gym.Env[Any, Any]
InfoMode = Literal["full", "summed"]
"""``full``: infos as the envs return them. ``summed``: the numbers in infos are added up in the process of the env, and
everything else in them is dropped."""


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The arrays of one step of N envs. The process of an env writes its row, and the parent process reads it there."""

    observations: Leaves  # each [N, ...]; where an episode ended, the first observation of the next one
    final_observations: Leaves  # each [N, ...]; valid where an episode ended in this step
    actions: Leaves  # each [N, ...]
    rewards: npt.NDArray[np.float64]  # [N]
    terminated: npt.NDArray[np.bool_]  # [N]
    truncated: npt.NDArray[np.bool_]  # [N]
    life_lost: npt.NDArray[np.bool_]  # [N] the return ends here, though the episode continues
    episode: npt.NDArray[np.int64]  # [N] the number of the env's episode, from 0; -1 before its first
    opponent: npt.NDArray[np.int64]  # [N] the opponent's number in the opponent table; -1 without one
    masks: npt.NDArray[np.bool_]  # [N, A] true for legal actions; A = 0 if no action can be masked

    @classmethod
    def array_shapes(
        cls, observation: Layout, codec: ActionCodec, n: int
    ) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shape and dtype of every array, by the names that ``from_arrays`` expects."""
        boolean, double = np.dtype(np.bool_), np.dtype(np.float64)
        shapes = {f"observations:{leaf.path}": ((n, *leaf.shape), leaf.dtype) for leaf in observation.leaves}
        shapes |= {f"final_observations:{leaf.path}": ((n, *leaf.shape), leaf.dtype) for leaf in observation.leaves}
        shapes |= {f"actions:{leaf.path}": ((n, *leaf.shape), leaf.dtype) for leaf in codec.layout.leaves}
        shapes |= {"rewards": ((n,), double)}
        shapes |= dict.fromkeys(("terminated", "truncated", "life_lost"), ((n,), boolean))
        shapes |= dict.fromkeys(("episode", "opponent"), ((n,), np.dtype(np.int64)))
        return shapes | {"masks": ((n, codec.n_mask), boolean)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> StepArrays:
        """Return an instance made of arrays with the names of ``array_shapes``."""
        return cls(**to_columns(arrays))

    def begin(self) -> None:
        """Set the arrays to their values before the first episode."""
        self.episode.fill(-1)
        self.opponent.fill(-1)

    def opponent_options(self, i: int) -> dict[str, Any] | None:
        """Return the reset option that names the opponent of an env's episode; None if it has no opponent."""
        return None if self.opponent[i] < 0 else {OPPONENT: int(self.opponent[i])}

    def rows(self, first: int, stop: int) -> StepArrays:
        """Return a view of the rows from ``first`` to ``stop``."""
        rows = slice(first, stop)
        columns: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            columns[column.name] = {k: v[rows] for k, v in value.items()} if isinstance(value, dict) else value[rows]
        return StepArrays(**columns)


@dataclass(frozen=True, slots=True)
class InfoRow:
    """The info of one env's reset or step."""

    env: int
    info: dict[str, Any]
    """If the step ended an episode, this is the info of the reset that followed, and ``final`` that of the step."""
    final: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EnvReport:
    """What happened in envs since the last report."""

    infos: list[dict[str, InfoSums]]
    """By env, in mode ``summed``: the sums of the numbers in infos."""
    fault_counts: FaultCounts = field(default_factory=FaultCounts)
    faults: Sequence[EnvFault] = ()
    """Exceptions of envs that did not end the run."""
    states: Mapping[int, bytes] = field(default_factory=dict)
    """By env, for those that have ``get_state``: their current states, if they were read for this report."""


def merge_sums(sums_by_env: Sequence[dict[str, InfoSums]]) -> dict[str, InfoSums]:
    """Return the sums over all envs, added in env order, so that rounding does not depend on the number of workers."""
    merged: dict[str, InfoSums] = {}
    for env_sums in sums_by_env:
        for key, sums in env_sums.items():
            merged.setdefault(key, InfoSums()).add(sums.total, sums.count)
    return merged


class OpponentSampler(Protocol):
    """Chooses the opponent of each episode, in the process of the env."""

    @property
    def is_recurrent(self) -> bool:
        """Whether an opponent may be a recurrent policy, whose hidden state is not part of any env's state."""
        ...

    def draw(self, seed: int) -> int:
        """Return the number of the opponent for the episode with this seed."""
        ...

    def options(self, opponent: int) -> dict[str, Any]:
        """Return the reset options with which an env plays against this opponent."""
        ...


class OpponentSamplerSpec(Protocol):
    """A description of an opponent sampler, from which any process can build it."""

    def build(self, arrays: Mapping[str, Array]) -> OpponentSampler:
        """Return a sampler that reads ``arrays``, into which the trainer writes weights and probabilities."""
        ...


class _VectorEnvClass(ABCMeta):
    """Adds a hint to the class's name in f-strings: Stable-Baselines3 puts it into its error for unknown env types."""

    def __format__(cls, spec: str) -> str:
        hint = f"{cls!r} (with Stable-Baselines3, use corral.sb3.make_parallel_env)"
        return format(hint, spec)


class CorralVectorEnv(gym.vector.VectorEnv[Any, Any, Any], ABC, metaclass=_VectorEnvClass):
    """N copies of an env, reset in the step that ends their episode (``AutoresetMode.SAME_STEP``).

    Subclasses define the abstract methods, and so in which process the envs are.
    With a root ``seed``, the seed of episode ``k`` of env ``i`` depends only on (seed, i, k). Without one, envs are
    seeded as in Gymnasium: by ``reset(seed=...)``, and with None in later episodes.
    """

    def __init__(self, env_info: EnvInfo, n_envs: int) -> None:
        self.num_envs = n_envs
        self.env_info = env_info
        self.single_observation_space = env_info.observation_space
        self.single_action_space = env_info.action_space
        self.observation_space = batch_space(env_info.observation_space, n_envs)
        self.action_space = batch_space(env_info.action_space, n_envs)
        self.metadata = {**env_info.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = env_info.render_mode
        self.layout = Layout(env_info.observation_space)
        self.codec = ActionCodec(env_info.action_space)
        self.has_masks: bool | None = None
        """Whether the envs mask their actions; None before the first reset."""
        self.mask_dtype: np.dtype[Any] | None = None
        """The dtype of the masks in infos; None before the first reset, and where infos have none."""
        self.state = CallState.IDLE
        self.arrays: StepArrays

    # ---- to be defined by subclasses -------------------------------------------------------------------------

    @abstractmethod
    def _begin_reset(
        self, seeds: list[int | None], options: list[dict[str, Any] | None], chosen: npt.NDArray[np.bool_] | None
    ) -> None:
        """Request a reset of every env, or of the ``chosen`` [N]; each list has an entry for each of the N envs."""

    @abstractmethod
    def _finish_reset(self, timeout: float | None = None) -> list[InfoRow]:
        """Wait for the requested reset, set ``has_masks`` and ``mask_dtype``, and return the infos."""

    @abstractmethod
    def _begin_apply(self, function: Callable[[Env], Any], envs: Sequence[int] | None) -> None:
        """Request a call of ``function(env)`` in the process of each of these envs, or of all."""

    @abstractmethod
    def _finish_apply(self, timeout: float | None = None) -> list[Any]:
        """Wait for the requested calls and return their results, in the order of ``envs``."""

    @abstractmethod
    def send(self) -> None:
        """Begin a step with the actions that are in ``arrays.actions``."""

    @abstractmethod
    def recv(self, timeout: float | None = None) -> list[InfoRow]:
        """Wait for the step, whose outcome is then in ``arrays``; in mode ``full`` return infos that are not empty."""

    @abstractmethod
    def take_report(self) -> EnvReport:
        """Return what happened in the envs since the last call."""

    def take_fault_counts(self) -> FaultCounts:
        """Return how many workers were restarted since the last call of this or of ``take_report``."""
        return FaultCounts()

    @abstractmethod
    def restore(self, positions: Sequence[EnvPosition], already_there: Collection[int] = ()) -> list[int]:
        """Bring every env to its position, except those in ``already_there``, which are at theirs; after a reset.

        Returns the envs that could not be restored; their episodes are truncated in the next step.
        """

    @abstractmethod
    def set_opponent_sampler(self, setup: OpponentSamplerSpec, shared: SharedArrays) -> None:
        """Choose the opponents of new episodes by this sampler, built in each process that has envs."""

    # ---- for training ----------------------------------------------------------------------------------------

    @property
    def masks(self) -> npt.NDArray[np.bool_] | None:
        """The current masks [N, A], or None if the envs have none."""
        return self.arrays.masks if self.has_masks else None

    def reset_arrays(
        self, seeds: list[int | None] | None = None, options: list[dict[str, Any] | None] | None = None
    ) -> list[InfoRow]:
        """Reset every env; the outcome is then in ``arrays``. Each list has an entry for each env."""
        calls.check_state(self, self.state, "reset")
        no_values: list[Any] = [None] * self.num_envs
        self._begin_reset(seeds or no_values, options or no_values, None)
        return self._finish_reset()

    def apply(
        self, function: Callable[[Env], Any], envs: Sequence[int] | None = None, name: str = "apply"
    ) -> list[Any]:
        """Return ``function(env)`` for each of ``envs``, called in its process; errors call it ``name``."""
        calls.check_state(self, self.state, name)
        self._begin_apply(function, envs)
        return self._finish_apply()

    # ---- Gymnasium -------------------------------------------------------------------------------------------

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset every env, or those where ``options["reset_mask"]`` is true; return the observations and infos of all.

        An int seeds env ``i`` with ``seed + i``; a sequence has a seed for each env.
        """
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Begin a reset."""
        calls.check_state(self, self.state, "reset_async")
        seeds = calls.to_seeds(seed, self.num_envs) or [None] * self.num_envs
        env_options, chosen = calls.split_reset_mask(options, self.arrays.episode)
        self._begin_reset(seeds, [env_options] * self.num_envs, chosen)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Finish the reset that ``reset_async`` began; for ``timeout`` see ``step_wait``."""
        rows = self._wait("reset", self._finish_reset, timeout)
        return self.layout.batch(self.arrays.observations), self._infos(rows)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every env. Where an episode ended, ``infos`` has ``final_obs`` and ``final_info``."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step."""
        calls.check_state(self, self.state, "step_async")
        calls.write_actions(self.codec.layout, actions, self.arrays.actions)
        self.send()

    def step_wait(self, timeout: float | None = None) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Finish the step that ``step_async`` began.

        After ``timeout`` seconds a ``TimeoutError`` is raised. The step continues, and ``step_wait`` can be called
        again. The serial backend steps its envs in this call, and does not interrupt them.
        """
        rows = self._wait("step", self.recv, timeout)
        a = self.arrays
        return (
            self.layout.batch(a.observations),
            a.rewards.copy(),
            a.terminated.copy(),
            a.truncated.copy(),
            self._infos(rows),
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the method ``name`` of every env, or read the attribute if it is not callable."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begin a call of a method of every env."""

        def call_or_read(env: Env) -> Any:
            attribute = env.get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute

        calls.check_state(self, self.state, "call_async")
        self._begin_apply(call_or_read, None)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Finish the call that ``call_async`` began; for ``timeout`` see ``step_wait``."""
        return tuple(self._wait("call", self._finish_apply, timeout))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's random generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each env's random generator; a copy, if the env is in a worker process."""
        return self.get_attr("np_random")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every env."""
        return tuple(self.apply(lambda env: env.get_wrapper_attr(name), name="get_attr"))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env: to one value for all, or to those in a list with a value for each env."""
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"set_attr got {len(values)} values, expected one for each of the {self.num_envs} envs")
        for index, value in enumerate(values):
            self.apply(lambda env, value=value: env.set_wrapper_attr(name, value), [index], "set_attr")  # type: ignore[misc]

    def close(self, **kwargs: Any) -> None:
        """Close the envs, even while a call is pending."""
        if self.state.is_pending and not self.closed:
            name = self.state.value
            text = f"Calling `close` while waiting for a pending call to `{name}` to complete."
            warnings.warn(text, stacklevel=2)
        super().close(**kwargs)

    def render(self) -> tuple[Any, ...]:
        """Return a frame of every env."""
        return self.call("render")

    # ---- private ---------------------------------------------------------------------------------------------

    def _allocate(self) -> StepArrays:
        """Return arrays in this process's own memory."""
        array_shapes = StepArrays.array_shapes(self.layout, self.codec, self.num_envs)
        arrays = StepArrays.from_arrays({name: poisoned(shape, dtype) for name, (shape, dtype) in array_shapes.items()})
        arrays.begin()
        return arrays

    def _infos(self, rows: list[InfoRow]) -> dict[str, Any]:
        """Return infos as Gymnasium's vector envs do: one dictionary of arrays."""
        infos: dict[str, Any] = {}
        for row in rows:
            infos = self._add_info(infos, row.info, row.env)
            if row.final is not None:
                final = {
                    "final_obs": self.layout.read(self.arrays.final_observations, row.env),
                    "final_info": row.final,
                }
                infos = self._add_info(infos, final, row.env)
        if self.has_masks:
            infos["action_mask"] = self.arrays.masks.astype(self.mask_dtype or np.bool_)
            infos["_action_mask"] = np.ones(self.num_envs, np.bool_)
        return infos

    def _wait(self, call: AsyncCall, finish: Callable[[float | None], Any], timeout: float | None) -> Any:
        """Return ``finish(timeout)``; if that times out, raise ``CallTimeout``."""
        calls.check_wait(self, self.state, call)
        try:
            return finish(timeout)
        except TimeoutError:
            if self.state is not CallState(call):  # the env raised it, in a method that was called
                raise
            text = f"The call to `{call}_wait` has timed out after {timeout} s; it can be called again"
            raise CallTimeout(text) from None
