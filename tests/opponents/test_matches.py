"""Matches: each deal from both seats, reproducible games, confidence intervals, and recovery from worker deaths."""

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
def policy():
    """Train a policy against ``miser`` and return it frozen."""
    corral.train(HighCard, timesteps=8192, opponent="miser", learning_rate=1e-3, output_dir="run", **SMALL)
    return corral.load("run").frozen("run")


def test_a_match_is_played_from_both_seats_and_reproducible_by_its_seed(policy):
    games_reported = []
    match = play_match(resolve_env(HighCard), policy, "miser", 60, seed=5, on_games=games_reported.append)
    assert len(match.outcomes) == len(match.lengths) == sum(games_reported) == 60
    assert match == play_match(resolve_env(HighCard), policy, "miser", 60, seed=5)
    assert match.win_rate > 0.7
    match = play_match(resolve_env(HighCard), policy, "random", 60, seed=5)
    assert match.outcomes != play_match(resolve_env(HighCard), policy, "random", 60, seed=6).outcomes
    assert match.win_rate_by_seat[0] > match.win_rate_by_seat[1], "the side that begins wins ties"
    low, high = match.interval
    assert low < match.win_rate < high
    assert np.mean(match.win_rate_by_seat) == pytest.approx(match.win_rate)


def test_a_match_on_one_core_has_the_same_games(policy, monkeypatch):
    on_all_cores = play_match(resolve_env(HighCard), policy, "random", 40, seed=0)
    monkeypatch.setattr(matches, "available_cores", lambda: 1)
    assert play_match(resolve_env(HighCard), policy, "random", 40, seed=0) == on_all_cores


def test_two_policies_can_play_a_match(policy):
    weights = {name: np.zeros_like(array) for name, array in policy.weights.items()}
    weights["network.pi.4.bias"] = -np.arange(8, dtype=np.float32)  # prefers the lowest card, as ``miser`` does
    rival = dataclasses.replace(policy, name="rival", weights=weights)
    match = play_match(resolve_env(HighCard), policy, rival, 60, seed=0)
    assert match.opponent == "rival"
    assert match.outcomes == play_match(resolve_env(HighCard), policy, "miser", 60, seed=0).outcomes


def test_worker_deaths_do_not_change_a_match(policy):
    Path("deaths").mkdir()
    mortal = resolve_env(MortalHighCard, {"directory": str(Path("deaths").absolute())})
    expected = play_match(resolve_env(HighCard), policy, "random", 40, seed=0)
    assert play_match(mortal, policy, "random", 40, seed=0) == expected
    assert len(list(Path("deaths").iterdir())) >= 2


def test_a_match_uses_masks_in_infos(policy):
    class MasksInInfos(HighCard):
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

    match = play_match(resolve_env(MasksInInfos), policy, "random", 20, seed=0)
    assert match == play_match(resolve_env(HighCard), policy, "random", 20, seed=0)


def test_the_wilson_interval_has_known_values():
    low, high = wilson_interval(0.5, 100)
    assert (round(low, 4), round(high, 4)) == (0.4038, 0.5962)
    assert wilson_interval(0.0, 10)[0] == 0.0
    low, high = wilson_interval(1.0, 10)
    assert low > 0.7 and high == 1.0


def test_an_odd_number_of_games_is_refused(policy):
    with pytest.raises(UsageError, match="even number"):
        play_match(resolve_env(HighCard), policy, "random", 7, seed=0)


def test_the_env_info_lists_the_opponents_of_an_env():
    assert probe_env(resolve_env(HighCard)).opponents == ("random", "miser")
    assert probe_env(resolve_env(Counter)).opponents == ()
