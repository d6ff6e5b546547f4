"""Whom a run plays against: the stages of a curriculum, the pool of its past selves, and how strong each of them is.

One object for every recipe: plain training has one stage, a curriculum several, self-play a mix in which ``current``
and ``checkpoint`` stand for the policy itself. It decides between rollouts; episodes that begin from then on heed it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from corral.config.schema import TrainConfig
from corral.config.values import Stage, parse_mix
from corral.core.errors import CheckpointError, UsageError
from corral.core.files import is_file
from corral.core.schedules import is_due
from corral.core.types import ActorSpec, EpisodeRecord
from corral.envs.opponent_protocol import OPPONENT
from corral.policy.policy import Policy
from corral.rollout.env_costs import FirstMix
from corral.rollout.opponents import Guest, LineupSetup, SharedLineup
from corral.training.model import load
from corral.training.opponents_state import (
    FIRST_RATING,
    OpponentsState,
    PastSelf,
    StageResult,
    check_state,
    check_weights,
    parse_state,
)
from corral.training.roles import roles_of_names
from corral.vec.api import EnvFacts

__all__ = ["CHECKPOINT", "CURRENT", "Opponents", "StageResult", "first_mix", "seat_opponents", "stages_of"]

Array = npt.NDArray[Any]
CURRENT, CHECKPOINT = "current", "checkpoint"
RECENT = 100
"""Games that a win rate is taken over."""
_STEP = 16.0


def stages_of(config: TrainConfig) -> tuple[Stage, ...]:
    """The stages of a run; one without end, if it only has an opponent."""
    if config.opponent is not None:
        return (Stage(name="all", opponent=config.opponent),)
    return config.stages


def _mix_of(stage: Stage, known: Sequence[str] | None = None) -> dict[str, float]:
    """How often whom, by name; a stage with options goes by its own name."""
    return {stage.name: 1.0} if stage.opponent is None else parse_mix(stage.opponent, known)


def seat_opponents(config: TrainConfig, facts: EnvFacts, policy: Policy, actor: ActorSpec) -> Opponents | None:
    """The opponents that a config asks for; None if it leaves them to the env."""
    stages = stages_of(config)
    if not stages:
        return None
    own = _own(stages, facts.opponents)
    if not own:
        raise UsageError(
            f"{config.env} has no opponents to choose from; an env offers them as docs/environments.md says"
        )
    named = {name for stage in stages for name in _mix_of(stage)}
    others = sorted(named - {*dict(own), CURRENT, CHECKPOINT})
    guests = tuple(_guest(name, facts) for name in others)
    # One slot for each past self and the next, the policy as it is now and as it was in the rollout before, and whoever
    # an episode still plays against after leaving the pool.
    slots = config.pool_size + config.n_envs + 3 if named & {CURRENT, CHECKPOINT} else 0
    spaces = facts.observation_space, facts.action_space
    setup = LineupSetup(own, guests, slots, actor if slots else None, *spaces)
    return Opponents(config, SharedLineup(setup, {name: w.cpu() for name, w in policy.state_dict().items()}))


def _own(stages: Sequence[Stage], opponents: Sequence[str]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """What the env offers, by name, and what it is reset with: the stages' own options, or its opponents."""
    if stages[0].opponent is None:
        return tuple((stage.name, stage.options) for stage in stages)
    return tuple((name, {OPPONENT: name}) for name in opponents)


def first_mix(config: TrainConfig) -> FirstMix | None:
    """The opponents of a run's first stage; None if it leaves them to the env."""
    stages = stages_of(config)
    if not stages:
        return None
    return FirstMix(_mix_of(stages[0]), dict(_own(stages, ())) if stages[0].opponent is None else None)


def _guest(name: str, facts: EnvFacts) -> Guest:
    """The policy of another run as an opponent."""
    if not is_file(Path(name) / "config.yaml"):
        raise UsageError(
            f"unknown opponent {name!r}; there are {', '.join(facts.opponents)}, {CURRENT}, {CHECKPOINT}, "
            "a run directory, or a mix as in mixed:random=1,greedy=3"
        )
    model = load(name)
    if (model.observation_space, model.action_space) != (facts.observation_space, facts.action_space):
        raise UsageError(f"the policy of {name} was trained on other observations or actions than this env has")
    return Guest(name, model.actor_setup, model.weights())


class Opponents:
    """Decides between rollouts who the opponents of the next are, and keeps account of who won."""

    def __init__(self, config: TrainConfig, lineup: SharedLineup) -> None:
        self.stages = stages_of(config)
        self.lineup = lineup
        self._pool_size, self._every = config.pool_size, config.snapshot_freq
        self._n_envs, self._budget = config.n_envs, config.timesteps
        setup = lineup.setup
        self._fixed = (*setup.names, *(guest.name for guest in setup.guests))
        self._mixes = [_mix_of(stage, (*self._fixed, CURRENT, CHECKPOINT)) for stage in self.stages]
        self._rated = self.stages[0].opponent is not None
        self._keeps_past = any(CHECKPOINT in mix for mix in self._mixes)
        self._s = OpponentsState(ratings=dict.fromkeys(self._fixed, FIRST_RATING))
        self._kept: dict[int, dict[str, Array]] = {}
        self._row: dict[str, float] = {}
        self._before: tuple[dict[str, Any], dict[int, dict[str, Array]]] | None = None

    # ---- between rollouts ------------------------------------------------------------------------------------

    def prepare(self, weights: Mapping[str, Any], timesteps: int, playing: npt.NDArray[np.int64]) -> None:
        """Say who may be drawn from now on. ``playing`` are the opponents of the episodes that go on."""
        s, first = self._s, self.lineup.setup.first_slot
        self._before = self._snapshot()
        mix = self._mixes[s.stage]
        if self.lineup.setup.slots:
            arrays = {name: np.asarray(w.cpu() if isinstance(w, Tensor) else w) for name, w in weights.items()}
            if self._keeps_past and is_due(self._every, s.looked_at, timesteps):
                slot = self._fill(arrays, playing - first)
                s.pool = [*s.pool, PastSelf(slot, timesteps, s.rating)][-self._pool_size :]
                s.past.append(slot)
            s.now = self._fill(arrays, playing - first)
        s.looked_at = timesteps
        chances = [mix.get(name, 0.0) for name in self._fixed] + [0.0] * self.lineup.setup.slots
        current, past = mix.get(CURRENT, 0.0), mix.get(CHECKPOINT, 0.0)
        for one in s.pool:
            chances[first + one.slot] += past / len(s.pool)
        if s.now is not None:
            chances[first + s.now] += current if s.pool else current + past
        self.lineup.set_chances(chances)

    def _fill(self, weights: dict[str, Array], playing: npt.NDArray[np.int64]) -> int:
        """Put a policy into a slot that neither the pool nor an episode needs."""
        taken = {past.slot for past in self._s.pool} | {int(slot) for slot in playing}
        for slot in self._kept.keys() - taken:
            del self._kept[slot]
        free = next(slot for slot in range(self.lineup.setup.slots) if slot not in taken)
        self._s.past = [slot for slot in self._s.past if slot != free]
        self._kept[free] = {name: array.copy() for name, array in weights.items()}
        self.lineup.write(free, weights)
        return free

    def note(self, episodes: Iterable[EpisodeRecord], timesteps: int) -> str | None:
        """Take in the games of a rollout that ends at ``timesteps``; what to say if a stage ended with it."""
        s = self._s
        self._before, s.noted_at = None, timesteps
        for episode in episodes:
            if episode.env in s.older:
                s.older.remove(episode.env)
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
        s, number = self._s, episode.opponent
        if not self._rated:
            return self._fixed[number]
        if 0 <= number < len(self._fixed):
            kind = self._fixed[number]
            s.ratings[kind], change = _rated(s.ratings[kind], s.rating, episode.outcome, fixed=number == 0)
        else:
            slot = number - self.lineup.setup.first_slot
            kind = CHECKPOINT if slot in s.past else CURRENT
            past = next((one for one in s.pool if one.slot == slot), None)
            if past is None:
                return kind
            past.rating, change = _rated(past.rating, s.rating, episode.outcome)
        s.rating += change
        return kind

    def _promote(self, timesteps: int) -> str | None:
        s, stage = self._s, self.stages[self._s.stage]
        rate = self._stage_rate()
        reached = stage.win_rate is not None and s.games >= stage.games and (rate or 0.0) >= stage.win_rate
        used_up = stage.timesteps is not None and timesteps - s.since >= stage.timesteps
        last = s.stage == len(self.stages) - 1
        if s.ended_at is not None or not (reached or used_up):
            return None
        result = self._result()
        if last:
            s.ended_at = -1 if self._budget is None else self._budget
        else:
            s.results.append(result.to_data())
            s.stage, s.since, s.games = s.stage + 1, timesteps, 0
            s.outcomes, s.rewards = [], []
            s.older = list(range(self._n_envs))
        why = "target reached" if reached else "budget used up"
        return f"stage {stage.name} ended after {result.steps:,} steps: {result.told} ({why})" + (
            "" if last else f"; next: {self.stages[s.stage].name}, {self.stages[s.stage].told}"
        )

    def _stage_rate(self) -> float | None:
        """Of games won; None where there are none yet, or where nobody said that episodes are won or lost."""
        told = self._rated or self.stages[self._s.stage].win_rate is not None
        return float(np.mean(self._s.outcomes)) if told and self._s.outcomes else None

    # ---- what there is to say --------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether the last stage has ended, and the run with it: given another budget, it goes on in that stage."""
        return self._s.ended_at == (-1 if self._budget is None else self._budget)

    @property
    def played(self) -> int:
        """The number of the stage that the games last noted belong to."""
        return int(self._row.get("opponents/stage", 0.0))

    @property
    def yardstick(self) -> dict[str, Any]:
        """What evaluation resets with: the strongest of the env's opponents that the run ever meets, or its last stage.

        It means the same throughout the run.
        """
        own = dict(self.lineup.setup.own)
        met = [name for name in own if any(name in mix for mix in self._mixes)]
        return copy.deepcopy(dict(own[met[-1] if met else roles_of_names(list(own)).teacher]))

    def results(self) -> list[StageResult]:
        """How every stage that has begun went."""
        return [*(StageResult.from_data(result) for result in self._s.results), self._result()]

    def _result(self) -> StageResult:
        """How the stage goes that the run is in."""
        s, stage = self._s, self.stages[self._s.stage]
        rate, reward = self._stage_rate(), float(np.mean(s.rewards)) if s.rewards else None
        how = s.noted_at - s.since, s.games, rate, stage.win_rate, stage.games, reward
        return StageResult(stage.name, stage.told, *how)

    def win_rates(self) -> dict[str, float]:
        """Over the last games against each kind of opponent."""
        recent = self._s.recent if self._rated else {}
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
        s = self._s
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
        return self._s.to_data(), dict(self._kept)

    def state(self) -> dict[str, Any]:
        """Everything but weights; as it was before the rollout that is under way was prepared."""
        return (self._before or self._snapshot())[0]

    def tensors(self) -> dict[str, Tensor]:
        """The weights that are in use, by slot and name. Nothing is copied and nothing will change."""
        kept = (self._before or self._snapshot())[1]
        found = {f"{slot}/{name}": torch.from_numpy(a) for slot, some in kept.items() for name, a in some.items()}
        guests = self.lineup.setup.guests
        return found | {f"guest/{g.name}/{n}": torch.as_tensor(w) for g in guests for n, w in g.weights.items()}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        expected = self.lineup.expected_weights()
        restored = parse_state(state)
        check_state(restored, len(self.stages), self._n_envs, self._fixed, self.lineup.setup.slots)
        check_weights(restored, tensors, expected)
        for guest in self.lineup.setup.guests:
            for name, array in guest.weights.items():
                if not np.array_equal(tensors[f"guest/{guest.name}/{name}"].numpy(), array):
                    raise CheckpointError(f"the opponent {guest.name} is no longer the policy that the run began with")
        self._s = restored
        self._kept, self._before = {}, None
        for key, tensor in tensors.items():
            slot, _, name = key.partition("/")
            if slot != "guest":
                self._kept.setdefault(int(slot), {})[name] = tensor.numpy()
        for number, weights in self._kept.items():
            self.lineup.write(number, weights)

    def has(self, number: int) -> bool:
        """Whether an opponent of this number is there to be played against."""
        slot = number - self.lineup.setup.first_slot
        return 0 <= number < len(self._fixed) or slot in self._kept

    def close(self) -> None:
        """Give up the memory."""
        self.lineup.close()


def _rated(theirs: float, ours: float, outcome: float, fixed: bool = False) -> tuple[float, float]:
    """Their new rating, and how much ours changes, after a game that we scored ``outcome`` in."""
    expected = 1.0 / (1.0 + 10.0 ** ((theirs - ours) / 400.0))
    change = _STEP * (outcome - expected)
    return theirs if fixed else theirs - change, change
