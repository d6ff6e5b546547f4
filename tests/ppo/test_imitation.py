"""Imitation of what was shown, by numpy and by autograd."""

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


@pytest.fixture(autouse=True)
def one_thread():
    """As in training; more of them only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def policy_for(observation, action, kind="numpy"):
    torch.manual_seed(0)
    return Policy(observation, action, activation_fn=ACTIVATION[kind])


def separable(rows=3000, n=4, seed=0):
    """The action is that of the largest number, among the legal ones."""
    rng = np.random.default_rng(seed)
    seen = rng.standard_normal((rows, n)).astype(np.float32)
    masks = rng.random((rows, n)) < 0.7
    masks[np.arange(rows), rng.integers(0, n, rows)] = True
    best = np.where(masks, seen, -np.inf).argmax(1)
    return Demonstrations({"": seen}, best, masks=masks, returns=seen[:, 0] * 2)


def shuffled(rows=2500):
    env, seen, masks, actions = Shuffled(20, 6), [], [], []
    observation, _ = env.reset(seed=1)
    for _ in range(rows):
        seen.append(observation)
        masks.append(env.mask)
        actions.append(env.right)
        observation, *_ = env.step(env.right)
    leaves = {path: np.stack([row[path] for row in seen]) for path in seen[0]}
    return Demonstrations(leaves, np.array(actions), masks=np.array(masks))


@pytest.mark.parametrize("kind", ACTIVATION)
def test_separable_actions_are_learned_and_values_with_them(kind):
    policy = policy_for(spaces.Box(-9, 9, (4,)), spaces.Discrete(4), kind)
    stats = imitate(policy, separable(), epochs=15, batch_size=128, learning_rate=3e-3, seed=1)
    assert stats.held_out_accuracy > 0.95 and stats.accuracy > 0.95 and stats.loss < 0.3
    assert stats.held_out_value_loss < 0.1 and stats.rows == 2700


@pytest.mark.parametrize("kind", ACTIVATION)
def test_a_policy_that_scores_learns_what_the_right_action_looks_like(kind):
    env = Shuffled(20, 6)
    policy = policy_for(env.observation_space, env.action_space, kind)
    stats = imitate(policy, shuffled(), epochs=12, batch_size=128, learning_rate=1e-2)
    assert stats.held_out_accuracy > 0.95 and stats.held_out_value_loss is None


@pytest.mark.parametrize("kind", ACTIVATION)
def test_the_same_seed_gives_the_same_policy_and_no_returns_leave_values_alone(kind):
    found = []
    for seed in (1, 1, 2):
        policy = policy_for(spaces.Box(-9, 9, (4,)), spaces.Discrete(4), kind)
        before = {name: weight.clone() for name, weight in policy.state_dict().items()}
        shown = dataclasses.replace(separable(500), returns=None)
        stats = imitate(policy, shown, epochs=2, seed=seed)
        after = policy.state_dict()
        assert all(
            torch.equal(before[name], after[name]) == name.startswith("network.vf")
            for name in before
            if before[name].numel()
        )
        found.append((stats, torch.cat([weight.reshape(-1) for weight in after.values()])))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][1], found[2][1])


@pytest.mark.parametrize("scored", [False, True])
def test_numpy_and_autograd_learn_the_same(scored):
    """One after the other from the same weights: what differs is who computes."""
    if scored:
        env = Shuffled(20, 6)
        shown, spaces_ = shuffled(300), (env.observation_space, env.action_space)
    else:
        shown, spaces_ = separable(300), (spaces.Box(-9, 9, (4,)), spaces.Discrete(4))
    policies, stats = [policy_for(*spaces_), policy_for(*spaces_)], []
    policies[1].mlp_shape = lambda: None  # leaves it to torch
    for policy in policies:
        found = imitate(policy, shown, epochs=2, batch_size=50, learning_rate=1e-3)
        stats.append((found.loss, found.accuracy, found.held_out_loss, found.held_out_value_loss or 0.0))
    assert stats[0] == pytest.approx(stats[1], rel=1e-3, abs=1e-4)
    for p, q in zip(*(policy.parameters() for policy in policies), strict=True):
        torch.testing.assert_close(p, q, atol=2e-4, rtol=1e-3)


def test_every_kind_of_action_can_be_imitated():
    space = spaces.Dict(a=spaces.MultiDiscrete([3, 2]), b=spaces.Box(-1, 1, (2,)), c=spaces.MultiBinary(2))
    policy = policy_for(spaces.Box(-9, 9, (4,)), space)
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((2000, 4)).astype(np.float32)
    cold, warm = seen[:, 0] > 0, seen[:, 1] > 0
    actions = np.column_stack([cold * 2, warm, seen[:, 2:], warm, cold]).astype(np.float32)
    stats = imitate(policy, Demonstrations({"": seen}, actions), epochs=20, learning_rate=3e-3)
    assert stats.held_out_accuracy > 0.9 and policy.log_std.max() < 0
    only_numbers = policy_for(spaces.Box(-9, 9, (4,)), spaces.Box(-1, 1, (2,)))
    stats = imitate(only_numbers, Demonstrations({"": seen}, seen[:, 2:]), epochs=2)
    assert np.isnan(stats.accuracy) and np.isfinite(stats.loss)


def test_what_does_not_fit_is_refused():
    policy = policy_for(spaces.Box(-9, 9, (4,)), spaces.Discrete(4))
    shown = separable(20)
    for wrong, complaint in (
        ({"actions": np.zeros((20, 2))}, r"actions have shape \(20, 2\), expected \(20, 1\)"),
        ({"masks": shown.masks[:, :3]}, r"masks have shape \(20, 3\), expected \(20, 4\)"),
        ({"returns": np.zeros((20, 1))}, r"returns have shape \(20, 1\), expected \(20,\)"),
        ({"actions": (~shown.masks).argmax(1)}, "row [0-9]+ shows action .*, which its mask forbids"),
    ):
        with pytest.raises(UsageError, match=complaint):
            imitate(policy, dataclasses.replace(shown, **wrong))
    with pytest.raises(UsageError, match="leave none to learn from"):
        imitate(policy, shown, held_out=1.0)
