import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corral.core.seeding import action_noise, episode_seed, minibatch_generator

SEEDS = st.integers(0, 2**63 - 1)


@given(SEEDS, st.integers(0, 1000), st.integers(0, 10_000))
def test_noise_depends_on_its_place_alone(seed, env, iteration):
    first = action_noise(seed, env, iteration, 4, (False, True))
    action_noise(seed, env + 1, iteration, 9, (True,))  # what others draw does not matter
    assert np.array_equal(first, action_noise(seed, env, iteration, 4, (False, True)))
    assert not np.array_equal(first, action_noise(seed, env + 1, iteration, 4, (False, True)))
    assert not np.array_equal(first, action_noise(seed, env, iteration + 1, 4, (False, True)))


def test_uniform_noise_is_never_zero_and_normal_noise_is_normal():
    noise = action_noise(3, 0, 0, 200_000, (False, True))
    uniform, normal = noise.T
    assert uniform.min() > 0 and uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02


@given(SEEDS, st.integers(0, 100), st.integers(0, 100))
def test_episode_seeds_fit_every_env_and_differ(seed, env, episode):
    one = episode_seed(seed, env, episode)
    assert 0 <= one < 2**32
    assert len({one, episode_seed(seed, env, episode + 1), episode_seed(seed, env + 1, episode)}) == 3


def test_minibatch_order_is_fixed_by_seed_and_iteration():
    orders = [minibatch_generator(1, i).permutation(50).tolist() for i in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
