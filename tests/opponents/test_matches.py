"""Matches: both seats of every deal, the same games every time, an honest interval, and workers that may die."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import corral
from corral.core.errors import UsageError
from corral.envs.factory import resolve_env
from corral.envs.lifecycle import probe_env
from corral.opponents import matches
from corral.opponents.matches import play_match, wilson_interval
from tests.toy_envs import Counter, HighCard, MortalHighCard

SMALL = {"n_envs": 4, "n_steps": 64, "eval_freq": 0, "tensorboard": False, "quiet": True, "seed": 1}


@pytest.fixture
def side():
    corral.train(HighCard, timesteps=8192, opponent="miser", learning_rate=1e-3, output_dir="run", **SMALL)
    return corral.load("run").frozen("run")


def test_a_match_is_played_from_both_seats_and_repeats_itself(side):
    seen = []
    match = play_match(resolve_env(HighCard), side, "miser", 60, seed=5, on_games=seen.append)
    assert len(match.outcomes) == len(match.lengths) == sum(seen) == 60
    assert match == play_match(resolve_env(HighCard), side, "miser", 60, seed=5)
    assert match.win_rate > 0.7
    match = play_match(resolve_env(HighCard), side, "random", 60, seed=5)
    assert match.outcomes != play_match(resolve_env(HighCard), side, "random", 60, seed=6).outcomes
    assert match.win_rate_by_seat[0] > match.win_rate_by_seat[1], "who begins wins ties"
    low, high = match.interval
    assert low < match.win_rate < high
    assert np.mean(match.win_rate_by_seat) == pytest.approx(match.win_rate)


def test_a_match_of_one_core_has_the_same_games(side, monkeypatch):
    many = play_match(resolve_env(HighCard), side, "random", 40, seed=0)
    monkeypatch.setattr(matches, "available_cores", lambda: 1)
    assert play_match(resolve_env(HighCard), side, "random", 40, seed=0) == many


def test_two_policies_meet(side):
    weights = {name: np.zeros_like(array) for name, array in side.weights.items()}
    weights["network.pi.4.bias"] = -np.arange(8, dtype=np.float32)  # the lowest card first, as a miser plays
    miser = dataclasses.replace(side, name="rival", weights=weights)
    match = play_match(resolve_env(HighCard), side, miser, 60, seed=0)
    assert match.opponent == "rival"
    assert match.outcomes == play_match(resolve_env(HighCard), side, "miser", 60, seed=0).outcomes


def test_workers_that_die_cost_a_match_nothing(side):
    Path("deaths").mkdir()
    mortal = resolve_env(MortalHighCard, {"directory": str(Path("deaths").absolute())})
    assert play_match(mortal, side, "random", 40, seed=0) == play_match(
        resolve_env(HighCard), side, "random", 40, seed=0
    )
    assert len(list(Path("deaths").iterdir())) >= 2


def test_masks_in_infos_are_heeded_too(side):
    class Told(HighCard):
        action_masks = None

        def __getattribute__(self, name):
            if name == "action_masks":
                raise AttributeError(name)
            return super().__getattribute__(name)

        def reset(self, **kwargs):
            observation, info = super().reset(**kwargs)
            return observation, {**info, "action_mask": self.hands[0].copy()}

        def step(self, action):
            *outcome, info = super().step(action)
            return *outcome, {**info, "action_mask": self.hands[0].copy()}

    told = play_match(resolve_env(Told), side, "random", 20, seed=0)
    assert told == play_match(resolve_env(HighCard), side, "random", 20, seed=0)


def test_wilsons_interval_is_the_one_in_the_books():
    low, high = wilson_interval(0.5, 100)
    assert (round(low, 4), round(high, 4)) == (0.4038, 0.5962)
    assert (
        wilson_interval(0.0, 10)[0] == 0.0 and wilson_interval(1.0, 10)[1] == 1.0 and wilson_interval(1.0, 10)[0] > 0.7
    )


def test_odd_numbers_of_games_are_refused(side):
    with pytest.raises(UsageError, match="even number"):
        play_match(resolve_env(HighCard), side, "random", 7, seed=0)


def test_an_env_says_who_its_opponents_are():
    assert probe_env(resolve_env(HighCard)).opponents == ("random", "miser")
    assert probe_env(resolve_env(Counter)).opponents == ()
