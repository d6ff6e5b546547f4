"""What serial and process vector envs have in common: the arrays of a step, and Gymnasium's face on top of them.

Training reads ``arrays`` directly and never builds an info dictionary; everyone else uses ``reset`` and ``step`` as
of any ``gymnasium.vector.VectorEnv``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from corral.core.actions import ActionCodec
from corral.core.errors import CorralError, EnvFault, UsageError
from corral.core.opponents import OPPONENT, curriculum_of, opponents_of
from corral.core.spaces import Layout, poisoned
from corral.core.stacks import checked_stacks, stacks_of
from corral.core.types import InfoSums, Leaves, Mishaps, to_columns
from corral.core.vector_envs import VectorEnv, plain_metadata
from corral.vec.history import EnvPosition
from corral.vec.shared_memory import SharedArrays

__all__ = [
    "CallState",
    "CorralVectorEnv",
    "Drained",
    "EnvFacts",
    "InfoMode",
    "InfoRow",
    "Seats",
    "SeatsSetup",
    "StepArrays",
    "merge_sums",
]

Array = npt.NDArray[Any]
Env = gym.Env[Any, Any]
InfoMode = Literal["full", "summed"]
"""``full``: infos as the envs give them. ``summed``: numbers are added up where the env lives, the rest is dropped."""


@dataclass(frozen=True, slots=True)
class EnvFacts:
    """What must be known of an env before memory can be laid out; every env of a run must agree on it."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: Mapping[str, Any]
    render_mode: str | None
    opponents: tuple[str, ...] = ()
    """The env's own opponents, if it has any (see ``core.opponents``)."""
    curriculum: tuple[Mapping[str, Any], ...] = ()
    """The stages that the env says it is best learned in, if it does."""
    stacks: Mapping[str, int] = field(default_factory=dict)
    """Its observations that are several frames (see ``core.stacks``)."""

    @classmethod
    def of(cls, env: Env) -> EnvFacts:
        """Read them off an env."""
        spaces = env.observation_space, env.action_space
        asked = opponents_of(env), curriculum_of(env)
        return cls(*spaces, dict(env.metadata or {}), env.render_mode, *asked, stacks=stacks_of(env))

    @classmethod
    def of_vector(cls, vector: VectorEnv) -> EnvFacts:
        """Read them off the envs of a vector env."""
        spaces = vector.single_observation_space, vector.single_action_space
        stacks = checked_stacks(getattr(vector, "frame_stacks", {}), spaces[0])
        return cls(*spaces, plain_metadata(vector), vector.render_mode, stacks=stacks)

    def check_same(self, other: EnvFacts) -> None:
        """Refuse envs of one run that differ."""
        for name in ("observation_space", "action_space", "stacks"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two:
                what = name if name.endswith("s") else f"{name}s"
                raise UsageError(f"envs of one run must be alike, but their {what} differ: {one} and {two}")


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
    def of(cls, arrays: Mapping[str, Array]) -> StepArrays:
        """Assemble from named arrays."""
        return cls(**to_columns(arrays))

    def begin(self) -> None:
        """No env has begun an episode yet."""
        self.episode.fill(-1)
        self.opponent.fill(-1)

    def drawn(self, i: int) -> dict[str, Any] | None:
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
class Drained:
    """What envs had to say since they were last asked."""

    infos: list[dict[str, InfoSums]]
    """By env: in mode ``summed``, the sums of the numbers in infos."""
    mishaps: Mishaps = field(default_factory=Mishaps)
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


class Seats(Protocol):
    """Decides who plays the other side, in whatever process the env lives."""

    @property
    def remembers(self) -> bool:
        """Whether somebody there remembers earlier moves, which no state of an env tells: it has to be replayed."""
        ...

    def draw(self, seed: int) -> int:
        """The opponent of an episode with this seed, by number."""
        ...

    def options(self, opponent: int) -> dict[str, Any]:
        """What an env is reset with, to play against it."""
        ...


class SeatsSetup(Protocol):
    """How to build seats, in any process."""

    def build(self, arrays: Mapping[str, Array]) -> Seats:
        """Seats that read what the trainer writes into ``arrays``."""
        ...


class CallState(Enum):
    """What a vector env is in the middle of."""

    IDLE = "idle"
    STEPPING = "stepping"
    FAILED = "failed"
    CLOSED = "closed"


class CorralVectorEnv(gym.vector.VectorEnv[Any, Any, Any], ABC):
    """N copies of an env. Episodes restart in the step that ends them, with the final observation kept.

    Subclasses say where the envs live, by giving ``send``, ``recv``, ``_reset``, ``apply``, ``drain`` and ``restore``.
    With a root ``seed``, episode ``k`` of env ``i`` is reset with a seed that depends on (seed, i, k) alone;
    without one, seeds are Gymnasium's: given to ``reset``, and None from then on.
    """

    def __init__(self, facts: EnvFacts, n_envs: int) -> None:
        self.num_envs = n_envs
        self.facts = facts
        self.single_observation_space = facts.observation_space
        self.single_action_space = facts.action_space
        self.observation_space = batch_space(facts.observation_space, n_envs)
        self.action_space = batch_space(facts.action_space, n_envs)
        self.metadata = {**facts.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = facts.render_mode
        self.layout = Layout(facts.observation_space)
        self.codec = ActionCodec(facts.action_space)
        self.has_masks: bool | None = None
        """Whether the envs mask their actions; known after the first reset."""
        self.state = CallState.IDLE
        self.arrays: StepArrays

    # ---- what a subclass gives -------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self, seeds: list[int | None], options: list[dict[str, Any] | None]) -> list[InfoRow]:
        """Begin an episode in every env; sets ``has_masks``."""

    @abstractmethod
    def send(self) -> None:
        """Begin a step with the actions that are in ``arrays.actions``."""

    @abstractmethod
    def recv(self) -> list[InfoRow]:
        """Finish the step: ``arrays`` hold its outcome. Infos only in mode ``full``, and only where there are any."""

    @abstractmethod
    def apply(self, function: Callable[[Env], Any], envs: Sequence[int] | None = None) -> list[Any]:
        """Call ``function(env)`` where each env lives; the results in the order of ``envs``."""

    @abstractmethod
    def drain(self) -> Drained:
        """What there is to say since the last call."""

    def drain_mishaps(self) -> Mishaps:
        """What was mended since the last ``drain``, as far as it is known here."""
        return Mishaps()

    @abstractmethod
    def restore(self, positions: Sequence[EnvPosition], there: Collection[int] = ()) -> list[int]:
        """Bring every env to a position, except those that are ``there`` already; after a reset.

        Returns the envs that did not get there, whose episodes end in the next step.
        """

    @abstractmethod
    def seat(self, setup: SeatsSetup, shared: SharedArrays) -> None:
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
        self._expect(CallState.IDLE, "reset")
        nothing: list[Any] = [None] * self.num_envs
        return self._reset(seeds or nothing, options or nothing)

    # ---- Gymnasium -------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every env. An int seeds env ``i`` with ``seed + i``; a list gives each its own."""
        seeds: list[int | None] | None = (
            seed if seed is None or isinstance(seed, list) else list(range(seed, seed + self.num_envs))
        )
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"reset got {len(seeds)} seeds, expected one for each of the {self.num_envs} envs")
        rows = self.reset_arrays(seeds, [options] * self.num_envs)
        return self.layout.batch(self.arrays.observations), self._infos(rows)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every env. Where an episode ended, ``infos`` has ``final_obs`` and ``final_info``."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step."""
        self._expect(CallState.IDLE, "step")
        for path, values in self.codec.layout.unbatch(actions).items():
            target = self.arrays.actions[path]
            if values.shape != target.shape or not np.can_cast(values.dtype, target.dtype, "same_kind"):
                where = f" at {path!r}" if path else ""
                given, expected = f"{values.shape} {values.dtype}", f"{target.shape} {target.dtype}"
                raise ValueError(f"actions{where} are {given}, expected {expected}")
            target[...] = values
        self.send()

    def step_wait(self) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Finish the step that ``step_async`` began."""
        rows = self.recv()
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

        def use(env: Env) -> Any:
            found = env.get_wrapper_attr(name)
            return found(*args, **kwargs) if callable(found) else found

        return tuple(self.apply(use))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every env."""
        return tuple(self.apply(lambda env: env.get_wrapper_attr(name)))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env: one value for all, or a list with one for each."""
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"set_attr got {len(values)} values, expected one for each of the {self.num_envs} envs")
        for index, value in enumerate(values):
            self.apply(lambda env, value=value: env.set_wrapper_attr(name, value), [index])  # type: ignore[misc]

    def render(self) -> tuple[Any, ...]:
        """A frame of every env."""
        return self.call("render")

    # ---- inside ----------------------------------------------------------------------------------------------

    def _allocate(self) -> StepArrays:
        named = StepArrays.named(self.layout, self.codec, self.num_envs)
        arrays = StepArrays.of({name: poisoned(shape, dtype) for name, (shape, dtype) in named.items()})
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
            infos["action_mask"] = self.arrays.masks.copy()
            infos["_action_mask"] = np.ones(self.num_envs, np.bool_)
        return infos

    def _expect(self, state: CallState, doing: str) -> None:
        if self.state is not state:
            advice = {
                CallState.STEPPING: "a step is under way; call recv (or step_wait) first",
                CallState.IDLE: "no step is under way; call send (or step_async) first",
                CallState.FAILED: "an earlier call failed; close it and make a new one",
                CallState.CLOSED: "it is closed",
            }[self.state]
            raise CorralError(f"cannot {doing} this {type(self).__name__}: {advice}")
