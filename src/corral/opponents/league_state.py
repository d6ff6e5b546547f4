"""What a checkpoint holds of the opponents of a run, as plain data, and whether it fits the run."""

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
from corral.core.files import by_attribute, to_data

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
_GUEST = "guest"
_MOST = 2**53


@dataclass(frozen=True, slots=True)
class StageResult:
    """How a stage ended."""

    name: str
    played: str
    """Against whom, or with which options."""
    steps: int
    games: int
    win_rate: float | None
    """Over its last games."""
    target: float | None
    needed: int
    """Games that a win rate has to be of, to count."""
    reward: float | None
    """Mean reward of its last games."""

    @property
    def told(self) -> str:
        """How it went, for people."""
        if self.reward is None:
            return "no games"
        won = "" if self.win_rate is None else f"{self.win_rate:.0%} won, "
        return f"{won}mean reward {self.reward:.2f}"

    @property
    def passed(self) -> bool | None:
        """Whether its target was reached; None if it had none."""
        if self.target is None:
            return None
        return self.win_rate is not None and self.win_rate >= self.target and self.games >= self.needed

    def to_data(self) -> dict[str, Any]:
        """Return it as ``state.json`` and ``summary.json`` hold it."""
        return to_data(self, STAGE_RESULT_KEYS)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> StageResult:
        """Return what ``to_data`` gave; a TypeError if there is something else in it."""
        return cls(**by_attribute(data, STAGE_RESULT_KEYS))


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
"""Names of what is known of a stage in ``state.json`` and ``summary.json``."""


@dataclass(slots=True)
class PastSelf:
    """A past self in a slot."""

    slot: int
    step: int
    rating: float


PAST_SELF_KEYS = {"slot": "slot", "step": "step", "rating": "rating"}
"""Names of what is known of a past self in ``state.json``."""


@dataclass(slots=True)
class OpponentsState:
    """All that decides how it goes on."""

    stage: int = 0
    stage_start: int = 0
    """Steps at which the stage began."""
    prepared_at: int = 0
    """Steps at which it was last asked for opponents."""
    counted_at: int = 0
    """Steps up to which games were taken in."""
    ended_at: int | None = None
    """The budget of the run when its last stage ended: with another one it goes on."""
    envs_from_before_stage: list[int] = field(default_factory=list)
    """Envs in an episode that began before the stage did."""
    current_slot: int | None = None
    """The slot that holds the policy as it is."""
    pool: list[PastSelf] = field(default_factory=list)
    past_slots: list[int] = field(default_factory=list)
    """Slots that hold a past self, though perhaps one that left the pool and only ends its games."""
    rating: float = FIRST_RATING
    ratings: dict[str, float] = field(default_factory=dict)
    """Of the opponents that never change."""
    games: int = 0
    """In this stage."""
    outcomes: list[float] = field(default_factory=list)
    """Of the stage's last games."""
    rewards: list[float] = field(default_factory=list)
    """Of the same."""
    recent: dict[str, list[float]] = field(default_factory=dict)
    """Outcomes of the last games against each kind of opponent."""
    results: list[dict[str, Any]] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        """Return a copy as ``state.json`` holds it."""
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
"""Names of what a run knows of its opponents in ``state.json``."""


def parse_state(state: Any) -> OpponentsState:
    """The state in a ``state.json``; a CheckpointError if it has values of other types than a run writes."""
    try:
        attributes = by_attribute(state, OPPONENTS_KEYS)
        if isinstance(pool := attributes.get("pool"), list):
            known = [by_attribute(past, PAST_SELF_KEYS) if isinstance(past, dict) else past for past in pool]
            attributes["pool"] = known
        data = json.dumps(attributes, allow_nan=False)
        found = TypeAdapter(OpponentsState).validate_json(data, strict=True)
        results = [by_attribute(result, STAGE_RESULT_KEYS) for result in found.results]
        TypeAdapter(list[StageResult]).validate_json(json.dumps(results), strict=True)
        _ = [StageResult.from_data(result) for result in found.results]  # refuses what it does not know
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, *rest = first["loc"]
        place = "/".join(map(str, (OPPONENTS_KEYS.get(str(key), key), *rest)))
        raise CheckpointError(f"state.json does not fit: opponents: {one_line(place)}: {first['msg']}") from None
    except (ValueError, TypeError, AttributeError) as error:  # a number that is not finite; an unknown name
        raise CheckpointError(f"state.json does not fit: opponents: {one_line(error)}") from None
    return found


def check_state(state: OpponentsState, stages: int, n_envs: int, fixed: Sequence[str], slots: int) -> None:
    """Refuse a state that no run with so many stages, envs and slots, and with these fixed opponents, has."""
    counts = (state.stage_start, state.prepared_at, state.counted_at, state.games, *(past.step for past in state.pool))
    places = {
        *state.past_slots,
        *(past.slot for past in state.pool),
        *([] if state.current_slot is None else [state.current_slot]),
    }
    if (
        not 0 <= state.stage < stages
        or len(state.results) != state.stage
        or not {*state.envs_from_before_stage} <= {*range(n_envs)}
        or not places <= {*range(slots)}
        or state.ratings.keys() != {*fixed}
        or not all(0 <= count <= _MOST for count in counts)
    ):
        raise CheckpointError("state.json does not fit: its opponents are not those of this run's config")


def check_weights(
    state: OpponentsState, given: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Refuse weights of opponents that do not fit where they go, and a slot in use without all of its weights."""
    used = {*(past.slot for past in state.pool), *([] if state.current_slot is None else [state.current_slot])}
    kept = {key.partition("/")[0] for key in given} | {str(slot) for slot in used} | {_GUEST}
    for key in expected:
        if key.partition("/")[0] in kept and key not in given:
            raise CheckpointError(f"the opponents do not fit this run's config: there is no {one_line(key)}")
    for key, array in given.items():
        wanted = expected.get(key)
        if wanted is None or array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise CheckpointError(f"the opponents do not fit this run's config: {one_line(key)} has no such place")
        if wanted.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"the opponents do not fit this run's config: {one_line(key)} is not finite")
