"""Same seed, same n_envs, same machine: bit-identical weights, whoever steps the envs."""

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
WAYS = {
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


def test_envs_that_take_only_pythons_integers_are_trained_evaluated_and_replayed():
    ways = {"backend": "serial", "eval_freq": 100}, {"backend": "process", "eval_freq": 100}, {"num_workers": 2}
    assert len({weights(IntsOnly, **way) for way in ways}) == 1
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
    ids=["overlap", "shares", "torch learner", "torch policy", "overlap, normalised", "uneven"],
)
def test_weights_do_not_depend_on_workers_in_any_way_to_learn(settings):
    settings = dict(settings)
    env = settings.pop("env", "CartPole-v1")
    ways = [{"backend": "serial"}, {"backend": "worker", "num_workers": 1}, {"num_workers": 2}, {"num_workers": 4}]
    found = [weights(env, **settings, **way) for way in ways]
    assert len(set(found)) == 1, found


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
    ids=["plain", "shares", "torch learner", "torch policy", "overlap, normalised", "uneven", "near a reference"],
)
def test_weights_do_not_depend_on_who_scores_actions(settings):
    ways = [{"backend": "serial"}, {"backend": "process"}, {"num_workers": 2}, {"num_workers": 3, "adaptive": True}]
    found = [weights(lambda: Shuffled(40, 30), **settings, **way) for way in ways]
    assert len(set(found)) == 1, found


def test_shares_and_overlap_belong_to_the_run():
    plain = weights("CartPole-v1", backend="serial")
    assert plain != weights("CartPole-v1", backend="serial", learner_shares=2)
    assert plain != weights("CartPole-v1", backend="serial", overlap=True)


def test_envs_may_move_in_the_middle_of_a_run(monkeypatch):
    """Whatever adaptive decides, the weights are those of a run that decided nothing."""
    shares = itertools.cycle([[range(1), range(1, 4)], [range(4), range(0)], [range(0), range(4)]])
    moved = []

    def always(balance, now):
        moved.append(next(shares))
        return moved[-1]

    alone = weights("CartPole-v1", backend="serial")
    monkeypatch.setattr("corral.rollout.load_balancer.LoadBalancer.proposal", always)
    assert weights("CartPole-v1", num_workers=2, adaptive=True) == alone
    assert len(moved) == 2


def test_another_seed_gives_other_weights():
    assert weights("CartPole-v1") != weights("CartPole-v1", seed=4)


def test_a_run_without_a_seed_records_the_one_it_drew():
    first = corral.train("CartPole-v1", **SMALL)
    assert weights("CartPole-v1", seed=first.summary.seed) == first.summary.weights_sha256
