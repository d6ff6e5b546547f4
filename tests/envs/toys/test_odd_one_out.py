"""The env that wants to be looked at: who sees learns it, who does not guesses."""

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

import corral
from corral.envs.factory import make_env
from corral.envs.toys.odd_one_out import Sight

QUIET = {"backend": "serial", "eval_freq": 0, "tensorboard": False, "quiet": True}


class Blind(gym.ObservationWrapper):
    """Shows nothing."""

    def observation(self, observation):
        return np.zeros_like(observation)


def fullest(picture):
    """The quarter with the brightest patch of 7 x 7 pixels."""
    patches = np.lib.stride_tricks.sliding_window_view(picture[:, :, 0] > 150, (7, 7)).mean((2, 3))
    row, column = np.unravel_index(patches.argmax(), patches.shape)
    return int(row >= 18) * 2 + int(column >= 18)


def test_it_is_a_proper_env_whose_figures_can_be_told_apart():
    check_env(Sight(), skip_render_check=True)
    env = make_env("toy-sight", length=50)
    picture, _ = env.reset(seed=0)
    assert picture.shape == (36, 36, 1) and picture.dtype == np.uint8
    rewards = []
    for _ in range(50):
        picture, reward, over, _, _ = env.step(fullest(picture))
        rewards.append(reward)
    assert over and sum(rewards) == 50


def test_pictures_follow_from_the_seed():
    one, two = Sight(), Sight()
    assert np.array_equal(one.reset(seed=3)[0], two.reset(seed=3)[0])
    assert np.array_equal(one.step(0)[0], two.step(1)[0])
    assert not np.array_equal(one.reset(seed=4)[0], two.reset(seed=3)[0])
    assert Sight(render_mode="rgb_array").render().shape == (288, 288, 3)


def test_who_sees_learns_it():
    assert corral.train("toy-sight", seed=1, timesteps=18_432, **QUIET).summary.mean_reward > 0.95 * 16


def test_who_does_not_see_guesses():
    settings = {"n_steps": 64, "batch_size": 128, "n_epochs": 2, "learning_rate": 1e-3, "gamma": 0.0}
    run = corral.train(lambda: Blind(Sight()), timesteps=8_192, cnn="none", seed=1, **settings, **QUIET)
    assert 3 < run.summary.mean_reward < 5  # a quarter of 16
