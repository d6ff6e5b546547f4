"""The league of a run: the stages of its curriculum, the pool of past policies, and the Elo rating of each opponent.

Every recipe uses the one class ``Opponents``: plain training has one stage, a curriculum has several, and self-play has
a mix in which ``current`` and ``checkpoint`` stand for the policy itself. Decisions are made between rollouts and hold
for the episodes that begin afterwards.

Past selves are drawn uniformly, as in fictitious self-play (Heinrich, Lanctot and Silver, 2015, Fictitious Self-Play in
Extensive-Form Games), but only from the newest ``pool_size``. The mix of past versions, the current policy and fixed
opponents is a simple form of the league of AlphaStar (Vinyals et al., 2019, DOI 10.1038/s41586-019-1724-z): there are
no exploiter agents, and opponents that are hard to beat are not drawn more often.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
from corral.opponents.ratings import elo_gain
from corral.opponents.sampling import FROZEN_POLICY_KEY, SharedOpponentTable, weights_by_key
from corral.opponents.stages import mix_of, stages_of

__all__ = ["CHECKPOINT", "CURRENT", "Opponents", "StageResult"]

Array = npt.NDArray[Any]
CURRENT, CHECKPOINT = "current", "checkpoint"
"""Names of the policy itself and of its past versions in a mix of opponents."""
RECENT_GAMES = 100
"""Games over which the win rate against a kind of opponent is measured."""
_NO_BUDGET = -1
"""Stands in files for a run without a budget of steps."""


class _Saved(NamedTuple):
    """What a checkpoint holds of the opponents."""

    state: dict[str, Any]
    slot_weights: dict[int, dict[str, Array]]


class Opponents:
    """Decides between rollouts which opponents may be drawn, counts the games, and ends the stages."""

    def __init__(self, config: TrainConfig, opponent_table: SharedOpponentTable) -> None:
        self.stages = stages_of(config)
        self.opponent_table = opponent_table
        self._pool_size, self._snapshot_freq = config.pool_size, config.snapshot_freq
        self._n_envs = config.n_envs
        self._budget = _NO_BUDGET if config.timesteps is None else config.timesteps
        spec = opponent_table.spec
        self._fixed_names = (*spec.names, *(frozen.name for frozen in spec.frozen_policies))
        self._mixes = [mix_of(stage, (*self._fixed_names, CURRENT, CHECKPOINT)) for stage in self.stages]
        self._has_ratings = self.stages[0].opponent is not None  # otherwise stages have reset options
        self._keeps_past_selves = any(CHECKPOINT in mix for mix in self._mixes)
        self._state = OpponentsState(ratings=dict.fromkeys(self._fixed_names, FIRST_RATING))
        self._slot_weights: dict[int, dict[str, Array]] = {}
        """Copies of the weights in the slots that are in use; a copy never changes, so checkpoints may hold it."""
        self._metrics: dict[str, float] = {}
        self._before_rollout: _Saved | None = None
        """What a checkpoint holds while a rollout is collected; a resumed run prepares that rollout again."""

    # ---- which opponents the next episodes draw --------------------------------------------------------------

    def prepare(self, weights: Mapping[str, Any], timesteps: int, playing: npt.NDArray[np.int64]) -> None:
        """Make ``weights`` the current policy, and set the probability of each opponent in the next episodes.

        ``playing`` [N] holds the opponent numbers of the episodes under way, whose slots must not be overwritten.
        """
        self._before_rollout = self._saved()
        if self.opponent_table.spec.slots:
            playing_slots = {int(slot) for slot in playing - self.opponent_table.spec.first_slot}
            new_slots = self._assign_slots(timesteps, playing_slots)
            self._forget_weights_except(self._pool_slots() | playing_slots)
            self._copy_weights(weights, new_slots)
        self._state.prepared_at = timesteps
        self.opponent_table.set_probabilities(self._draw_probabilities())

    def _assign_slots(self, timesteps: int, playing_slots: set[int]) -> list[int]:
        """Choose a slot for the current policy and, if one is due, for a new past version; return the chosen slots."""
        state, chosen = self._state, []
        if self._keeps_past_selves and is_due(self._snapshot_freq, state.prepared_at, timesteps):
            slot = self._free_slot(playing_slots)
            chosen.append(slot)
            state.pool = [*state.pool, PastSelf(slot, timesteps, state.rating)][-self._pool_size :]
            state.past_slots = [*(past for past in state.past_slots if past != slot), slot]
        state.current_slot = self._free_slot(playing_slots)
        state.past_slots = [past for past in state.past_slots if past != state.current_slot]
        return [*chosen, state.current_slot]

    def _free_slot(self, playing_slots: set[int]) -> int:
        """Return the first slot that neither the pool nor an episode under way uses."""
        used = self._pool_slots() | playing_slots
        return next(slot for slot in range(self.opponent_table.spec.slots) if slot not in used)

    def _pool_slots(self) -> set[int]:
        return {past.slot for past in self._state.pool}

    def _forget_weights_except(self, used_slots: set[int]) -> None:
        for slot in self._slot_weights.keys() - used_slots:
            del self._slot_weights[slot]

    def _copy_weights(self, weights: Mapping[str, Any], slots: Sequence[int]) -> None:
        """Copy the policy into slots: into an array for checkpoints, and into the memory that all processes share."""
        arrays = {name: np.asarray(w.cpu() if hasattr(w, "cpu") else w) for name, w in weights.items()}
        for slot in slots:
            self._slot_weights[slot] = {name: array.copy() for name, array in arrays.items()}
            self.opponent_table.write(slot, arrays)

    def _draw_probabilities(self) -> list[float]:
        """Return the probability of each opponent number in the current stage.

        The past versions in the pool share that of ``checkpoint``; while the pool is empty, the current policy has it.
        """
        state, spec = self._state, self.opponent_table.spec
        mix = self._mixes[state.stage]
        probabilities = [mix.get(name, 0.0) for name in self._fixed_names] + [0.0] * spec.slots
        current, past_selves = mix.get(CURRENT, 0.0), mix.get(CHECKPOINT, 0.0)
        for past in state.pool:
            probabilities[spec.first_slot + past.slot] += past_selves / len(state.pool)
        if state.current_slot is not None:
            probabilities[spec.first_slot + state.current_slot] += current if state.pool else current + past_selves
        return probabilities

    # ---- games and stages ------------------------------------------------------------------------------------

    def record_games(self, episodes: Iterable[EpisodeRecord], timesteps: int) -> str | None:
        """Count the games of a rollout that ends at ``timesteps``; return a message if a stage ends with it."""
        state = self._state
        self._before_rollout, state.counted_at = None, timesteps
        for episode in episodes:
            self._count_for_stage(episode)
            kind = self._rate_game(episode)
            state.recent[kind] = [*state.recent.get(kind, []), episode.outcome][-RECENT_GAMES:]
        self._metrics = self._measure()
        return self._end_stage_if_due(timesteps)

    def _count_for_stage(self, episode: EpisodeRecord) -> None:
        """Count a game for the current stage, unless it began before the stage did."""
        state = self._state
        if episode.env in state.envs_from_before_stage:
            state.envs_from_before_stage.remove(episode.env)
            return
        window = self.stages[state.stage].games
        state.games += 1
        state.outcomes = [*state.outcomes, episode.outcome][-window:]
        state.rewards = [*state.rewards, episode.reward][-window:]

    def _rate_game(self, episode: EpisodeRecord) -> str:
        """Update the Elo ratings after a game, and return the kind of opponent that it was played against.

        The env's weakest opponent, number 0, keeps its rating, which anchors all others. Games against the current
        policy, and against a past version that has left the pool, change no rating.
        """
        state, number = self._state, episode.opponent
        if not self._has_ratings:
            return self._fixed_names[number]
        if 0 <= number < len(self._fixed_names):
            kind = self._fixed_names[number]
            gain = elo_gain(state.rating, state.ratings[kind], episode.outcome)
            if number != 0:
                state.ratings[kind] -= gain
            state.rating += gain
            return kind
        slot = number - self.opponent_table.spec.first_slot
        past_self = next((past for past in state.pool if past.slot == slot), None)
        if past_self is not None:
            gain = elo_gain(state.rating, past_self.rating, episode.outcome)
            past_self.rating -= gain
            state.rating += gain
        return CHECKPOINT if slot in state.past_slots else CURRENT

    def _end_stage_if_due(self, timesteps: int) -> str | None:
        """End the stage if its target is reached or its budget used up; return a message if so."""
        reason = self._stage_end_reason(timesteps)
        if reason is None:
            return None
        result = self._stage_result()
        message = f"stage {result.name} ended after {result.steps:,} steps: {result.description} ({reason})"
        if self._state.stage == len(self.stages) - 1:
            self._state.ended_at = self._budget
            return message
        self._begin_next_stage(result, timesteps)
        next_stage = self.stages[self._state.stage]
        return f"{message}; next: {next_stage.name}, {next_stage.description}"

    def _stage_end_reason(self, timesteps: int) -> str | None:
        """Return why the stage ends now; None if it continues, or if it is the last one and has ended before."""
        state, stage = self._state, self.stages[self._state.stage]
        if state.ended_at is not None:
            return None
        win_rate = self._stage_win_rate() or 0.0
        if stage.win_rate is not None and state.games >= stage.games and win_rate >= stage.win_rate:
            return "target reached"
        if stage.timesteps is not None and timesteps - state.stage_start >= stage.timesteps:
            return "budget used up"
        return None

    def _begin_next_stage(self, result: StageResult, timesteps: int) -> None:
        """Keep the result of the stage that ended, and begin the next one."""
        state = self._state
        state.results.append(result.to_data())
        state.stage, state.stage_start = state.stage + 1, timesteps
        state.games, state.outcomes, state.rewards = 0, [], []
        state.envs_from_before_stage = list(range(self._n_envs))

    def _stage_win_rate(self) -> float | None:
        """Return the win rate over the stage's last games.

        Return None before the first game, and where nothing says that episodes are won or lost: the stages have reset
        options and this one has no target.
        """
        state = self._state
        has_outcomes = self._has_ratings or self.stages[state.stage].win_rate is not None
        return float(np.mean(state.outcomes)) if has_outcomes and state.outcomes else None

    # ---- results and metrics ---------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the last stage has ended, and with it the run; with another budget it continues in that stage."""
        return self._state.ended_at == self._budget

    @property
    def last_counted_stage(self) -> int:
        """Index of the stage that the games counted last belong to."""
        return int(self._metrics.get("opponents/stage", 0.0))

    @property
    def eval_options(self) -> dict[str, Any]:
        """Reset options for evaluation: the strongest of the env's opponents that any stage has, or the last stage.

        They stay the same throughout the run, so that its evaluations can be compared.
        """
        options = dict(self.opponent_table.spec.env_reset_options)
        met = [name for name in options if any(name in mix for mix in self._mixes)]
        name = met[-1] if met else reference_opponents_of_names(list(options)).strongest_scripted
        return copy.deepcopy(dict(options[name]))

    def results(self) -> list[StageResult]:
        """Return the results of all stages that have begun; the last one may be unfinished."""
        return [*(StageResult.from_data(result) for result in self._state.results), self._stage_result()]

    def _stage_result(self) -> StageResult:
        """Return the result so far of the stage that the run is in."""
        state, stage = self._state, self.stages[self._state.stage]
        return StageResult(
            stage.name,
            stage.description,
            steps=state.counted_at - state.stage_start,
            games=state.games,
            win_rate=self._stage_win_rate(),
            target=stage.win_rate,
            needed=stage.games,
            reward=float(np.mean(state.rewards)) if state.rewards else None,
        )

    def win_rates(self) -> dict[str, float]:
        """Return the win rate over the last games against each kind of opponent."""
        recent = self._state.recent if self._has_ratings else {}
        return {kind: float(np.mean(outcomes)) for kind, outcomes in recent.items()}

    def metrics(self) -> dict[str, float]:
        """Return the metrics as they were when games were last counted, before that changed the stage."""
        return self._metrics

    def metric_names(self) -> list[str]:
        """Return all names that ``metrics`` may have in this run."""
        if not self._has_ratings:
            has_targets = any(stage.win_rate is not None for stage in self.stages)
            return ["opponents/stage", *(["opponents/win_rate"] if has_targets else [])]
        met = [name for name in (*self._fixed_names, CURRENT, CHECKPOINT) if any(name in mix for mix in self._mixes)]
        if CHECKPOINT in met and CURRENT not in met:
            met.append(CURRENT)  # while the pool is empty, the current policy is drawn in place of a past version
        names = ["opponents/stage", "opponents/rating", "opponents/win_rate"]
        names += [f"opponents/win_rate/{name}" for name in met]
        names += [f"opponents/rating/{name}" for name in self._fixed_names if name in met]
        return names + (["opponents/pool_size", "opponents/pool_rating"] if self._keeps_past_selves else [])

    def _measure(self) -> dict[str, float]:
        """Return the metrics of the games counted so far."""
        state, win_rate = self._state, self._stage_win_rate()
        metrics = {"opponents/stage": float(state.stage)}
        if self._has_ratings:
            metrics["opponents/rating"] = state.rating
        if win_rate is not None:
            metrics["opponents/win_rate"] = win_rate
        metrics |= {f"opponents/win_rate/{kind}": rate for kind, rate in self.win_rates().items()}
        if self._has_ratings:
            met = [name for name in self._fixed_names if name in state.recent]
            metrics |= {f"opponents/rating/{name}": state.ratings[name] for name in met}
        if state.pool:
            metrics["opponents/pool_size"] = float(len(state.pool))
            metrics["opponents/pool_rating"] = float(np.mean([past.rating for past in state.pool]))
        return metrics

    # ---- checkpoints -----------------------------------------------------------------------------------------

    def _saved(self) -> _Saved:
        return _Saved(self._state.to_data(), dict(self._slot_weights))

    def state(self) -> dict[str, Any]:
        """Return everything but weights, as it was before the rollout under way was prepared."""
        return (self._before_rollout or self._saved()).state

    def weights(self) -> dict[str, Array]:
        """Return the weights in use by their keys in a checkpoint; the arrays are no copies and never change."""
        slot_weights = (self._before_rollout or self._saved()).slot_weights
        return weights_by_key(slot_weights, self.opponent_table.spec.frozen_policies)

    def restore(self, state: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        """Continue from what ``state`` and ``weights`` returned; raise a CheckpointError if it does not fit the run."""
        spec = self.opponent_table.spec
        restored = parse_state(state)
        check_state(restored, len(self.stages), self._n_envs, self._fixed_names, spec.slots)
        check_weights(restored, weights, self.opponent_table.expected_weights())
        for frozen in spec.frozen_policies:
            if any(not np.array_equal(weights[key], array) for key, array in weights_by_key({}, [frozen]).items()):
                raise CheckpointError(f"the opponent {frozen.name} is no longer the policy that the run began with")
        self._state = restored
        self._slot_weights, self._before_rollout = {}, None
        for key, array in weights.items():
            slot, _, name = key.partition("/")
            if slot != FROZEN_POLICY_KEY:
                self._slot_weights.setdefault(int(slot), {})[name] = array
        for number, arrays in self._slot_weights.items():
            self.opponent_table.write(number, arrays)

    def has_opponent(self, number: int) -> bool:
        """Return whether there is an opponent of this number to play against."""
        slot = number - self.opponent_table.spec.first_slot
        return 0 <= number < len(self._fixed_names) or slot in self._slot_weights

    def close(self) -> None:
        """Release the shared memory."""
        self.opponent_table.close()
