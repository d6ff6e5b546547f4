"""Action scoring: numpy equals torch, and gathered legal actions map back to the full table of actions."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from corral.core.actions import find_action_features_leaf
from corral.core.errors import UsageError
from corral.policy import array_distributions, distributions
from corral.policy.mlp import ACTIVATIONS, Gradient, Mlp
from corral.policy.policy import Policy
from corral.policy.scoring import Choices

N_ACTIONS, N_FEATURES = 9, 3


def scored_space(dtype=np.float32, shape=(N_ACTIONS, N_FEATURES), **others):
    """Return an observation space with features of every action."""
    others = others or {"observation": spaces.Box(-1, 1, (4,))}
    return spaces.Dict(action_features=spaces.Box(-1, 1, shape, dtype), **others)


def policy_and_mlp(dtype=np.float32, activation="tanh", arch=((8, 6), (7,))):
    """Return a torch policy and a numpy network with the same weights, which are not small."""
    torch.manual_seed(0)
    net_arch = {"pi": arch[0], "vf": arch[1]}
    policy = Policy(scored_space(dtype), spaces.Discrete(N_ACTIONS), net_arch=net_arch, activation_fn=activation)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    mlp = Mlp(policy.mlp_shape())
    mlp.load({name: weight.numpy() for name, weight in policy.state_dict().items()})
    return policy, mlp


def random_masks(rows, rng):
    """Return masks that allow at least one action in each row."""
    masks = rng.random((rows, N_ACTIONS)) < 0.4
    masks[np.arange(rows), rng.integers(0, N_ACTIONS, rows)] = True
    return masks


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("arch", [((8, 6), (7,)), ((5,), ()), ((6, 5, 4), (3, 2))], ids=str)
def test_numpy_scores_and_gradients_equal_those_of_torch(masked, dtype, activation, arch):
    policy, mlp = policy_and_mlp(dtype, activation, arch)
    rng, rows = np.random.default_rng(1), 40
    leaves = {
        "observation": rng.standard_normal((rows, 4)).astype(np.float32),
        "action_features": rng.standard_normal((rows, N_ACTIONS, N_FEATURES)).astype(dtype),
    }
    masks = random_masks(rows, rng) if masked else None
    tensor_masks = None if masks is None else torch.from_numpy(masks)
    inputs = policy.prepare(leaves)
    legal = np.ones((rows, N_ACTIONS), bool) if masks is None else masks
    actions = np.array([rng.choice(np.flatnonzero(row)) for row in legal])[:, None]

    features = policy.features(leaves)["features"]
    embeddings, values = mlp.forward(features)
    scored = mlp.scorer.forward(embeddings, masks, leaves["action_features"])
    logits, torch_values = policy(inputs, tensor_masks)
    unmasked_logits, _ = policy(inputs)
    np.testing.assert_allclose(scored.choices.wide(scored.table)[legal], logits.detach().numpy()[legal], atol=1e-5)
    np.testing.assert_allclose(unmasked_logits.detach().numpy()[legal], logits.detach().numpy()[legal], atol=1e-5)
    np.testing.assert_allclose(values, torch_values.detach(), atol=1e-5)

    likelihood = array_distributions.likelihood(
        scored.choices.heads, scored.table, mlp.log_std, scored.choices.columns_of(actions), None
    )
    torch_likelihood = distributions.likelihood(
        policy.codec.heads, logits, policy.log_std, torch.from_numpy(actions), tensor_masks
    )
    np.testing.assert_allclose(likelihood.log_probs, torch_likelihood.log_probs.detach(), atol=1e-5)
    np.testing.assert_allclose(likelihood.entropy, torch_likelihood.entropy.detach(), atol=1e-5)

    d_log_probs, d_values = rng.standard_normal((2, rows)).astype(np.float32) / rows
    loss = (torch_likelihood.log_probs * torch.from_numpy(d_log_probs)).sum()
    loss = loss + 0.7 / rows * torch_likelihood.entropy.sum()
    (loss + (torch_values * torch.from_numpy(d_values)).sum()).backward()
    flat = np.full(mlp.flat.size, np.nan, np.float32)
    gradient, d_table = Gradient(mlp, flat), np.full_like(scored.table, np.nan)
    array_distributions.gradient(scored.choices.heads, likelihood, d_log_probs, 0.7 / rows, d_table, gradient.log_std)
    mlp.backward(features, mlp.scorer.backward(scored, d_table, gradient.scorer), d_values, gradient)
    gradients = Mlp(mlp.shape, flat).parameters()
    for name, parameter in policy.named_parameters():
        if parameter.numel():
            np.testing.assert_allclose(gradients[name], parameter.grad, atol=1e-5, err_msg=name)


mask_arrays = st.integers(0, 2**32 - 1).map(lambda seed: random_masks(1 + seed % 13, np.random.default_rng(seed)))


@given(mask_arrays, st.sampled_from([None, 1, 4, 12]))
def test_gathered_actions_map_back_to_their_rows_and_columns(masks, tile):
    rng, rows = np.random.default_rng(0), len(masks)
    choices = Choices(masks, tile)
    assert choices.width == masks.sum(1).max() and choices.n_gathered >= masks.sum()
    numbers = rng.standard_normal((rows, N_ACTIONS)).astype(np.float32)
    assert np.array_equal(choices.wide(choices.narrow(numbers)), np.where(masks, numbers, np.float32(-1e30)))
    gathered = choices.gather(numbers[:, :, None].astype(np.float16))[:, 0]
    expected = np.where(masks, numbers.astype(np.float16), np.float32(-1e30))
    assert np.array_equal(choices.wide(choices.table(gathered)), expected)
    actions = np.array([rng.choice(np.flatnonzero(row)) for row in masks])[:, None]
    columns = choices.columns_of(actions)
    assert np.array_equal(choices.actions_at(columns), actions)
    assert np.array_equal(
        np.take_along_axis(choices.narrow(numbers), columns, 1), np.take_along_axis(numbers, actions, 1)
    )


@given(mask_arrays)
def test_gathered_values_are_summed_and_repeated_by_row(masks):
    choices = Choices(masks)
    numbers = np.random.default_rng(0).standard_normal((*masks.shape, 2)).astype(np.float32)
    expected = (numbers * masks[:, :, None]).sum(1)
    np.testing.assert_allclose(choices.add_up(choices.gather(numbers)), expected, atol=1e-5)
    assert np.array_equal(choices.gathered(choices.table(choices.gather(numbers)[:, 0])), choices.gather(numbers)[:, 0])
    order = np.arange(len(masks))[::-1]
    assert np.array_equal(choices.gather(numbers[order], order), choices.gather(numbers))
    assert np.array_equal(
        choices.repeat(expected)[:, 0], choices.gather(np.repeat(expected[:, None], N_ACTIONS, 1))[:, 0]
    )


@given(mask_arrays, st.integers(1, 12))
def test_the_position_of_an_action_in_its_tile_does_not_depend_on_other_rows(masks, tile):
    single_rows = [Choices(masks[i : i + 1], tile) for i in range(len(masks))]
    batch = Choices(masks, tile)
    positions = np.concatenate([choices._places for choices in single_rows])
    assert np.array_equal(positions % tile, batch._places % tile)
    assert batch.n_gathered % tile == 0


def test_the_value_and_the_normaliser_do_not_use_action_features():
    policy = Policy(scored_space(), spaces.Discrete(N_ACTIONS), normalize_obs=True)
    assert policy.normalizer.paths == ("observation",) and policy.mlp_shape().n_features == 4
    leaves = policy.layout.allocate(3)
    for leaf in leaves.values():
        leaf[...] = 0.5
    logits_before, value_before = policy(policy.prepare(leaves))
    leaves["action_features"][...] = np.random.default_rng(0).standard_normal((3, N_ACTIONS, N_FEATURES))
    logits_after, value_after = policy(policy.prepare(leaves))
    assert torch.equal(value_before, value_after) and not torch.equal(logits_before, logits_after)


def test_a_scoring_policy_starts_nearly_uniform():
    policy = Policy(scored_space(), spaces.Discrete(N_ACTIONS))
    leaves = policy.layout.allocate(5)
    for leaf in leaves.values():
        leaf[...] = np.random.default_rng(0).standard_normal(leaf.shape)
    params, _ = policy(policy.prepare(leaves))
    assert 0 < params.detach().abs().max() < 0.1


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (spaces.Box(-1, 1, (9, 3)), spaces.Discrete(9)),
        (scored_space(), spaces.Discrete(8)),
        (scored_space(shape=(9,)), spaces.Discrete(9)),
        (scored_space(np.float64), spaces.Discrete(9)),
        (scored_space(), spaces.MultiDiscrete([9])),
        (spaces.Dict(action_features=spaces.Box(-1, 1, (9, 3))), spaces.Discrete(9)),
    ],
    ids=["no such leaf", "another number of actions", "flat", "double", "other actions", "no state"],
)
def test_actions_are_scored_only_if_every_action_has_features(observation, action):
    policy = Policy(observation, action)
    assert find_action_features_leaf(policy.layout, action) is None and policy.n_action_features == 0
    with pytest.raises(UsageError, match=r"score_actions needs Discrete\(A\) actions .* leave score_actions out"):
        Policy(observation, action, score_actions=True)


def test_scoring_can_be_turned_off_and_needs_a_hidden_layer():
    without_scoring = Policy(scored_space(), spaces.Discrete(N_ACTIONS), score_actions=False)
    assert (
        without_scoring.n_action_features == 0 and without_scoring.mlp_shape().n_features == 4 + N_ACTIONS * N_FEATURES
    )
    with pytest.raises(UsageError, match="needs a hidden layer"):
        Policy(scored_space(), spaces.Discrete(N_ACTIONS), net_arch={"pi": (), "vf": (8,)})
