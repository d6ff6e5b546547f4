"""With the same seed, n_envs and machine, the weights are bit-identical on every backend."""

import itertools
import json
from pathlib import Path

import pytest

import corral
from tests.toy_envs import IntsOnly, Shuffled

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
VARIANTS = {
    "serial": {"backend": "serial"},
    "again": {"backend": "serial"},
    "process": {"backend": "process"},
    "three processes, forked": {"backend": "process", "num_workers": 3, "parallel_start_method": "fork"},
    "one worker": {"backend": "worker", "num_workers": 1},
    "two workers": {"num_workers": 2},
    "three workers, forked": {"num_workers": 3, "parallel_start_method": "fork"},
    "four workers, spawned": {"num_workers": 4, "parallel_start_method": "spawn"},
    "adaptive": {"num_workers": 2, "adaptive": True},
    "with evaluation": {"backend": "serial", "eval_freq": 100, "eval_episodes": 1},
    "with checkpoints and tensorboard": {"backend": "serial", "checkpoint_freq": 100, "tensorboard": True},
}


def weights(env, **settings):
    return corral.train(env, **{**SMALL, "seed": 3, **settings}).summary.weights_sha256


@pytest.mark.parametrize("extra", [{}, {"normalize_obs": True, "normalize_reward": True}], ids=["plain", "normalised"])
def test_weights_do_not_depend_on_the_backend(extra):
    hashes = {variant: weights("CartPole-v1", **settings, **extra) for variant, settings in VARIANTS.items()}
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.parametrize("env", ["Pendulum-v1", "toy-maze", "toy-everything", "Taxi-v4"])
def test_weights_do_not_depend_on_the_backend_for_any_kind_of_space(env):
    assert len({weights(env, backend="serial"), weights(env, num_workers=2), weights(env, num_workers=3)}) == 1


def test_envs_that_accept_only_python_ints_as_actions_are_trained_evaluated_and_replayed():
    backends = {"backend": "serial", "eval_freq": 100}, {"backend": "process", "eval_freq": 100}, {"num_workers": 2}
    assert len({weights(IntsOnly, **backend) for backend in backends}) == 1
    Path("fault.json").write_text(json.dumps({"seed": 1, "actions": {"": [1, 2, 3]}}))
    assert corral.replay_fault("fault.json", IntsOnly) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"overlap": True},
        {"learner_shares": 3},
        {"learner": "torch"},
        {"activation_fn": "gelu"},
        {"overlap": True, "normalize_obs": True, "env": "Pendulum-v1"},
        {"n_envs": 13, "batch_size": 64 * 13, "net_arch": [96, 32]},
    ],
    ids=["overlap", "shares", "torch learner", "torch policy", "overlap, normalised", "13 envs"],
)
def test_weights_do_not_depend_on_the_backend_for_any_learner(settings):
    settings = dict(settings)
    env = settings.pop("env", "CartPole-v1")
    backends = [{"backend": "serial"}, {"backend": "worker", "num_workers": 1}, {"num_workers": 2}, {"num_workers": 4}]
    hashes = [weights(env, **settings, **backend) for backend in backends]
    assert len(set(hashes)) == 1, hashes


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learner_shares": 3, "net_arch": [32]},
        {"learner": "torch"},
        pytest.param({"activation_fn": "gelu"}, marks=pytest.mark.deep),
        {"overlap": True, "normalize_obs": True},
        {"n_envs": 13, "batch_size": 64 * 13, "activation_fn": "relu"},
        {"learner_shares": 2, "kl_ref_coef": 1.0, "critic_warmup": 256},
    ],
    ids=["plain", "shares", "torch learner", "torch policy", "overlap, normalised", "13 envs", "KL reference"],
)
def test_weights_do_not_depend_on_the_backend_with_scored_actions(settings):
    backends = [{"backend": "serial"}, {"backend": "process"}, {"num_workers": 2}, {"num_workers": 3, "adaptive": True}]
    hashes = [weights(lambda: Shuffled(40, 30), **settings, **backend) for backend in backends]
    assert len(set(hashes)) == 1, hashes


def test_learner_shares_and_overlap_change_the_weights():
    plain = weights("CartPole-v1", backend="serial")
    assert plain != weights("CartPole-v1", backend="serial", learner_shares=2)
    assert plain != weights("CartPole-v1", backend="serial", overlap=True)


def test_moving_envs_between_workers_does_not_change_the_weights(monkeypatch):
    """Whatever moves the load balancer proposes, the weights are those of a serial run."""
    assignments = itertools.cycle([[range(1), range(1, 4)], [range(4), range(0)], [range(0), range(4)]])
    proposals = []

    def always_move(balancer, assignment):
        proposals.append(next(assignments))
        return proposals[-1]

    serial_weights = weights("CartPole-v1", backend="serial")
    monkeypatch.setattr("corral.rollout.load_balancer.LoadBalancer.proposal", always_move)
    assert weights("CartPole-v1", num_workers=2, adaptive=True) == serial_weights
    assert len(proposals) == 2


def test_another_seed_gives_different_weights():
    assert weights("CartPole-v1") != weights("CartPole-v1", seed=4)


def test_a_run_without_a_seed_records_the_one_it_drew():
    first = corral.train("CartPole-v1", **SMALL)
    assert weights("CartPole-v1", seed=first.summary.seed) == first.summary.weights_sha256
