"""Training runs that must reach a reward. Each fails if a part of the algorithm is broken. Seeds are fixed."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import corral
from tests.toy_envs import ByteDigits, Shuffled

QUICK = {"quiet": True, "seed": 1, "eval_freq": 10**9, "eval_episodes": 20, "tensorboard": False}


class Echo(gym.Env):
    """Rewards an action that equals the observation. Both have the same space, of any kind."""

    def __init__(self, space):
        self.observation_space = self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        self.target = self.observation_space.sample()
        return self.target, {}

    def step(self, action):
        reward = (
            float(np.mean(action == self.target))
            if self.action_space.dtype.kind != "f"
            else 1 - float(np.abs(action - self.target).mean())
        )
        self.count += 1
        self.target = self.observation_space.sample()
        return self.target, reward, False, self.count >= 20, {}


@pytest.mark.parametrize("settings", [{}, {"normalize_obs": True}], ids=["not normalised", "normalised"])
def test_small_numbers_in_a_vector_of_bytes_are_learned(settings):
    common = {"n_envs": 8, "n_steps": 32, "batch_size": 64, "learning_rate": 1e-3, "gamma": 0.5, "backend": "serial"}
    summary = corral.train(ByteDigits, timesteps=4000, **common, **settings, **QUICK).summary
    assert summary.mean_reward > 12, summary


@pytest.mark.deep
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_minigrid_doorkey_is_solved_from_a_flat_vector_of_bytes(seed):
    """Uses the settings of rl-zoo3, which reports 0.964 for Stable-Baselines3.

    Greedy actions may run in circles after the last update, so the test checks the best evaluation and the training
    reward instead of the last evaluation.
    """
    pytest.importorskip("minigrid", reason="needs minigrid: pip install minigrid")

    def make():
        from minigrid.wrappers import FlatObsWrapper

        return FlatObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"))

    zoo_settings = {
        "n_envs": 8,
        "n_steps": 128,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": 2.5e-4,
        "ent_coef": 0.0,
    }
    settings = {**QUICK, "seed": seed, "eval_freq": 10_000, "normalize_obs": True, "normalize_reward": True}
    summary = corral.train(make, timesteps=100_000, **zoo_settings, **settings).summary
    assert summary.best_eval_reward >= 0.95 and summary.mean_reward >= 0.95, summary


@pytest.mark.parametrize(
    ("space", "steps", "at_least"),
    [
        (spaces.Discrete(4), 8_000, 19),
        (spaces.MultiDiscrete([3, 2]), 8_000, 17.5),
        (spaces.MultiBinary(3), 8_000, 19),
        (spaces.Box(-1, 1, (2,)), 24_000, 17),
    ],
    ids=["categorical", "multi-categorical", "bernoulli", "gaussian"],
)
def test_every_distribution_learns_to_echo(space, steps, at_least):
    summary = corral.train(
        lambda: Echo(space),
        timesteps=steps,
        n_envs=8,
        n_steps=32,
        batch_size=64,
        learning_rate=3e-3,
        gamma=0.5,
        **QUICK,
    ).summary
    assert summary.eval_reward >= at_least


def test_a_masked_maze_is_solved():
    summary = corral.train(
        "toy-maze", timesteps=30_000, n_envs=8, n_steps=64, batch_size=128, learning_rate=1e-3, **QUICK
    ).summary
    assert summary.mean_reward > 0.88


def test_scored_actions_are_learned_by_their_features_instead_of_their_index():
    """Indices are shuffled in every step. Scoring the actions' features learns; one output per index does not."""

    def make():
        return Shuffled(60, 6)

    settings = {"timesteps": 8_000, "n_envs": 8, "n_steps": 64, "batch_size": 128, "learning_rate": 3e-3, "gamma": 0.0}
    with_scores = corral.train(make, **settings, **QUICK)
    without_scores = corral.train(make, score_actions=False, **settings, **QUICK)
    assert with_scores.summary.eval_reward > 9 and without_scores.summary.eval_reward < 5
    model, env = corral.load(with_scores.run_dir), make()
    assert model.config.score_actions and not corral.load(without_scores.run_dir).config.score_actions
    observation, _ = env.reset(seed=3)
    n_right = 0
    for _ in range(100):
        action, _ = model.predict(observation, action_masks=env.action_masks())
        n_right += env.right == action
        observation, *_ = env.step(action)
    assert n_right > 90
    assert env.action_space.contains(model.predict(observation, deterministic=False, action_masks=env.mask).action)


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.deep), True])
def test_cartpole_is_learned(overlap):
    settings = {
        "n_envs": 8,
        "overlap": overlap,
        "n_steps": 128,
        "batch_size": 256,
        "learning_rate": 2.5e-3,
        "learning_rate_end": 0.0,
    }
    summary = corral.train("CartPole-v1", timesteps=40_000, **settings, **QUICK).summary
    assert summary.eval_reward > 450


class FiveSteps(gym.Env):
    """Always gives reward 1. The episode is terminated or truncated after 5 steps."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

    def __init__(self, terminates):
        self.terminates = terminates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        over = self.count == 5
        return np.zeros(1, np.float32), 1.0, over and self.terminates, over and not self.terminates, {}


@pytest.mark.parametrize(("terminates", "value"), [(False, 10.0), (True, None)])
def test_truncation_bootstraps_the_value_and_termination_does_not(terminates, value):
    """The observation never changes: with truncation the value is 1 / (1 - gamma), with termination much less."""
    run = corral.train(
        lambda: FiveSteps(terminates),
        timesteps=16_000,
        n_envs=8,
        n_steps=40,
        batch_size=64,
        learning_rate=1e-2,
        gamma=0.9,
        **{**QUICK, "eval_freq": 0},
    ).run_dir
    with torch.no_grad():
        estimate = float(corral.load(run).actor.values({"": np.zeros((1, 1), np.float32)}, np.zeros(1, np.int64))[0])
    assert estimate == pytest.approx(10.0, abs=0.7) if value else estimate < 4.5


def test_normalisation_makes_extreme_scales_learnable():
    class WildScales(Echo):
        def __init__(self):
            super().__init__(spaces.Discrete(2))
            self.observation_space = spaces.Box(-np.inf, np.inf, (2,))

        def reset(self, *, seed=None, options=None):
            self.target = 0
            gym.Env.reset(self, seed=seed)
            self.count = 0
            return self._observe(), {}

        def _observe(self):
            self.target = int(self.np_random.integers(2))
            return np.array([5000 + self.target * 30, self.np_random.normal() * 1e-3], np.float32)

        def step(self, action):
            reward = 400.0 * (action == self.target)
            self.count += 1
            return self._observe(), reward, False, self.count >= 20, {}

    summary = corral.train(
        WildScales,
        timesteps=16_000,
        n_envs=8,
        n_steps=32,
        batch_size=64,
        learning_rate=3e-3,
        gamma=0.5,
        normalize_obs=True,
        normalize_reward=True,
        **QUICK,
    ).summary
    assert summary.eval_reward > 0.95 * 400 * 20
