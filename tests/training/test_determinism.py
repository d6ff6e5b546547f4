"""Same seed, same n_envs, same machine: bit-identical weights, whoever steps the envs."""

import pytest

import corral

SMALL = {
    "n_envs": 4,
    "n_steps": 64,
    "batch_size": 64,
    "n_epochs": 2,
    "timesteps": 512,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
}
WAYS = {
    "serial": {"backend": "serial"},
    "again": {"backend": "serial"},
    "process": {"backend": "process"},
    "one worker": {"backend": "process", "num_workers": 1},
    "two workers": {"num_workers": 2},
    "four workers, spawned": {"num_workers": 4, "parallel_start_method": "spawn"},
    "three workers, forked": {"num_workers": 3, "parallel_start_method": "fork"},
    "with evaluation": {"backend": "serial", "eval_freq": 100, "eval_episodes": 1},
    "with other bookkeeping": {"backend": "serial", "checkpoint_freq": 100, "tensorboard": True},
}


def weights(env, **settings):
    return corral.train(env, **{**SMALL, "seed": 3, **settings}).summary.weights_sha256


@pytest.mark.parametrize("extra", [{}, {"normalize_obs": True, "normalize_reward": True}], ids=["plain", "normalised"])
def test_weights_do_not_depend_on_who_steps(extra):
    found = {way: weights("CartPole-v1", **settings, **extra) for way, settings in WAYS.items()}
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("env", ["Pendulum-v1", "toy-maze", "toy-everything", "Taxi-v4"])
def test_weights_do_not_depend_on_who_steps_in_any_kind_of_env(env):
    assert len({weights(env, backend="serial"), weights(env, num_workers=2), weights(env, num_workers=3)}) == 1


def test_another_seed_gives_other_weights():
    assert weights("CartPole-v1") != weights("CartPole-v1", seed=4)


def test_a_run_without_a_seed_records_the_one_it_drew():
    first = corral.train("CartPole-v1", **SMALL)
    assert weights("CartPole-v1", seed=first.summary.seed) == first.summary.weights_sha256
