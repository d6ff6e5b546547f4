"""Rewards and ends as the learner gets them: ``clip_reward`` keeps only the sign, and a lost life ends the return."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import corral
from corral.training import run as training_run

SETTINGS = {
    "n_envs": 2,
    "n_steps": 8,
    "batch_size": 16,
    "n_epochs": 1,
    "timesteps": 32,
    "seed": 1,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
}


class Lives(gym.Env):
    """Episodes of six steps. Every second step loses a life; rewards alternate between 5 and -3."""

    def __init__(self, reports_lives=True):
        self.observation_space = spaces.Box(0, 6, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.reports_lives = reports_lives

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {"life_lost": True}  # must be ignored: no step has been taken

    def step(self, action):
        self.steps += 1
        even = self.steps % 2 == 0
        info = {"life_lost": np.bool_(even), "steps": self.steps} if self.reports_lives else {}
        return np.full(1, self.steps, np.float32), -3.0 if even else 5.0, self.steps == 6, False, info


def make_vector_env(num_envs):
    """Several ``Lives`` envs in one vector env."""
    return SyncVectorEnv([Lives] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def train_and_record(monkeypatch, env, **settings):
    """Train; return the rewards and ends from which advantages were estimated, the metrics rows and the run."""
    inputs = []

    def estimate(rewards, values, terminated, *rest):
        inputs.append((rewards.copy(), terminated.copy()))
        return original(rewards, values, terminated, *rest)

    original = training_run.estimate_advantages
    monkeypatch.setattr(training_run, "estimate_advantages", estimate)
    run = corral.train(env, **SETTINGS, **settings)
    rows = [json.loads(line) for line in Path(run.run_dir, "metrics.jsonl").read_text().splitlines()]
    return np.concatenate([rewards for rewards, _ in inputs]), np.concatenate([ends for _, ends in inputs]), rows, run


@pytest.mark.parametrize("backend", ["serial", "process", "worker"])
def test_a_lost_life_ends_the_return_and_not_the_episode(monkeypatch, backend):
    workers = {} if backend == "serial" else {"num_workers": 2, "parallel_start_method": "fork"}
    rewards, ends, rows, _ = train_and_record(monkeypatch, Lives, backend=backend, **workers)
    assert np.array_equal(ends, np.broadcast_to(np.arange(1, 17)[:, None] % 2 == 0, ends.shape))
    assert set(rewards.ravel().tolist()) == {5.0, -3.0}
    assert rows[-1]["rollout/episodes"] == 4 and rows[-1]["rollout/ep_rew_mean"] == 6
    assert "info/life_lost" not in rows[-1] and "info/steps" in rows[-1]


def test_a_lost_life_in_a_vector_env_ends_the_return(monkeypatch):
    _, ends, rows, _ = train_and_record(monkeypatch, make_vector_env, backend="serial")
    assert np.array_equal(ends, np.broadcast_to(np.arange(1, 17)[:, None] % 2 == 0, ends.shape))
    assert rows[-1]["rollout/episodes"] == 4 and "info/life_lost" not in rows[-1]


def test_without_lives_returns_end_only_with_episodes(monkeypatch):
    _, ends, _, _ = train_and_record(monkeypatch, lambda: Lives(reports_lives=False), backend="serial")
    assert np.flatnonzero(ends[:, 0]).tolist() == [5, 11]


def test_clip_reward_trains_on_the_sign_and_logs_the_original_rewards(monkeypatch):
    rewards, _, rows, run = train_and_record(monkeypatch, Lives, backend="serial", clip_reward=True)
    assert set(rewards.ravel().tolist()) == {1.0, -1.0}
    assert rows[-1]["rollout/ep_rew_mean"] == 6
    unclipped = corral.train(Lives, **SETTINGS, backend="serial")
    assert unclipped.summary.weights_sha256 != run.summary.weights_sha256
