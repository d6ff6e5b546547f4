"""The nouns of the data flow: what an actor answers, what a rollout holds, who collects it.

Start reading here; then ``rollout/collector``, ``ppo/gae``, ``ppo/learner``, ``training/loop``.
Shapes: ``T`` steps, ``N`` envs, ``D`` action numbers, ``A`` mask entries, ``S`` numbers remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from corral.core.files import by_attribute, to_data

if TYPE_CHECKING:
    from corral.core.errors import EnvFault

__all__ = [
    "LIFE_LOST",
    "RECOVERY_KEYS",
    "ActionSample",
    "Actor",
    "ActorSpec",
    "EpisodeRecord",
    "GreedyAction",
    "InfoSums",
    "Leaves",
    "RecoveryCounts",
    "Rollout",
    "RolloutSource",
    "Seconds",
    "Weights",
    "to_columns",
]

Array = npt.NDArray[Any]
LIFE_LOST = "life_lost"
"""In an env's ``info``, if true: the episode goes on, but what follows is not this step's to answer for."""
Leaves = dict[str, Array]
"""Observations (or env actions) as one array per leaf of the space, keyed by the leaf's path."""
Weights = Mapping[str, Any]
"""Named parameters and buffers of a policy."""


class ActionSample(NamedTuple):
    """What an actor decides for one step of N envs."""

    actions: Array  # [N, D], unclipped, as the learner will see them
    log_probs: npt.NDArray[np.float32]  # [N]
    values: npt.NDArray[np.float32] | None  # [N]; None if they are asked for later, with ``Actor.values``
    states: npt.NDArray[np.float32] | None = None  # [N, S] what a policy with a memory remembers afterwards


class GreedyAction(NamedTuple):
    """The most likely actions of N envs."""

    actions: Array  # [N, D]
    states: npt.NDArray[np.float32] | None = None  # [N, S], as of ``ActionSample``


class Actor(Protocol):
    """Turns observations into actions. Given the same noise it gives the same actions, in any process.

    It keeps nothing between calls: what a policy with a memory remembers comes in and goes out as ``states`` [N, S],
    which are zeros when an episode begins.
    """

    n_state: int
    """S, the numbers that are remembered of an env; 0 for a policy without memory, which takes and gives no states."""
    defers_values: bool
    """Whether ``act`` leaves values out, because it is cheaper to ask for many at once."""
    value_leaves: frozenset[str] | None
    """Paths of the leaves that ``values`` looks at; None for all."""

    def load(self, weights: Weights) -> None:
        """Act with these weights from now on; they are copied."""
        ...

    def act(
        self,
        observations: Leaves,
        masks: Array | None,
        noise: npt.NDArray[np.float32],
        states: npt.NDArray[np.float32] | None = None,
    ) -> ActionSample:
        """Sample actions for N envs; ``noise`` [N, D] is all the randomness there is."""
        ...

    def act_greedy(
        self, observations: Leaves, masks: Array | None, states: npt.NDArray[np.float32] | None = None
    ) -> GreedyAction:
        """The most likely action of each env."""
        ...

    def values(
        self, observations: Leaves, envs: npt.NDArray[np.int64], states: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """The value of each observation, [B]; ``envs`` [B] says whose it is."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One finished episode."""

    env: int
    reward: float
    length: int
    truncated: bool
    outcome: float = 0.5
    """Where there is an opponent: 1 won, 0 lost, 0.5 neither (see ``envs.opponent_protocol``)."""
    opponent: int = -1
    """Who that was, as a number of the run's lineup; -1 for whoever the env itself chose."""
    row: int = 0
    """The step of the rollout, from 0, at which it ended."""


@dataclass(slots=True)
class InfoSums:
    """Numbers that envs reported in ``info``, summed over a rollout."""

    total: float = 0.0
    count: int = 0

    def add(self, total: float, count: int = 1) -> None:
        """Take in ``count`` values that sum to ``total``."""
        self.total += total
        self.count += count


@dataclass(frozen=True, slots=True)
class RecoveryCounts:
    """What went wrong with workers and envs and was mended, counted."""

    restarts: int = 0
    """Workers that died or hung and were replaced."""
    recycled: int = 0
    """Workers that were replaced because they used too much memory."""
    retries: int = 0
    """Steps and resets that raised, and then did not in a new copy of the env."""
    env_faults: int = 0
    """Episodes that were cut off, because the env raised at the same step again."""
    inexact: int = 0
    """Episodes that were cut off, because the env could not be brought back to where it was."""

    def __add__(self, other: RecoveryCounts) -> RecoveryCounts:
        return RecoveryCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def counts(self) -> dict[str, int]:
        """Return the counts by the names that they have in checkpoints, metrics and summaries."""
        return to_data(self, RECOVERY_KEYS)

    @classmethod
    def from_counts(cls, counts: Mapping[str, int]) -> RecoveryCounts:
        """Return what ``counts`` gave."""
        return cls(**{name: int(count) for name, count in by_attribute(counts, RECOVERY_KEYS).items()})


RECOVERY_KEYS = {
    "restarts": "restarts",
    "recycled": "recycled",
    "retries": "retries",
    "env_faults": "env_faults",
    "inexact": "inexact",
}
"""Names of the counts in ``state.json``, in ``summary.json`` and, after ``faults/``, in metrics."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where the time of collecting went, in seconds of whoever spent it longest."""

    act: float = 0.0
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of N envs, collected with one version of the policy. Masks and states are optional columns."""

    observations: Leaves  # each [T, N, ...]; frames of ``stacks`` are there once (see ``core.frame_stacks``)
    actions: Array  # [T, N, D]
    log_probs: npt.NDArray[np.float32]  # [T, N]
    values: npt.NDArray[np.float32]  # [T, N]
    rewards: npt.NDArray[np.float64]  # [T, N] as the envs gave them
    terminated: npt.NDArray[np.bool_]  # [T, N]
    truncated: npt.NDArray[np.bool_]  # [T, N]
    life_lost: npt.NDArray[np.bool_]  # [T, N] the return ends here, though the episode goes on
    final_values: npt.NDArray[np.float32]  # [T, N] value of the final observation where truncated, else 0
    next_episode: npt.NDArray[np.int64]  # [T, N] where an episode ended: the number of the one that began then
    next_opponent: npt.NDArray[np.int64]  # [T, N] and who plays the other side in it; -1 for the env's own choice
    last_values: npt.NDArray[np.float32]  # [N] value of the observation after the last step
    last_observations: Leaves  # each [N, ...], and that observation
    masks: npt.NDArray[np.bool_] | None = None  # [T, N, A]
    last_masks: npt.NDArray[np.bool_] | None = None  # [N, A]
    states: npt.NDArray[np.float32] | None = None  # [T, N, S] what was remembered when a step was decided
    last_states: npt.NDArray[np.float32] | None = None  # [N, S] and after the last step
    episodes: tuple[EpisodeRecord, ...] = ()  # finished in this rollout, by (step, env)
    infos: Mapping[str, InfoSums] = field(default_factory=dict)
    seconds: Seconds = Seconds()
    collectors: int = 1
    """Processes that chose actions for it."""
    recovery_counts: RecoveryCounts = RecoveryCounts()
    """On the way to it."""
    faults: tuple[EnvFault, ...] = ()
    """What envs raised in it that did not end the run."""
    stacks: Mapping[str, int] = field(default_factory=dict)
    """By path, the frames of observations that are several of them."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], stacks: Mapping[str, int] | None = None) -> Rollout:
        """A rollout of named arrays (see ``to_columns``), about which nothing is known yet."""
        return cls(**to_columns(arrays), stacks=stacks or {})

    @property
    def n_steps(self) -> int:
        """T."""
        return int(self.rewards.shape[0])

    @property
    def n_envs(self) -> int:
        """N."""
        return int(self.rewards.shape[1])

    def rows_of_steps(self, every: int) -> npt.NDArray[np.int64]:
        """The rows, ``t * N + n``, of every so many steps."""
        return (np.arange(0, self.n_steps, every)[:, None] * self.n_envs + np.arange(self.n_envs)).reshape(-1)


class RolloutSource(Protocol):
    """Decides who acts. The training loop knows nothing else about parallelism."""

    def publish(self, weights: Weights, version: int) -> None:
        """Make ``weights`` the policy of the next rollout that begins."""
        ...

    def begin(self, iteration: int) -> None:
        """Begin to collect the rollout of ``iteration``; a source with workers returns at once."""
        ...

    def collect(self) -> Rollout:
        """The rollout that was begun. Its arrays are reused: by the next one, or with overlap by the one after."""
        ...

    def set_deadline(self, deadline: float) -> None:
        """Raise ``DeadlinePassed`` from ``collect`` if the rollout is not complete by then (``time.perf_counter``)."""
        ...

    def opponents(self) -> npt.NDArray[np.int64]:
        """Who plays the other side in the episode that each env is in, [N]; -1 for the env's own choice."""
        ...

    def env_positions(self) -> dict[str, Array]:
        """Where every env is, at the end of the rollout that was last collected: for a checkpoint."""
        ...

    def restore(self, env_positions: Mapping[str, Array]) -> None:
        """Bring every env to where it was; before the first rollout."""
        ...

    def drain_recovery_counts(self) -> RecoveryCounts:
        """What was mended since the last rollout was collected."""
        ...

    def pids(self) -> list[int]:
        """The process ids of the workers."""
        ...

    def close(self) -> None:
        """Release envs and processes. May be called twice."""
        ...


def to_columns(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Arrays called ``column`` or ``column:leaf`` by column: an array, or one for each leaf."""
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        column, colon, path = name.partition(":")
        if colon:
            columns.setdefault(column, {})[path] = array
        else:
            columns[column] = array
    return columns


class ActorSpec(Protocol):
    """How to build an actor, in any process."""

    @property
    def n_state(self) -> int:
        """Numbers that it remembers of an env."""
        ...

    def build(self, first_env: int, n_envs: int) -> Actor:
        """An actor for consecutive envs of the run; it acts once it has weights."""
        ...
