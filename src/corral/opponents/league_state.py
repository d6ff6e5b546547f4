"""The state of a run's opponents as a checkpoint holds it, and checks that it fits the run."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from corral.core.errors import CheckpointError, one_line
from corral.core.files import to_attributes, to_data
from corral.opponents.sampling import FROZEN_POLICY_KEY

__all__ = [
    "FIRST_RATING",
    "OpponentsState",
    "PastSelf",
    "StageResult",
    "check_state",
    "check_weights",
    "parse_state",
]

FIRST_RATING = 1000.0
"""Elo rating of every opponent, and of the policy, at the beginning of a run."""
_LARGEST_COUNT = 2**53


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a stage, or its result so far."""

    name: str
    played: str
    """The opponent or the reset options of the stage, as text."""
    steps: int
    games: int
    win_rate: float | None
    """Win rate over the stage's last ``needed`` games."""
    target: float | None
    """Win rate that ends the stage."""
    needed: int
    """Games over which the win rate is measured; with fewer the target is not reached."""
    reward: float | None
    """Mean reward of the stage's last ``needed`` games."""

    @property
    def description(self) -> str:
        """Win rate and mean reward as text."""
        if self.reward is None:
            return "no games"
        won = "" if self.win_rate is None else f"{self.win_rate:.0%} won, "
        return f"{won}mean reward {self.reward:.2f}"

    @property
    def passed(self) -> bool | None:
        """Whether the target was reached; None if the stage has no target."""
        if self.target is None:
            return None
        return self.win_rate is not None and self.win_rate >= self.target and self.games >= self.needed

    def to_data(self) -> dict[str, Any]:
        """Return the result as ``state.json`` and ``summary.json`` hold it."""
        return to_data(self, STAGE_RESULT_KEYS)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StageResult:
        """Return the result that ``to_data`` wrote; raise a TypeError for an unknown key."""
        return cls(**to_attributes(data, STAGE_RESULT_KEYS))


STAGE_RESULT_KEYS = {
    "name": "name",
    "played": "played",
    "steps": "steps",
    "games": "games",
    "win_rate": "win_rate",
    "target": "target",
    "needed": "needed",
    "reward": "reward",
}
"""Attributes of ``StageResult`` and their keys in ``state.json`` and ``summary.json``."""


@dataclass(slots=True)
class PastSelf:
    """A copy of the policy as it was at an earlier step, which is in the pool of opponents."""

    slot: int
    step: int
    """Steps of the run at which the copy was made."""
    rating: float


PAST_SELF_KEYS = {"slot": "slot", "step": "step", "rating": "rating"}
"""Attributes of ``PastSelf`` and their keys in ``state.json``."""


@dataclass(slots=True)
class OpponentsState:
    """Everything, except weights, that later decisions about opponents and stages depend on."""

    stage: int = 0
    """Index of the stage that the run is in."""
    stage_start: int = 0
    """Steps of the run at which the stage began."""
    prepared_at: int = 0
    """Steps of the run at which opponents were last prepared."""
    counted_at: int = 0
    """Steps of the run up to which games are counted."""
    ended_at: int | None = None
    """The run's budget of steps (-1: none) when its last stage ended; with another budget the stage continues."""
    envs_from_before_stage: list[int] = field(default_factory=list)
    """Envs whose current episode began before the stage; it does not count for the stage."""
    current_slot: int | None = None
    """The slot that holds the current policy."""
    pool: list[PastSelf] = field(default_factory=list)
    """The past versions that may be drawn, oldest first."""
    past_slots: list[int] = field(default_factory=list)
    """Slots that hold a past version, including one that has left the pool but still plays in an episode."""
    rating: float = FIRST_RATING
    """Elo rating of the policy in training."""
    ratings: dict[str, float] = field(default_factory=dict)
    """Elo ratings of the opponents that never change, by name."""
    games: int = 0
    """Games that count for the stage."""
    outcomes: list[float] = field(default_factory=list)
    """Outcomes of the stage's last games: 1 won, 0.5 drawn, 0 lost."""
    rewards: list[float] = field(default_factory=list)
    """Rewards of the stage's last games."""
    recent: dict[str, list[float]] = field(default_factory=dict)
    """Outcomes of the last games against each kind of opponent."""
    results: list[dict[str, Any]] = field(default_factory=list)
    """Results of the stages before this one, as ``StageResult.to_data`` returns them."""

    def to_data(self) -> dict[str, Any]:
        """Return a copy of the state as ``state.json`` holds it."""
        data = copy.deepcopy(to_data(self, OPPONENTS_KEYS))
        return {**data, OPPONENTS_KEYS["pool"]: [to_data(past, PAST_SELF_KEYS) for past in self.pool]}


OPPONENTS_KEYS = {
    "stage": "stage",
    "stage_start": "since",
    "prepared_at": "looked_at",
    "counted_at": "noted_at",
    "ended_at": "ended_at",
    "envs_from_before_stage": "older",
    "current_slot": "now",
    "pool": "pool",
    "past_slots": "past",
    "rating": "rating",
    "ratings": "ratings",
    "games": "games",
    "outcomes": "outcomes",
    "rewards": "rewards",
    "recent": "recent",
    "results": "results",
}
"""Attributes of ``OpponentsState`` and their keys in ``state.json``."""


def parse_state(state: Any) -> OpponentsState:
    """Return the opponents' state in a ``state.json``; raise a CheckpointError if it does not fit."""
    try:
        attributes = to_attributes(state, OPPONENTS_KEYS)
        if isinstance(pool := attributes.get("pool"), list):
            attributes["pool"] = [to_attributes(p, PAST_SELF_KEYS) if isinstance(p, dict) else p for p in pool]
        data = json.dumps(attributes, allow_nan=False)
        parsed = TypeAdapter(OpponentsState).validate_json(data, strict=True)
        results = [to_attributes(result, STAGE_RESULT_KEYS) for result in parsed.results]
        TypeAdapter(list[StageResult]).validate_json(json.dumps(results), strict=True)
        _ = [StageResult.from_data(result) for result in parsed.results]  # raises a TypeError for an unknown key
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = "/".join(OPPONENTS_KEYS.get(str(part), str(part)) for part in first["loc"])
        raise CheckpointError(f"state.json does not fit: opponents: {one_line(path)}: {first['msg']}") from None
    except (ValueError, TypeError, AttributeError) as error:  # a number that is not finite; an unknown key
        raise CheckpointError(f"state.json does not fit: opponents: {one_line(error)}") from None
    return parsed


def check_state(state: OpponentsState, stages: int, n_envs: int, fixed: Sequence[str], slots: int) -> None:
    """Raise a CheckpointError unless the state fits this many stages, envs and slots, and these fixed opponents."""
    counts = (state.stage_start, state.prepared_at, state.counted_at, state.games, *(past.step for past in state.pool))
    used_slots = _drawable_slots(state) | {*state.past_slots}
    if (
        not 0 <= state.stage < stages
        or len(state.results) != state.stage
        or not {*state.envs_from_before_stage} <= {*range(n_envs)}
        or not used_slots <= {*range(slots)}
        or state.ratings.keys() != {*fixed}
        or not all(0 <= count <= _LARGEST_COUNT for count in counts)
    ):
        raise CheckpointError("state.json does not fit: its opponents are not those of this run's config")


def check_weights(
    state: OpponentsState, given: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Raise a CheckpointError for weights of opponents that are missing, unknown, not finite or of another shape.

    Frozen policies, slots that may be drawn and slots of which any weights are given need all of their weights.
    """
    complete = {key.partition("/")[0] for key in given} | {str(slot) for slot in _drawable_slots(state)}
    complete.add(FROZEN_POLICY_KEY)
    for key in expected:
        if key.partition("/")[0] in complete and key not in given:
            raise CheckpointError(f"the opponents do not fit this run's config: there is no {one_line(key)}")
    for key, array in given.items():
        like = expected.get(key)
        if like is None:
            raise CheckpointError(f"the opponents do not fit this run's config: {one_line(key)} is unknown")
        if array.shape != like.shape or array.dtype != like.dtype:
            raise CheckpointError(
                f"the opponents do not fit this run's config: {one_line(key)} is {array.dtype} {array.shape}, "
                f"expected {like.dtype} {like.shape}"
            )
        if like.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"the opponents do not fit this run's config: {one_line(key)} is not finite")


def _drawable_slots(state: OpponentsState) -> set[int]:
    """Return the slots of the pool and of the current policy."""
    pool_slots = {past.slot for past in state.pool}
    return pool_slots if state.current_slot is None else pool_slots | {state.current_slot}
