"""The numpy network computes the outputs, distributions and gradients that torch computes."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from corral.policy import array_distributions, distributions
from corral.policy.mlp import ACTIVATIONS, Gradient, Mlp
from corral.policy.policy import Policy

ACTIONS = {
    "discrete": spaces.Discrete(3),
    "many choices": spaces.Discrete(12),
    "multi": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,)),
    "mixed": spaces.Dict({"a": spaces.MultiDiscrete([3, 4]), "b": spaces.Box(-1, 1, (2,)), "c": spaces.MultiBinary(3)}),
}
ARCHITECTURES = [((8, 8), (8, 8)), ((5,), (7, 6)), ((), (4,)), ((6, 5, 4), ()), ((), ())]


def policy_and_mlp(actions, arch=((8, 8), (8, 8)), activation="tanh", seed=0):
    """Return a torch policy and a numpy network with the same weights, which are not small."""
    torch.manual_seed(seed)
    net_arch = {"pi": arch[0], "vf": arch[1]}
    policy = Policy(spaces.Box(-1, 1, (4,)), actions, net_arch=net_arch, activation_fn=activation)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    mlp = Mlp(policy.mlp_shape())
    mlp.load({name: weight.numpy() for name, weight in policy.state_dict().items()})
    return policy, mlp


def legal_masks(policy, rows, rng):
    """Return random masks that allow at least one action of each head."""
    masks = rng.random((rows, policy.codec.n_mask)) < 0.6
    for head in policy.codec.heads:
        part = masks[:, head.mask]
        if head.kind == "categorical":
            part[np.arange(rows), rng.integers(0, head.size, rows)] = True
        elif head.kind == "bernoulli":
            part[:, 0::2] |= ~part[:, 1::2]
    return masks


def check_numpy_equals_torch(policy, mlp, masked, seed=0, rows=50):
    """Check that both have the same outputs, actions, log-probabilities, entropies and gradients."""
    rng, heads = np.random.default_rng(seed), policy.codec.heads
    features = rng.standard_normal((rows, 4)).astype(np.float32)
    noise = (1 - rng.random((rows, policy.codec.n_actions))).astype(np.float32)
    masks = legal_masks(policy, rows, rng) if masked else None
    tensor_masks = None if masks is None else torch.from_numpy(masks)

    params, values = mlp.forward(features)
    torch_params, torch_values = policy({"features": torch.from_numpy(features)})
    np.testing.assert_allclose(params, torch_params.detach(), atol=1e-5)
    np.testing.assert_allclose(values, torch_values.detach(), atol=1e-5)

    sample = array_distributions.draw(heads, params, mlp.log_std, masks, noise)
    torch_actions = distributions.sample(
        heads, torch_params, policy.log_std, tensor_masks, torch.from_numpy(noise)
    ).detach()
    np.testing.assert_allclose(sample.actions, torch_actions, atol=1e-5)
    torch_mode = distributions.mode(heads, torch_params, tensor_masks).detach()
    np.testing.assert_allclose(array_distributions.mode(heads, params, masks), torch_mode, atol=1e-5)
    likelihood = array_distributions.likelihood(heads, params, mlp.log_std, sample.actions, masks)
    torch_likelihood = distributions.likelihood(heads, torch_params, policy.log_std, torch_actions, tensor_masks)
    np.testing.assert_allclose(likelihood.log_probs, sample.log_probs, atol=1e-5)
    np.testing.assert_allclose(likelihood.log_probs, torch_likelihood.log_probs.detach(), atol=1e-5)
    np.testing.assert_allclose(likelihood.entropy, torch_likelihood.entropy.detach(), atol=1e-5)

    d_log_probs, d_values = rng.standard_normal((2, rows)).astype(np.float32)
    loss = (torch_likelihood.log_probs * torch.from_numpy(d_log_probs)).sum() + 0.7 * torch_likelihood.entropy.sum()
    (loss + (torch_values * torch.from_numpy(d_values)).sum()).backward()
    flat = np.full(mlp.flat.size, np.nan, np.float32)
    gradient, d_params = Gradient(mlp, flat), np.full_like(params, np.nan)
    array_distributions.gradient(heads, likelihood, d_log_probs, 0.7, d_params, gradient.log_std)
    mlp.backward(features, d_params, d_values, gradient)
    gradients = Mlp(mlp.shape, flat).parameters()
    for name, parameter in policy.named_parameters():
        if parameter.grad is not None:
            np.testing.assert_allclose(gradients[name], parameter.grad, atol=2e-4, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ACTIONS)
def test_numpy_equals_torch_for_every_action_space(name, masked):
    check_numpy_equals_torch(*policy_and_mlp(ACTIONS[name]), masked)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_equals_torch_for_every_architecture(arch, activation):
    check_numpy_equals_torch(*policy_and_mlp(spaces.Discrete(3), arch, activation), masked=False)


@given(st.integers(0, 2**32 - 1), st.integers(1, 70))
def test_numpy_equals_torch_for_random_inputs(seed, rows):
    check_numpy_equals_torch(*policy_and_mlp(ACTIONS["mixed"], seed=seed % 7), masked=True, seed=seed, rows=rows)


def test_a_masked_action_is_never_sampled():
    logits = np.zeros((4, 3), np.float32)
    masks = np.array([[True, False, False], [False, True, False], [False, False, True], [True, False, True]])
    heads = Policy(spaces.Box(-1, 1, (1,)), spaces.Discrete(3)).codec.heads
    for noise in (np.float32(1e-30), np.float32(0.5), np.float32(1.0)):
        sample = array_distributions.draw(heads, logits, logits[:0, 0], masks, np.full((4, 1), noise))
        assert masks[np.arange(4), sample.actions[:, 0]].all()


def test_the_network_uses_weights_that_were_changed_in_place():
    policy, mlp = policy_and_mlp(spaces.Discrete(2))
    features = np.ones((3, 4), np.float32)
    before = mlp.forward(features)[1].copy()
    mlp.flat *= 2
    assert not np.allclose(before, mlp.forward(features)[1])
    assert policy.mlp_shape() == mlp.shape


def test_activations_without_a_numpy_version_are_left_to_torch():
    for activation in ("gelu", "silu"):
        assert Policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), activation_fn=activation).mlp_shape() is None
