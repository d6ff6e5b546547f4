import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.core.seeding import action_noise, episode_seed, minibatch_generator

SEEDS = st.integers(0, 2**63 - 1)


@given(SEEDS, st.integers(0, 1000), st.integers(0, 10_000))
def test_action_noise_depends_only_on_seed_env_iteration_and_step(seed, env, iteration):
    def noise(first_env, stop_env, iteration=iteration):
        return action_noise(seed, np.arange(first_env, stop_env), iteration, 5, (False, True, False))

    noise_of_four = noise(env, env + 4)
    assert noise_of_four.shape == (5, 4, 3)
    for i in range(4):  # the same noise for an env alone and in a batch with others
        assert np.array_equal(noise_of_four[:, i], noise(env + i, env + i + 1)[:, 0])
    assert np.array_equal(noise_of_four[:, 1:3], noise(env + 1, env + 3))
    assert len(np.unique(noise_of_four)) == noise_of_four.size
    assert not np.isin(noise_of_four, noise(env, env + 4, iteration + 1)).any()


def test_uniform_noise_is_never_zero_and_normal_noise_is_normal():
    uniform, normal = action_noise(3, np.arange(1), 0, 200_000, (False, True))[:, 0].T
    assert uniform.min() > 0 and uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02


@given(SEEDS, st.integers(0, 100), st.integers(0, 100))
def test_episode_seeds_have_32_bits_and_differ_between_envs_and_episodes(seed, env, episode):
    first_seed = episode_seed(seed, env, episode)
    assert 0 <= first_seed < 2**32
    assert len({first_seed, episode_seed(seed, env, episode + 1), episode_seed(seed, env + 1, episode)}) == 3


def test_the_minibatch_order_depends_only_on_seed_and_iteration():
    orders = [minibatch_generator(1, i).permutation(50).tolist() for i in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
