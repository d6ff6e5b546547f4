"""``toy-sight``, where the right action can only be seen in the image: PPO learns it, but not from blank images."""

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

import corral
from corral.envs.factory import make_env
from corral.envs.toys.odd_one_out import Sight

QUIET = {"backend": "serial", "eval_freq": 0, "tensorboard": False, "quiet": True}


class Blind(gym.ObservationWrapper):
    """Replaces every observation by a blank image."""

    def observation(self, observation):
        return np.zeros_like(observation)


def brightest_quarter(image):
    """Return the quarter of the image with the brightest patch of 7 x 7 pixels, which is the right action."""
    patches = np.lib.stride_tricks.sliding_window_view(image[:, :, 0] > 150, (7, 7)).mean((2, 3))
    row, column = np.unravel_index(patches.argmax(), patches.shape)
    return int(row >= 18) * 2 + int(column >= 18)


def test_it_passes_check_env_and_the_brightest_quarter_is_always_right():
    check_env(Sight(), skip_render_check=True)
    env = make_env("toy-sight", length=50)
    image, _ = env.reset(seed=0)
    assert image.shape == (36, 36, 1) and image.dtype == np.uint8
    rewards = []
    for _ in range(50):
        image, reward, terminated, _, _ = env.step(brightest_quarter(image))
        rewards.append(reward)
    assert terminated and sum(rewards) == 50


def test_images_are_determined_by_the_seed():
    first, second = Sight(), Sight()
    assert np.array_equal(first.reset(seed=3)[0], second.reset(seed=3)[0])
    assert np.array_equal(first.step(0)[0], second.step(1)[0])
    assert not np.array_equal(first.reset(seed=4)[0], second.reset(seed=3)[0])
    assert Sight(render_mode="rgb_array").render().shape == (288, 288, 3)


def test_ppo_learns_it_from_images():
    assert corral.train("toy-sight", seed=1, timesteps=18_432, **QUIET).summary.mean_reward > 0.95 * 16


def test_with_blank_images_ppo_does_no_better_than_chance():
    settings = {"n_steps": 64, "batch_size": 128, "n_epochs": 2, "learning_rate": 1e-3, "gamma": 0.0}
    run = corral.train(lambda: Blind(Sight()), timesteps=8_192, cnn="none", seed=1, **settings, **QUIET)
    assert 3 < run.summary.mean_reward < 5  # one of four actions is right in each of 16 steps
