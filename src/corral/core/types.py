"""The types that the parts of Corral exchange: what an actor returns, what a rollout holds, what collects it.

Start to read Corral here. Then read ``rollout/collector``, ``ppo/gae``, ``ppo/learner`` and ``training/loop``.

One iteration of training is one rollout and one update. A ``RolloutSource`` collects the ``Rollout``: an ``Actor``
chooses actions, the envs step, and every array gets one row per step. The learner then computes advantages from the
rollout and updates the policy. The training loop publishes the new weights to the source for the next rollout.

Comments such as ``# [T, N]`` are shapes of arrays:

- ``T``: steps in a rollout (``n_steps``)
- ``N``: envs (``n_envs``)
- ``B``: rows of any batch
- ``D``: numbers in an action (1 for ``Discrete``, the number of dimensions for ``Box``)
- ``P``: outputs of the policy network (logits and means)
- ``A``: entries in an action mask (see ``core.actions.Head.mask``)
- ``S``: numbers in the state of a recurrent policy
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from corral.core.files import to_attributes, to_data

if TYPE_CHECKING:
    from corral.core.errors import EnvFault

__all__ = [
    "FAULT_KEYS",
    "LIFE_LOST",
    "ActionSample",
    "Actor",
    "ActorSpec",
    "CollectSeconds",
    "EpisodeRecord",
    "FaultCounts",
    "GreedyAction",
    "InfoSums",
    "Leaves",
    "NodeUse",
    "Rollout",
    "RolloutSource",
    "Weights",
    "to_columns",
]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

Leaves = dict[str, Array]
"""Observations (or env actions) as one array per leaf of the space, keyed by the leaf's path (see ``core.spaces``)."""
Weights = Mapping[str, Any]
"""Parameters and buffers of a policy by name, as in torch's ``state_dict``."""
LIFE_LOST = "life_lost"
"""Key of an env's ``info``. A true value ends the return at this step without ending the episode."""


class ActionSample(NamedTuple):
    """Actions that an actor sampled for one step of N envs."""

    actions: Array  # [N, D]
    """Actions as the learner sees them: Gaussian ones are not clipped to the bounds of the space."""
    log_probs: Floats  # [N]
    """Log-probability of each action under the policy that sampled it."""
    values: Floats | None  # [N]
    """Estimated value of each observation; None if the actor computes values later, with ``Actor.values``."""
    states: Floats | None = None  # [N, S]
    """State of a recurrent policy after this step; None for other policies."""


class GreedyAction(NamedTuple):
    """The most likely actions for one step of N envs."""

    actions: Array  # [N, D]
    """Actions in the same form as ``ActionSample.actions``."""
    states: Floats | None = None  # [N, S]
    """State of a recurrent policy after this step; None for other policies."""


class Actor(Protocol):
    """Computes actions and values from observations. The same inputs give the same actions in every process.

    An actor keeps nothing between calls except its weights. The state of a recurrent policy is passed in and returned
    as ``states`` [N, S]; it is zero at the first step of an episode.
    """

    n_state: int
    """S, the size of a recurrent policy's state; 0 for other policies, which take and return no states."""
    defers_values: bool
    """Whether ``act`` returns no values, because computing those of a rollout in one call of ``values`` is faster."""
    value_leaves: frozenset[str] | None
    """Paths of the observation leaves that ``values`` reads; None means all."""

    def load(self, weights: Weights) -> None:
        """Copy these weights, and act with them from the next call on."""
        ...

    def act(
        self, observations: Leaves, masks: Array | None, noise: Floats, states: Floats | None = None
    ) -> ActionSample:
        """Sample an action for each of N envs; ``noise`` [N, D] is the only source of randomness."""
        ...

    def act_greedy(self, observations: Leaves, masks: Array | None, states: Floats | None = None) -> GreedyAction:
        """Return the most likely action for each of N envs."""
        ...

    def values(self, observations: Leaves, envs: Integers, states: Floats | None = None) -> Floats:
        """Return the value [B] of each observation; ``envs`` [B] are the indices of the envs that returned them."""
        ...


class ActorSpec(Protocol):
    """What is needed to build an actor; it can be sent to any process."""

    @property
    def n_state(self) -> int:
        """S, the size of the actor's recurrent state; 0 without one."""
        ...

    def build(self, first_env: int, n_envs: int) -> Actor:
        """Build an actor for envs ``first_env`` to ``first_env + n_envs - 1``; it needs weights before it acts."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """The result of one finished episode."""

    env: int
    """Index of the env in the run."""
    reward: float
    """Sum of the rewards, as the env gave them."""
    length: int
    """Number of steps."""
    truncated: bool
    """Whether the episode was cut off (a time limit or a fault) instead of terminated."""
    outcome: float = 0.5
    """In envs with an opponent: 1 won, 0 lost, 0.5 neither (see ``envs.opponent_protocol``)."""
    opponent: int = -1
    """Index of the opponent in the run's opponent table; -1 if the env chose it."""
    row: int = 0
    """Step of the rollout, from 0, at which the episode ended."""


@dataclass(slots=True)
class InfoSums:
    """Sum and count of one number that envs reported in ``info`` during a rollout; their quotient is its mean."""

    total: float = 0.0
    """Sum of the reported values."""
    count: int = 0
    """Number of the reported values."""

    def add(self, total: float, count: int = 1) -> None:
        """Add ``count`` values that sum to ``total``."""
        self.total += total
        self.count += count


@dataclass(frozen=True, slots=True)
class FaultCounts:
    """Counts of faults of workers and envs from which the run recovered."""

    restarts: int = 0
    """Workers that died or hung and were replaced."""
    recycled: int = 0
    """Workers that were replaced because they used too much memory."""
    retries: int = 0
    """Steps and resets that raised, and succeeded when they were repeated in a new env."""
    env_faults: int = 0
    """Episodes that were truncated because the env raised at the same step again."""
    inexact: int = 0
    """Episodes that were truncated because the env could not be restored to its position in the episode."""

    def __add__(self, other: FaultCounts) -> FaultCounts:
        return FaultCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def counts(self) -> dict[str, int]:
        """Return the counts by their names in checkpoints, metrics and summaries."""
        return to_data(self, FAULT_KEYS)

    @classmethod
    def from_counts(cls, counts: Mapping[str, int]) -> FaultCounts:
        """Return the object whose ``counts()`` is ``counts``."""
        return cls(**{name: int(count) for name, count in to_attributes(counts, FAULT_KEYS).items()})


@dataclass(slots=True)
class NodeUse:
    """What happened on a machine of the cluster, since the process started."""

    groups: int = 0
    """Env groups that are there now."""
    rollouts: int = 0
    """Parts of rollouts, each of one env group, that were collected there."""
    lost: int = 0
    """Workers that were lost there, alone or with the machine."""
    silent: int = 0
    """Workers there that gave no sign of life, so that their envs were stepped elsewhere too."""
    slow: int = 0
    """Workers there that were much slower than all others, so that their envs were stepped elsewhere too."""
    moved: int = 0
    """Env groups that moved from there to a better place."""
    differs: int = 0
    """1 if its results differ from those of the trainer's machine, and the run allows that."""


FAULT_KEYS = {
    "restarts": "restarts",
    "recycled": "recycled",
    "retries": "retries",
    "env_faults": "env_faults",
    "inexact": "inexact",
}
"""Names of the counts, by attribute, in ``state.json``, in ``summary.json`` and, after ``faults/``, in metrics."""


@dataclass(frozen=True, slots=True)
class CollectSeconds:
    """Seconds that collecting a rollout took; with several workers, the largest of theirs."""

    act: float = 0.0
    """Seconds spent on choosing actions and estimating values."""
    step: float = 0.0
    """Seconds spent on stepping envs."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of N envs, collected with one version of the policy's weights.

    Envs are reset in the step in which an episode ends (Gymnasium's ``AutoresetMode.SAME_STEP``): if an episode ends at
    step t, row t + 1 is the first of the next episode.
    """

    observations: Leaves  # each [T, N, ...]
    """Observations that the actions were chosen from. A leaf in ``stacks`` is stored frame by frame."""
    actions: Array  # [T, N, D]
    """Actions as they were sampled, before they were clipped to the bounds of the action space."""
    log_probs: Floats  # [T, N]
    """Log-probability of each action under the policy that collected the rollout."""
    values: Floats  # [T, N]
    """Estimated value of each observation."""
    rewards: npt.NDArray[np.float64]  # [T, N]
    """Rewards as the envs gave them."""
    terminated: Flags  # [T, N]
    """Whether the env ended the episode at this step: no reward follows."""
    truncated: Flags  # [T, N]
    """Whether the episode was cut off at this step, by a time limit or a fault: rewards would have followed."""
    life_lost: Flags  # [T, N]
    """Whether the return ends at this step although the episode continues (see ``LIFE_LOST``)."""
    final_values: Floats  # [T, N]
    """Estimated value of the final observation where an episode was truncated and not terminated; 0 elsewhere."""
    next_episode: Integers  # [T, N]
    """Where an episode ended: the number of the env's next episode, counted from 0. Undefined elsewhere."""
    next_opponent: Integers  # [T, N]
    """Where an episode ended: the opponent of the next one, as in ``EpisodeRecord``. Undefined elsewhere."""
    last_values: Floats  # [N]
    """Estimated value of ``last_observations``."""
    last_observations: Leaves  # each [N, ...]
    """Observations after the last step, from which the next rollout continues."""
    masks: Flags | None = None  # [T, N, A]
    """Which actions were legal; None if the envs have no action masks."""
    last_masks: Flags | None = None  # [N, A]
    """Which actions are legal in ``last_observations``."""
    states: Floats | None = None  # [T, N, S]
    """State of a recurrent policy before each step; None for other policies."""
    last_states: Floats | None = None  # [N, S]
    """State of a recurrent policy after the last step."""
    episodes: tuple[EpisodeRecord, ...] = ()
    """Episodes that ended in this rollout, ordered by step and then by env."""
    infos: Mapping[str, InfoSums] = field(default_factory=dict)
    """Numbers that envs reported in ``info``, by key, over all envs."""
    seconds: CollectSeconds = CollectSeconds()
    """Seconds that this rollout took to collect."""
    collectors: int = 1
    """Number of processes that chose actions for this rollout."""
    fault_counts: FaultCounts = FaultCounts()
    """Recoveries that happened while this rollout was collected."""
    faults: tuple[EnvFault, ...] = ()
    """Exceptions that envs raised in this rollout and that did not end the run."""
    stacks: Mapping[str, int] = field(default_factory=dict)
    """Number of frames in each observation leaf that is a frame stack, by path (see ``core.frame_stacks``)."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], stacks: Mapping[str, int] | None = None) -> Rollout:
        """Return a rollout of arrays that are named as ``to_columns`` expects; all other fields have their defaults."""
        return cls(**to_columns(arrays), stacks=stacks or {})

    @property
    def n_steps(self) -> int:
        """T, the number of steps."""
        return int(self.rewards.shape[0])

    @property
    def n_envs(self) -> int:
        """N, the number of envs."""
        return int(self.rewards.shape[1])

    def rows_of_steps(self, every: int) -> Integers:
        """Return the rows of steps 0, ``every``, 2 * ``every``, ...; the row of step t and env n is ``t * N + n``."""
        return (np.arange(0, self.n_steps, every)[:, None] * self.n_envs + np.arange(self.n_envs)).reshape(-1)


class RolloutSource(Protocol):
    """Collects rollouts, in this process or in workers. The training loop knows nothing else about parallelism."""

    def publish(self, weights: Weights, version: int) -> None:
        """Make ``weights`` the policy of the next rollout that begins. From call to call ``version`` changes by 1."""
        ...

    def begin(self, iteration: int) -> None:
        """Begin to collect the rollout of ``iteration``; a source with workers returns at once."""
        ...

    def collect(self) -> Rollout:
        """Wait for the rollout that was begun and return it.

        The source writes the next rollout into the same arrays; with ``overlap``, the one after the next.
        """
        ...

    def set_deadline(self, deadline: float) -> None:
        """Let ``collect`` raise ``DeadlinePassed`` if the rollout is not complete at this ``time.perf_counter()``."""
        ...

    def opponents(self) -> Integers:
        """Return the opponent [N] in the current episode of each env, as in ``EpisodeRecord.opponent``."""
        ...

    def env_positions(self) -> dict[str, Array]:
        """Return the position of every env in its episode after the last collected rollout, for a checkpoint."""
        ...

    def restore(self, env_positions: Mapping[str, Array]) -> None:
        """Bring every env to the position that ``env_positions`` returned; only before the first rollout."""
        ...

    def take_fault_counts(self) -> FaultCounts:
        """Return how many workers were restarted since the last rollout was collected, and begin again at zero."""
        ...

    def pids(self) -> list[int]:
        """Return the process ids of the workers on this machine."""
        ...

    def node_use(self) -> Mapping[str, NodeUse]:
        """Return what happened on each machine of the cluster, by its address; empty without a cluster."""
        ...

    def close(self) -> None:
        """Close the envs and end the workers; a second call does nothing."""
        ...


def to_columns(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Group arrays by column: ``column`` maps to an array, ``column:path`` to a dictionary of arrays by leaf path."""
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        column, colon, path = name.partition(":")
        if colon:
            columns.setdefault(column, {})[path] = array
        else:
            columns[column] = array
    return columns
