"""Imitation learning from demonstrations, with numpy and with autograd."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.policy.policy import Policy
from corral.ppo.imitation import Demonstrations, imitate
from tests.toy_envs import Shuffled

ACTIVATION = {"numpy": "tanh", "torch": "gelu"}
"""An activation that makes the named engine compute the gradients."""
pytestmark = pytest.mark.usefixtures("one_thread")


def policy_for(observation, action, kind="numpy"):
    torch.manual_seed(0)
    return Policy(observation, action, activation_fn=ACTIVATION[kind])


def separable_demonstrations(rows=3000, n=4, seed=0):
    """Return demonstrations in which the action is the index of the largest number among the legal actions."""
    rng = np.random.default_rng(seed)
    observations = rng.standard_normal((rows, n)).astype(np.float32)
    masks = rng.random((rows, n)) < 0.7
    masks[np.arange(rows), rng.integers(0, n, rows)] = True
    best = np.where(masks, observations, -np.inf).argmax(1)
    return Demonstrations({"": observations}, best, masks=masks, returns=observations[:, 0] * 2)


def scored_demonstrations(rows=2500):
    """Return demonstrations in which only the action features say which action is right."""
    env, observations, masks, actions = Shuffled(20, 6), [], [], []
    observation, _ = env.reset(seed=1)
    for _ in range(rows):
        observations.append(observation)
        masks.append(env.mask)
        actions.append(env.right)
        observation, *_ = env.step(env.right)
    leaves = {path: np.stack([row[path] for row in observations]) for path in observations[0]}
    return Demonstrations(leaves, np.array(actions), masks=np.array(masks))


@pytest.mark.parametrize("kind", ACTIVATION)
def test_separable_actions_and_their_values_are_learned(kind):
    policy = policy_for(spaces.Box(-9, 9, (4,)), spaces.Discrete(4), kind)
    stats = imitate(policy, separable_demonstrations(), epochs=15, batch_size=128, learning_rate=3e-3, seed=1)
    assert stats.held_out_accuracy > 0.95 and stats.accuracy > 0.95 and stats.loss < 0.3
    assert stats.held_out_value_loss < 0.1 and stats.rows == 2700


@pytest.mark.parametrize("kind", ACTIVATION)
def test_a_scoring_policy_learns_from_action_features(kind):
    env = Shuffled(20, 6)
    policy = policy_for(env.observation_space, env.action_space, kind)
    stats = imitate(policy, scored_demonstrations(), epochs=12, batch_size=128, learning_rate=1e-2)
    assert stats.held_out_accuracy > 0.95 and stats.held_out_value_loss is None


@pytest.mark.parametrize("kind", ACTIVATION)
def test_the_same_seed_gives_the_same_policy_and_without_returns_values_stay(kind):
    results = []
    for seed in (1, 1, 2):
        policy = policy_for(spaces.Box(-9, 9, (4,)), spaces.Discrete(4), kind)
        before = {name: weight.clone() for name, weight in policy.state_dict().items()}
        demonstrations = dataclasses.replace(separable_demonstrations(500), returns=None)
        stats = imitate(policy, demonstrations, epochs=2, seed=seed)
        after = policy.state_dict()
        assert all(
            torch.equal(before[name], after[name]) == name.startswith("network.vf")
            for name in before
            if before[name].numel()
        )
        results.append((stats, torch.cat([weight.reshape(-1) for weight in after.values()])))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][1], results[2][1])


@pytest.mark.parametrize("scored", [False, True])
def test_numpy_and_autograd_learn_the_same_weights(scored):
    """Both start from the same weights; only the engine that computes the gradients differs."""
    if scored:
        env = Shuffled(20, 6)
        demonstrations, policy_spaces = scored_demonstrations(300), (env.observation_space, env.action_space)
    else:
        demonstrations, policy_spaces = separable_demonstrations(300), (spaces.Box(-9, 9, (4,)), spaces.Discrete(4))
    policies, stats = [policy_for(*policy_spaces), policy_for(*policy_spaces)], []
    policies[1].mlp_shape = lambda: None  # torch computes the gradients
    for policy in policies:
        result = imitate(policy, demonstrations, epochs=2, batch_size=50, learning_rate=1e-3)
        stats.append((result.loss, result.accuracy, result.held_out_loss, result.held_out_value_loss or 0.0))
    assert stats[0] == pytest.approx(stats[1], rel=1e-3, abs=1e-4)
    for p, q in zip(*(policy.parameters() for policy in policies), strict=True):
        torch.testing.assert_close(p, q, atol=2e-4, rtol=1e-3)


def test_every_action_space_can_be_imitated():
    space = spaces.Dict(a=spaces.MultiDiscrete([3, 2]), b=spaces.Box(-1, 1, (2,)), c=spaces.MultiBinary(2))
    policy = policy_for(spaces.Box(-9, 9, (4,)), space)
    rng = np.random.default_rng(0)
    observations = rng.standard_normal((2000, 4)).astype(np.float32)
    is_first_positive, is_second_positive = observations[:, 0] > 0, observations[:, 1] > 0
    actions = np.column_stack(
        [is_first_positive * 2, is_second_positive, observations[:, 2:], is_second_positive, is_first_positive]
    ).astype(np.float32)
    stats = imitate(policy, Demonstrations({"": observations}, actions), epochs=20, learning_rate=3e-3)
    assert stats.held_out_accuracy > 0.9 and policy.log_std.max() < 0
    continuous_policy = policy_for(spaces.Box(-9, 9, (4,)), spaces.Box(-1, 1, (2,)))
    stats = imitate(continuous_policy, Demonstrations({"": observations}, observations[:, 2:]), epochs=2)
    assert np.isnan(stats.accuracy) and np.isfinite(stats.loss)


def test_demonstrations_of_the_wrong_shape_or_with_masked_actions_are_refused():
    policy = policy_for(spaces.Box(-9, 9, (4,)), spaces.Discrete(4))
    demonstrations = separable_demonstrations(20)
    for changes, message in (
        ({"actions": np.zeros((20, 2))}, r"actions have shape \(20, 2\), expected \(20, 1\)"),
        ({"masks": demonstrations.masks[:, :3]}, r"masks have shape \(20, 3\), expected \(20, 4\)"),
        ({"returns": np.zeros((20, 1))}, r"returns have shape \(20, 1\), expected \(20,\)"),
        ({"actions": (~demonstrations.masks).argmax(1)}, "row [0-9]+ shows action .*, which its mask forbids"),
    ):
        with pytest.raises(UsageError, match=message):
            imitate(policy, dataclasses.replace(demonstrations, **changes))
    with pytest.raises(UsageError, match="leave none to learn from"):
        imitate(policy, demonstrations, held_out=1.0)
