import numpy as np
import pytest
import torch

from corral.core.seeding import action_noise
from corral.core.types import ActionSample, GreedyAction
from corral.envs.factory import resolve_env
from corral.policy.policy import Policy
from corral.rollout.actors import actor_spec
from corral.rollout.collector import Collector
from corral.rollout.source import SourceSpec
from corral.rollout.source_local import LocalSource
from corral.rollout.source_workers import WorkerSource
from corral.vec import make_vector_env
from tests.toy_envs import Counter, Masked, Reporter

CPU = torch.device("cpu")


class Scripted:
    """Values are the second observation number; actions are always 0."""

    defers_values = False
    n_state = 0

    def load(self, weights):
        pass

    def act(self, observations, masks, noise, states=None):
        n = len(noise)
        return ActionSample(
            np.zeros((n, 1), np.int64), np.zeros(n, np.float32), self.values(observations, np.arange(n))
        )

    def best(self, observations, masks, states=None):
        return GreedyAction(np.zeros((len(next(iter(observations.values()))), 1), np.int64))

    def values(self, observations, envs, states=None):
        return observations[""][:, 1].astype(np.float32)


def policy_and_setup(observation_space, action_space, n, torchs=False):
    torch.manual_seed(0)
    policy = Policy(observation_space, action_space, activation_fn="gelu" if torchs else "tanh")
    return policy, actor_spec(policy, None, CPU, n)


class Source(LocalSource):
    """Collects with one call."""

    def rollout(self, iteration):
        self.begin(iteration)
        return self.collect()


def source(env, actor=None, n_steps=6, n=2, backend="serial", torchs=False, noise_seed=3, **kwargs):
    vector = make_vector_env(resolve_env(env), n, backend=backend, seed=7, infos="summed", **kwargs)
    if actor is None:
        spaces = vector.single_observation_space, vector.single_action_space
        policy, setup = policy_and_setup(*spaces, n, torchs)
        actor = setup.build(0, n)
        actor.load(policy.state_dict())
    return Source(vector, actor, n_steps, seed=noise_seed)


def test_truncated_episodes_keep_the_value_of_their_final_observation():
    c = source(lambda: Counter(length=4, truncate=True), Scripted())
    r = c.rollout(0)
    c.close()
    assert r.values[:, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert r.truncated[:, 0].tolist() == [False, False, False, True, False, False]
    assert r.final_values[:, 0].tolist() == [0, 0, 0, 4, 0, 0]
    assert r.last_values.tolist() == [2, 2]
    assert r.rewards[:, 0].tolist() == [1, 2, 3, 4, 1, 2]
    assert [(e.env, e.reward, e.length, e.truncated) for e in r.episodes] == [(0, 10, 4, True), (1, 10, 4, True)]


def test_terminated_episodes_are_not_bootstrapped():
    c = source(lambda: Counter(length=4), Scripted())
    r = c.rollout(0)
    c.close()
    assert r.terminated[3].all() and not r.truncated.any() and not r.final_values.any()


def test_episodes_go_on_across_rollouts():
    c = source(lambda: Counter(length=10), Scripted(), n_steps=6)
    first = c.rollout(0)
    assert first.episodes == ()
    second = c.rollout(1)
    c.close()
    assert [(e.length, e.reward) for e in second.episodes] == [(10, 55.0)] * 2


def test_every_cell_of_a_rollout_is_written():
    """Arrays are born poisoned: a missed write would show as NaN or as an impossible number."""
    c = source("toy-everything", n_steps=25, n=3)
    r = c.rollout(0)
    c.close()
    for array in (r.actions, r.log_probs, r.values, r.rewards, r.final_values, r.last_values, *r.observations.values()):
        assert np.isfinite(array).all()
    for path, leaf in r.observations.items():
        if leaf.dtype.kind == "i":
            assert leaf.min() >= 0, path


def test_masks_are_a_column_and_are_obeyed():
    c = source(lambda: Masked("method"), n_steps=30)
    r = c.rollout(0)
    c.close()
    assert r.masks.shape == (30, 2, 4) and (r.masks.sum(-1) == 1).all()
    assert np.array_equal(r.masks.argmax(-1), r.actions[..., 0])
    assert np.allclose(r.log_probs, 0)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "toy-maze", "toy-everything"])
@pytest.mark.parametrize("torchs", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_workers_do_not_change_a_rollout(env, torchs):
    workers_are_one(env, torchs, ("process", 2), ("process", 3), ("worker", 1), ("worker", 2), ("worker", 3))


def test_workers_with_torch_do_not_change_a_rollout():
    workers_are_one("toy-everything", True, ("process", 3), ("worker", 2))


def workers_are_one(env, torchs, *ways):
    rollouts = []
    for backend, workers in (("serial", 1), *ways):
        if backend == "worker":
            c = WorkerSource(SourceSpec("worker", resolve_env(env), 3, workers, 40, 7))
            policy, setup = policy_and_setup(c.env_info.observation_space, c.env_info.action_space, 3, torchs)
            c.connect(setup, policy.state_dict())
            c.publish(policy.state_dict(), 0)
        else:
            c = source(env, n=3, n_steps=40, backend=backend, num_workers=workers, torchs=torchs, noise_seed=7)
        for iteration in range(2):
            c.begin(iteration)
            rollout = c.collect()
        rollouts.append(rollout)
        c.close()
    for other in rollouts[1:]:
        for name in (
            "actions",
            "log_probs",
            "values",
            "rewards",
            "terminated",
            "truncated",
            "final_values",
            "last_values",
            "masks",
        ):
            assert np.array_equal(getattr(rollouts[0], name), getattr(other, name)), name
        assert all(
            np.array_equal(rollouts[0].observations[path], other.observations[path]) for path in other.observations
        )
        assert rollouts[0].episodes == other.episodes


def test_noise_belongs_to_the_env_not_to_its_place_in_the_batch():
    c = source(Counter, Scripted(), n=3)
    c.close()
    noise = Collector(c.env, Scripted(), 6, seed=3, first_env=5)._noise(2)
    assert np.array_equal(noise[:, 1], action_noise(3, np.array([6]), 2, 6, (False,))[:, 0])


def test_numbers_in_infos_come_with_the_rollout():
    c = source(Reporter, Scripted(), n_steps=5)
    r = c.rollout(0)
    c.close()
    assert r.infos["height"].total / r.infos["height"].count == 6.0
