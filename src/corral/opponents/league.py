"""Whom a run plays against: the stages of a curriculum, the pool of its past selves, and how strong each of them is.

One object for every recipe: plain training has one stage, a curriculum several, self-play a mix in which ``current``
and ``checkpoint`` stand for the policy itself. It decides between rollouts; episodes that begin from then on heed it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.config.schema import TrainConfig
from corral.core.errors import CheckpointError
from corral.core.schedules import is_due
from corral.core.types import EpisodeRecord
from corral.opponents.league_state import (
    FIRST_RATING,
    OpponentsState,
    PastSelf,
    StageResult,
    check_state,
    check_weights,
    parse_state,
)
from corral.opponents.presets import reference_opponents_of_names
from corral.opponents.ratings import rate_game
from corral.opponents.stages import mix_of, stages_of
from corral.opponents.table import SharedOpponentTable

__all__ = ["CHECKPOINT", "CURRENT", "Opponents", "StageResult"]

Array = npt.NDArray[Any]
CURRENT, CHECKPOINT = "current", "checkpoint"
RECENT = 100
"""Games that a win rate is taken over."""


class Opponents:
    """Decides between rollouts who the opponents of the next are, and keeps account of who won."""

    def __init__(self, config: TrainConfig, opponent_table: SharedOpponentTable) -> None:
        self.stages = stages_of(config)
        self.opponent_table = opponent_table
        self._pool_size, self._every = config.pool_size, config.snapshot_freq
        self._n_envs, self._budget = config.n_envs, config.timesteps
        setup = opponent_table.setup
        self._fixed = (*setup.names, *(frozen.name for frozen in setup.frozen_policies))
        self._mixes = [mix_of(stage, (*self._fixed, CURRENT, CHECKPOINT)) for stage in self.stages]
        self._rated = self.stages[0].opponent is not None
        self._keeps_past = any(CHECKPOINT in mix for mix in self._mixes)
        self._state = OpponentsState(ratings=dict.fromkeys(self._fixed, FIRST_RATING))
        self._kept: dict[int, dict[str, Array]] = {}
        self._row: dict[str, float] = {}
        self._before: tuple[dict[str, Any], dict[int, dict[str, Array]]] | None = None

    # ---- between rollouts ------------------------------------------------------------------------------------

    def prepare(self, weights: Mapping[str, Any], timesteps: int, playing: npt.NDArray[np.int64]) -> None:
        """Say who may be drawn from now on. ``playing`` are the opponents of the episodes that go on."""
        s, first = self._state, self.opponent_table.setup.first_slot
        self._before = self._snapshot()
        mix = self._mixes[s.stage]
        if self.opponent_table.setup.slots:
            arrays = {name: np.asarray(w.cpu() if hasattr(w, "cpu") else w) for name, w in weights.items()}
            if self._keeps_past and is_due(self._every, s.prepared_at, timesteps):
                slot = self._fill(arrays, playing - first)
                s.pool = [*s.pool, PastSelf(slot, timesteps, s.rating)][-self._pool_size :]
                s.past_slots.append(slot)
            s.current_slot = self._fill(arrays, playing - first)
        s.prepared_at = timesteps
        chances = [mix.get(name, 0.0) for name in self._fixed] + [0.0] * self.opponent_table.setup.slots
        current, past = mix.get(CURRENT, 0.0), mix.get(CHECKPOINT, 0.0)
        for one in s.pool:
            chances[first + one.slot] += past / len(s.pool)
        if s.current_slot is not None:
            chances[first + s.current_slot] += current if s.pool else current + past
        self.opponent_table.set_chances(chances)

    def _fill(self, weights: dict[str, Array], playing: npt.NDArray[np.int64]) -> int:
        """Put a policy into a slot that neither the pool nor an episode needs."""
        taken = {past.slot for past in self._state.pool} | {int(slot) for slot in playing}
        for slot in self._kept.keys() - taken:
            del self._kept[slot]
        free = next(slot for slot in range(self.opponent_table.setup.slots) if slot not in taken)
        self._state.past_slots = [slot for slot in self._state.past_slots if slot != free]
        self._kept[free] = {name: array.copy() for name, array in weights.items()}
        self.opponent_table.write(free, weights)
        return free

    def note(self, episodes: Iterable[EpisodeRecord], timesteps: int) -> str | None:
        """Take in the games of a rollout that ends at ``timesteps``; what to say if a stage ended with it."""
        s = self._state
        self._before, s.counted_at = None, timesteps
        for episode in episodes:
            if episode.env in s.envs_from_before_stage:
                s.envs_from_before_stage.remove(episode.env)
            else:
                s.games += 1
                s.outcomes = [*s.outcomes, episode.outcome][-self.stages[s.stage].games :]
                s.rewards = [*s.rewards, episode.reward][-self.stages[s.stage].games :]
            kind = self._rate(episode)
            s.recent[kind] = [*s.recent.get(kind, []), episode.outcome][-RECENT:]
        self._row = self._measure()
        return self._promote(timesteps)

    def _rate(self, episode: EpisodeRecord) -> str:
        """Move the ratings, as in chess; the kind of opponent it was. The weakest of the env's own stays as it is."""
        s, number = self._state, episode.opponent
        if not self._rated:
            return self._fixed[number]
        if 0 <= number < len(self._fixed):
            kind = self._fixed[number]
            s.ratings[kind], change = rate_game(s.ratings[kind], s.rating, episode.outcome, fixed=number == 0)
        else:
            slot = number - self.opponent_table.setup.first_slot
            kind = CHECKPOINT if slot in s.past_slots else CURRENT
            past = next((one for one in s.pool if one.slot == slot), None)
            if past is None:
                return kind
            past.rating, change = rate_game(past.rating, s.rating, episode.outcome)
        s.rating += change
        return kind

    def _promote(self, timesteps: int) -> str | None:
        s, stage = self._state, self.stages[self._state.stage]
        rate = self._stage_rate()
        reached = stage.win_rate is not None and s.games >= stage.games and (rate or 0.0) >= stage.win_rate
        used_up = stage.timesteps is not None and timesteps - s.stage_start >= stage.timesteps
        last = s.stage == len(self.stages) - 1
        if s.ended_at is not None or not (reached or used_up):
            return None
        result = self._result()
        if last:
            s.ended_at = -1 if self._budget is None else self._budget
        else:
            s.results.append(result.to_data())
            s.stage, s.stage_start, s.games = s.stage + 1, timesteps, 0
            s.outcomes, s.rewards = [], []
            s.envs_from_before_stage = list(range(self._n_envs))
        why = "target reached" if reached else "budget used up"
        return f"stage {stage.name} ended after {result.steps:,} steps: {result.told} ({why})" + (
            "" if last else f"; next: {self.stages[s.stage].name}, {self.stages[s.stage].told}"
        )

    def _stage_rate(self) -> float | None:
        """Of games won; None where there are none yet, or where nobody said that episodes are won or lost."""
        told = self._rated or self.stages[self._state.stage].win_rate is not None
        return float(np.mean(self._state.outcomes)) if told and self._state.outcomes else None

    # ---- what there is to say --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the last stage has ended, and the run with it: given another budget, it goes on in that stage."""
        return self._state.ended_at == (-1 if self._budget is None else self._budget)

    @property
    def played(self) -> int:
        """The number of the stage that the games last noted belong to."""
        return int(self._row.get("opponents/stage", 0.0))

    @property
    def eval_options(self) -> dict[str, Any]:
        """What evaluation resets with: the strongest of the env's opponents that the run ever meets, or its last stage.

        It means the same throughout the run.
        """
        own = dict(self.opponent_table.setup.own)
        met = [name for name in own if any(name in mix for mix in self._mixes)]
        return copy.deepcopy(dict(own[met[-1] if met else reference_opponents_of_names(list(own)).strongest_scripted]))

    def results(self) -> list[StageResult]:
        """How every stage that has begun went."""
        return [*(StageResult.from_data(result) for result in self._state.results), self._result()]

    def _result(self) -> StageResult:
        """How the stage goes that the run is in."""
        s, stage = self._state, self.stages[self._state.stage]
        rate, reward = self._stage_rate(), float(np.mean(s.rewards)) if s.rewards else None
        how = s.counted_at - s.stage_start, s.games, rate, stage.win_rate, stage.games, reward
        return StageResult(stage.name, stage.told, *how)

    def win_rates(self) -> dict[str, float]:
        """Over the last games against each kind of opponent."""
        recent = self._state.recent if self._rated else {}
        return {kind: float(np.mean(outcomes)) for kind, outcomes in recent.items()}

    def metrics(self) -> dict[str, float]:
        """For the row of the iteration whose games were last noted."""
        return self._row

    def metric_names(self) -> list[str]:
        """All names that ``metrics`` can have."""
        met = [name for name in (*self._fixed, CURRENT, CHECKPOINT) if any(name in mix for mix in self._mixes)]
        if CHECKPOINT in met and CURRENT not in met:
            met.append(CURRENT)  # as long as there is no past self, the policy itself plays
        judged = self._rated or any(stage.win_rate is not None for stage in self.stages)
        names = ["opponents/stage", *(["opponents/rating"] if self._rated else [])]
        names += ["opponents/win_rate"] if judged else []
        names += [f"opponents/win_rate/{name}" for name in met if self._rated]
        names += [f"opponents/rating/{name}" for name in self._fixed if self._rated and name in met]
        return names + (["opponents/pool_size", "opponents/pool_rating"] if self._keeps_past else [])

    def _measure(self) -> dict[str, float]:
        s = self._state
        row = {"opponents/stage": float(s.stage)}
        row |= {"opponents/rating": s.rating} if self._rated else {}
        rate = self._stage_rate()
        row |= {} if rate is None else {"opponents/win_rate": rate}
        row |= {f"opponents/win_rate/{kind}": rate for kind, rate in self.win_rates().items()}
        row |= {f"opponents/rating/{name}": s.ratings[name] for name in self._fixed if self._rated and name in s.recent}
        if s.pool:
            ratings = [past.rating for past in s.pool]
            row |= {"opponents/pool_size": float(len(s.pool)), "opponents/pool_rating": float(np.mean(ratings))}
        return row

    # ---- for checkpoints -------------------------------------------------------------------------------------

    def _snapshot(self) -> tuple[dict[str, Any], dict[int, dict[str, Array]]]:
        return self._state.to_data(), dict(self._kept)

    def state(self) -> dict[str, Any]:
        """Everything but weights; as it was before the rollout that is under way was prepared."""
        return (self._before or self._snapshot())[0]

    def weights(self) -> dict[str, Array]:
        """The weights that are in use, by slot and name. Nothing is copied and nothing will change."""
        kept = (self._before or self._snapshot())[1]
        found = {f"{slot}/{name}": a for slot, some in kept.items() for name, a in some.items()}
        frozen_policies = self.opponent_table.setup.frozen_policies
        return found | {f"guest/{g.name}/{n}": np.asarray(w) for g in frozen_policies for n, w in g.weights.items()}

    def restore(self, state: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        """Go on from there."""
        expected = self.opponent_table.expected_weights()
        restored = parse_state(state)
        check_state(restored, len(self.stages), self._n_envs, self._fixed, self.opponent_table.setup.slots)
        check_weights(restored, weights, expected)
        for frozen in self.opponent_table.setup.frozen_policies:
            for name, array in frozen.weights.items():
                if not np.array_equal(weights[f"guest/{frozen.name}/{name}"], array):
                    raise CheckpointError(f"the opponent {frozen.name} is no longer the policy that the run began with")
        self._state = restored
        self._kept, self._before = {}, None
        for key, array in weights.items():
            slot, _, name = key.partition("/")
            if slot != "guest":
                self._kept.setdefault(int(slot), {})[name] = array
        for number, kept in self._kept.items():
            self.opponent_table.write(number, kept)

    def has(self, number: int) -> bool:
        """Whether an opponent of this number is there to be played against."""
        slot = number - self.opponent_table.setup.first_slot
        return 0 <= number < len(self._fixed) or slot in self._kept

    def close(self) -> None:
        """Give up the memory."""
        self.opponent_table.close()
