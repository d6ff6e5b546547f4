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
COLUMNS = (
    "actions",
    "log_probs",
    "values",
    "rewards",
    "terminated",
    "truncated",
    "final_values",
    "last_values",
    "masks",
)


class ScriptedActor:
    """An actor whose actions are always 0 and whose values are the second number of the observations."""

    defers_values = False
    n_state = 0

    def load(self, weights):
        pass

    def act(self, observations, masks, noise, states=None):
        n = len(noise)
        return ActionSample(
            np.zeros((n, 1), np.int64), np.zeros(n, np.float32), self.values(observations, np.arange(n))
        )

    def act_greedy(self, observations, masks, states=None):
        return GreedyAction(np.zeros((len(next(iter(observations.values()))), 1), np.int64))

    def values(self, observations, envs, states=None):
        return observations[""][:, 1].astype(np.float32)


def policy_and_actor_spec(observation_space, action_space, n_envs, with_torch=False):
    torch.manual_seed(0)
    policy = Policy(observation_space, action_space, activation_fn="gelu" if with_torch else "tanh")
    return policy, actor_spec(policy, None, CPU, n_envs)


class OneCallSource(LocalSource):
    """A source that collects a rollout with one call."""

    def rollout(self, iteration):
        self.begin(iteration)
        return self.collect()


def make_source(
    env, actor=None, n_steps=6, n_envs=2, backend="serial", with_torch=False, noise_seed=3, **vector_env_kwargs
):
    vector = make_vector_env(resolve_env(env), n_envs, backend=backend, seed=7, infos="summed", **vector_env_kwargs)
    if actor is None:
        spaces = vector.single_observation_space, vector.single_action_space
        policy, spec = policy_and_actor_spec(*spaces, n_envs, with_torch)
        actor = spec.build(0, n_envs)
        actor.load(policy.state_dict())
    return OneCallSource(vector, actor, n_steps, seed=noise_seed)


def collect_rollout(env, actor=None, **settings):
    """Return the first rollout of a new source."""
    source = make_source(env, actor, **settings)
    rollout = source.rollout(0)
    source.close()
    return rollout


def test_final_observations_of_truncated_episodes_are_valued():
    rollout = collect_rollout(lambda: Counter(length=4, truncate=True), ScriptedActor())
    assert rollout.values[:, 0].tolist() == [0, 1, 2, 3, 0, 1]
    assert rollout.truncated[:, 0].tolist() == [False, False, False, True, False, False]
    assert rollout.final_values[:, 0].tolist() == [0, 0, 0, 4, 0, 0]
    assert rollout.last_values.tolist() == [2, 2]
    assert rollout.rewards[:, 0].tolist() == [1, 2, 3, 4, 1, 2]
    episodes = [(episode.env, episode.reward, episode.length, episode.truncated) for episode in rollout.episodes]
    assert episodes == [(0, 10, 4, True), (1, 10, 4, True)]


def test_terminated_episodes_are_not_bootstrapped():
    rollout = collect_rollout(lambda: Counter(length=4), ScriptedActor())
    assert rollout.terminated[3].all() and not rollout.truncated.any() and not rollout.final_values.any()


def test_episodes_continue_across_rollouts():
    source = make_source(lambda: Counter(length=10), ScriptedActor(), n_steps=6)
    first = source.rollout(0)
    assert first.episodes == ()
    second = source.rollout(1)
    source.close()
    assert [(episode.length, episode.reward) for episode in second.episodes] == [(10, 55.0)] * 2


def test_every_element_of_a_rollout_is_written():
    """New arrays are poisoned, so a missing write would show as NaN or as the lowest integer."""
    rollout = collect_rollout("toy-everything", n_steps=25, n_envs=3)
    for name in ("actions", "log_probs", "values", "rewards", "final_values", "last_values"):
        assert np.isfinite(getattr(rollout, name)).all(), name
    for path, leaf in rollout.observations.items():
        assert np.isfinite(leaf).all(), path
        if leaf.dtype.kind == "i":
            assert leaf.min() >= 0, path


def test_masks_are_recorded_and_obeyed():
    rollout = collect_rollout(lambda: Masked("method"), n_steps=30)
    assert rollout.masks.shape == (30, 2, 4) and (rollout.masks.sum(-1) == 1).all()
    assert np.array_equal(rollout.masks.argmax(-1), rollout.actions[..., 0])
    assert np.allclose(rollout.log_probs, 0)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "toy-maze", "toy-everything"])
@pytest.mark.parametrize("with_torch", [False, pytest.param(True, marks=pytest.mark.deep)])
def test_rollouts_are_the_same_for_any_backend_and_number_of_workers(env, with_torch):
    assert_rollouts_are_equal(
        env, with_torch, ("process", 2), ("process", 3), ("worker", 1), ("worker", 2), ("worker", 3)
    )


def test_rollouts_with_a_torch_actor_are_the_same_for_any_backend():
    assert_rollouts_are_equal("toy-everything", True, ("process", 3), ("worker", 2))


def assert_rollouts_are_equal(env, with_torch, *backends):
    """Compare the second rollouts of these backends, each with its number of workers, with that of the serial one."""
    rollouts = []
    for backend, num_workers in (("serial", 1), *backends):
        if backend == "worker":
            source = WorkerSource(SourceSpec("worker", resolve_env(env), 3, num_workers, 40, 7))
            policy, spec = policy_and_actor_spec(
                source.env_info.observation_space, source.env_info.action_space, 3, with_torch
            )
            source.connect(spec, policy.state_dict())
            source.publish(policy.state_dict(), 0)
        else:
            source = make_source(
                env, n_envs=3, n_steps=40, backend=backend, num_workers=num_workers, with_torch=with_torch, noise_seed=7
            )
        for iteration in range(2):
            source.begin(iteration)
            rollout = source.collect()
        rollouts.append(rollout)
        source.close()
    for other in rollouts[1:]:
        for name in COLUMNS:
            assert np.array_equal(getattr(rollouts[0], name), getattr(other, name)), name
        for path, leaf in other.observations.items():
            assert np.array_equal(rollouts[0].observations[path], leaf)
        assert rollouts[0].episodes == other.episodes


def test_action_noise_depends_on_the_env_and_not_on_its_index_in_the_batch():
    source = make_source(Counter, ScriptedActor(), n_envs=3)
    source.close()
    noise = Collector(source.env, ScriptedActor(), 6, seed=3, first_env=5)._noise(2)
    assert np.array_equal(noise[:, 1], action_noise(3, np.array([6]), 2, 6, (False,))[:, 0])


def test_numbers_in_infos_are_summed_in_the_rollout():
    rollout = collect_rollout(Reporter, ScriptedActor(), n_steps=5)
    assert rollout.infos["height"].total / rollout.infos["height"].count == 6.0
