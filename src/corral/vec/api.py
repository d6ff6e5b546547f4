"""What serial and process vector envs have in common: the arrays of a step, and Gymnasium's face on top of them.

Training reads ``arrays`` directly and never builds an info dictionary; everyone else uses ``reset`` and ``step`` as
of any ``gymnasium.vector.VectorEnv``.
"""

from __future__ import annotations

import warnings
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Collection, Mapping, MutableSequence, Sequence
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
from corral.core.types import InfoSums, Leaves, RecoveryCounts, to_columns
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
    "StepperOptions",
    "merge_sums",
]

Array = npt.NDArray[Any]
Env = gym.Env[Any, Any]
InfoMode = Literal["full", "summed"]
"""``full``: infos as the envs give them. ``summed``: numbers are added up where the env lives, the rest is dropped."""


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The arrays of one step of N envs. Rows are written where the env lives and read by the parent, with no copy."""

    observations: Leaves  # each [N, ...]; after an episode's end, already the next one's first
    final_observations: Leaves  # each [N, ...]; valid where an episode ended in this step
    actions: Leaves  # each [N, ...]
    rewards: npt.NDArray[np.float64]  # [N]
    terminated: npt.NDArray[np.bool_]  # [N]
    truncated: npt.NDArray[np.bool_]  # [N]
    life_lost: npt.NDArray[np.bool_]  # [N] the return ends here, though the episode goes on
    episode: npt.NDArray[np.int64]  # [N] how many episodes the env has begun, less one
    opponent: npt.NDArray[np.int64]  # [N] who of the lineup plays the other side in it; -1 without one
    masks: npt.NDArray[np.bool_]  # [N, A]; A = 0 where no action can be masked

    @classmethod
    def named(cls, observation: Layout, codec: ActionCodec, n: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of every array, under the names that ``of`` expects."""
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
        """Assemble from named arrays."""
        return cls(**to_columns(arrays))

    def begin(self) -> None:
        """No env has begun an episode yet."""
        self.episode.fill(-1)
        self.opponent.fill(-1)

    def opponent_options(self, i: int) -> dict[str, Any] | None:
        """The reset options of an env's episode, as far as the lineup gave them."""
        return None if self.opponent[i] < 0 else {OPPONENT: int(self.opponent[i])}

    def rows(self, first: int, stop: int) -> StepArrays:
        """A view of some of the envs."""
        part = slice(first, stop)
        columns: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            columns[column.name] = {k: v[part] for k, v in value.items()} if isinstance(value, dict) else value[part]
        return StepArrays(**columns)


@dataclass(frozen=True, slots=True)
class InfoRow:
    """What one env had to say: ``final`` is the info of the step that ended an episode."""

    env: int
    info: dict[str, Any]
    final: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EnvReport:
    """What envs had to say since they were last asked."""

    infos: list[dict[str, InfoSums]]
    """By env: in mode ``summed``, the sums of the numbers in infos."""
    recovery_counts: RecoveryCounts = field(default_factory=RecoveryCounts)
    faults: Sequence[EnvFault] = ()
    """What they raised that did not end the run."""
    states: Mapping[int, bytes] = field(default_factory=dict)
    """By env, of those that offer ``get_state``: where they are now."""


def merge_sums(parts: Sequence[dict[str, InfoSums]]) -> dict[str, InfoSums]:
    """Add up what the envs reported, in env order, so that rounding does not depend on who held which env."""
    merged: dict[str, InfoSums] = {}
    for part in parts:
        for key, sums in part.items():
            merged.setdefault(key, InfoSums()).add(sums.total, sums.count)
    return merged


class OpponentSampler(Protocol):
    """Decides who plays the other side, in whatever process the env lives."""

    @property
    def is_recurrent(self) -> bool:
        """Whether somebody there remembers earlier moves, which no state of an env tells: it has to be replayed."""
        ...

    def draw(self, seed: int) -> int:
        """The opponent of an episode with this seed, by number."""
        ...

    def options(self, opponent: int) -> dict[str, Any]:
        """What an env is reset with, to play against it."""
        ...


class OpponentSamplerSpec(Protocol):
    """How to build seats, in any process."""

    def build(self, arrays: Mapping[str, Array]) -> OpponentSampler:
        """Seats that read what the trainer writes into ``arrays``."""
        ...


@dataclass(frozen=True, slots=True)
class StepperOptions:
    """How a stepper seeds its envs, recovers from their exceptions, and reports."""

    factory: Callable[[], Env]
    """Makes new copies of envs."""
    first_env: int = 0
    """The index in the run of the stepper's first env."""
    seed: int | None = None
    """The root seed, from which the seeds of all episodes follow."""
    infos: InfoMode = "full"
    heal: bool = False
    """Whether envs that raise are replaced by new copies."""
    known_to_work: bool = False
    """Whether the env has completed steps elsewhere; if not, an exception before its first step is a wrong set-up."""
    heartbeat: MutableSequence[int] | None = None
    """Cells that the stepper changes while it makes progress (see ``env_stepper``)."""
    seed_globals: bool = False
    """Whether Python's and numpy's global random generators are seeded when an env is made or reset."""


class _VectorEnvClass(ABCMeta):
    """Adds a hint to the class in f-strings, because Stable-Baselines3 refuses envs of other kinds with such a text."""

    def __format__(cls, spec: str) -> str:
        hint = f"{cls!r} (with Stable-Baselines3, use corral.sb3.make_parallel_env)"
        return format(hint, spec)


class CorralVectorEnv(gym.vector.VectorEnv[Any, Any, Any], ABC, metaclass=_VectorEnvClass):
    """N copies of an env. Episodes restart in the step that ends them, with the final observation kept.

    Subclasses say where the envs live, by giving ``send``, ``recv``, ``_begin_reset``, ``_finish_reset``,
    ``_begin_apply``, ``_finish_apply``, ``drain``, ``restore`` and ``seat``.
    With a root ``seed``, episode ``k`` of env ``i`` is reset with a seed that depends on (seed, i, k) alone;
    without one, seeds are Gymnasium's: given to ``reset``, and None from then on.
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
        """Whether the envs mask their actions; known after the first reset."""
        self.mask_dtype: np.dtype[Any] | None = None
        """The dtype of the masks in the envs' infos; None where infos have none. Known after the first reset."""
        self.state = CallState.IDLE
        self.arrays: StepArrays

    # ---- what a subclass gives -------------------------------------------------------------------------------

    @abstractmethod
    def _begin_reset(
        self, seeds: list[int | None], options: list[dict[str, Any] | None], chosen: npt.NDArray[np.bool_] | None
    ) -> None:
        """Ask for an episode to begin in every env, or in the ``chosen`` ones; each list has an entry for each env."""

    @abstractmethod
    def _finish_reset(self, timeout: float | None = None) -> list[InfoRow]:
        """Wait for it; sets ``has_masks`` and ``mask_dtype``."""

    @abstractmethod
    def _begin_apply(self, function: Callable[[Env], Any], envs: Sequence[int] | None) -> None:
        """Ask for ``function(env)`` to be called where each env lives."""

    @abstractmethod
    def _finish_apply(self, timeout: float | None = None) -> list[Any]:
        """Wait for the results, in the order of ``envs``."""

    @abstractmethod
    def send(self) -> None:
        """Begin a step with the actions that are in ``arrays.actions``."""

    @abstractmethod
    def recv(self, timeout: float | None = None) -> list[InfoRow]:
        """Finish the step: ``arrays`` hold its outcome. Infos only in mode ``full``, and only where there are any."""

    @abstractmethod
    def drain(self) -> EnvReport:
        """What there is to say since the last call."""

    def drain_recovery_counts(self) -> RecoveryCounts:
        """What was mended since the last ``drain``, as far as it is known here."""
        return RecoveryCounts()

    @abstractmethod
    def restore(self, positions: Sequence[EnvPosition], there: Collection[int] = ()) -> list[int]:
        """Bring every env to a position, except those that are ``there`` already; after a reset.

        Returns the envs that did not get there, whose episodes end in the next step.
        """

    @abstractmethod
    def seat(self, setup: OpponentSamplerSpec, shared: SharedArrays) -> None:
        """Let ``setup``, built wherever envs live, decide on the opponents of the episodes that begin from now on."""

    # ---- for training ----------------------------------------------------------------------------------------

    @property
    def masks(self) -> npt.NDArray[np.bool_] | None:
        """The current masks [N, A], or None if the envs have none."""
        return self.arrays.masks if self.has_masks else None

    def reset_arrays(
        self, seeds: list[int | None] | None = None, options: list[dict[str, Any] | None] | None = None
    ) -> list[InfoRow]:
        """Reset every env; ``arrays.observations`` and ``masks`` hold the outcome. Lists have an entry for each env."""
        calls.check_state(self, self.state, "reset")
        nothing: list[Any] = [None] * self.num_envs
        self._begin_reset(seeds or nothing, options or nothing, None)
        return self._finish_reset()

    def apply(
        self, function: Callable[[Env], Any], envs: Sequence[int] | None = None, name: str = "apply"
    ) -> list[Any]:
        """Call ``function(env)`` where each env lives; the results in the order of ``envs``. Errors name the call."""
        calls.check_state(self, self.state, name)
        self._begin_apply(function, envs)
        return self._finish_apply()

    # ---- Gymnasium -------------------------------------------------------------------------------------------

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset every env, or those where ``options["reset_mask"]`` is true, and return what all of them show.

        An int seeds env ``i`` with ``seed + i``; a sequence gives each its own.
        """
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: dict[str, Any] | None = None) -> None:
        """Begin a reset."""
        calls.check_state(self, self.state, "reset_async")
        seeds = calls.to_seeds(seed, self.num_envs) or [None] * self.num_envs
        rest, chosen = calls.split_reset_mask(options, self.arrays.episode)
        self._begin_reset(seeds, [rest] * self.num_envs, chosen)

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

        If it takes longer than ``timeout`` seconds, there is a ``TimeoutError``. The step goes on, and ``step_wait``
        can be called again. Envs in this process (serial) step here, and are not interrupted.
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

        def use(env: Env) -> Any:
            found = env.get_wrapper_attr(name)
            return found(*args, **kwargs) if callable(found) else found

        calls.check_state(self, self.state, "call_async")
        self._begin_apply(use, None)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Finish the call that ``call_async`` began; for ``timeout`` see ``step_wait``."""
        return tuple(self._wait("call", self._finish_apply, timeout))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's random numbers."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Each env's random numbers; from a worker process, a copy of them."""
        return self.get_attr("np_random")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every env."""
        return tuple(self.apply(lambda env: env.get_wrapper_attr(name), name="get_attr"))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env: one value for all, or a list with one for each."""
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"set_attr got {len(values)} values, expected one for each of the {self.num_envs} envs")
        for index, value in enumerate(values):
            self.apply(lambda env, value=value: env.set_wrapper_attr(name, value), [index], "set_attr")  # type: ignore[misc]

    def close(self, **kwargs: Any) -> None:
        """Close the envs, in the middle of a call too."""
        if self.state.is_pending and not self.closed:
            name = self.state.value
            text = f"Calling `close` while waiting for a pending call to `{name}` to complete."
            warnings.warn(text, stacklevel=2)
        super().close(**kwargs)

    def render(self) -> tuple[Any, ...]:
        """A frame of every env."""
        return self.call("render")

    # ---- inside ----------------------------------------------------------------------------------------------

    def _allocate(self) -> StepArrays:
        named = StepArrays.named(self.layout, self.codec, self.num_envs)
        arrays = StepArrays.from_arrays({name: poisoned(shape, dtype) for name, (shape, dtype) in named.items()})
        arrays.begin()
        return arrays

    def _infos(self, rows: list[InfoRow]) -> dict[str, Any]:
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
        calls.check_wait(self, self.state, call)
        try:
            return finish(timeout)
        except TimeoutError:
            if self.state is not CallState(call):  # the env's own: it was raised by a method that was called
                raise
            text = f"The call to `{call}_wait` has timed out after {timeout} s; it can be called again"
            raise CallTimeout(text) from None
