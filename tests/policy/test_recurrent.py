"""The recurrent core, whose gradients are written by hand, equals the layers and the autograd of torch."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from corral.policy.policy import Policy
from corral.policy.recurrent import RecurrentCore, SequenceStart, state_size

KINDS = ("gru", "lstm")
F, H, B, L = 5, 7, 3, 6


def core_and_data(kind):
    """Return a core with random weights, features of B sequences of L steps, and a first state of each sequence."""
    torch.manual_seed(0)
    core = RecurrentCore(kind, F, H, ortho_init=True).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    features = torch.randn(B * L, F, dtype=torch.double, requires_grad=True)
    return core, features, torch.randn(B, core.n_state, dtype=torch.double)


def episode_starts(episodes):
    """Return where episodes start in B sequences of L steps."""
    starts = torch.zeros(B, L, dtype=torch.bool)
    if episodes == "several episodes":
        starts[0, 2] = starts[1, 1] = starts[1, 5] = True
    return starts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("episodes", ["one episode", "several episodes"])
def test_outputs_and_gradients_of_sequences_equal_those_of_single_steps(kind, episodes):
    core, features, states = core_and_data(kind)
    starts = episode_starts(episodes)
    state, step_outputs = states, []
    for t in range(L):
        state = torch.where(starts[:, t, None], torch.zeros_like(state), state)
        state = core.step(features.view(B, L, F)[:, t], state)
        step_outputs.append(core.output(state))
    expected = torch.stack(step_outputs, 1).reshape(B * L, H)
    outputs = core(features, SequenceStart(states, starts.reshape(-1)))
    torch.testing.assert_close(outputs, expected)
    weight, inputs = torch.randn_like(outputs), [features, *core.parameters()]
    for gradient, expected_gradient in zip(
        torch.autograd.grad((outputs * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("kind", KINDS)
def test_the_core_equals_the_layer_of_torch(kind):
    core, features, states = core_and_data(kind)
    layer = (nn.GRU if kind == "gru" else nn.LSTM)(F, H, batch_first=True).double()
    blocks = [0, 1, 2] if kind == "gru" else [0, 1, 3, 2]  # torch has the candidate before the output gate
    order = torch.cat([torch.arange(H) + block * H for block in blocks])
    with torch.no_grad():
        layer.weight_ih_l0.copy_(core.input.weight[order])
        layer.weight_hh_l0.copy_(core.weight[order])
        layer.bias_ih_l0.copy_(core.input.bias[order])
        layer.bias_hh_l0.zero_()
        if kind == "gru":
            layer.bias_hh_l0[2 * H :] = core.bias
    parts = tuple(part[None].contiguous() for part in states.split(H, 1))
    expected, _ = layer(features.view(B, L, F), parts[0] if kind == "gru" else parts)
    torch.testing.assert_close(
        core(features, SequenceStart(states, episode_starts("one episode").reshape(-1))), expected.reshape(B * L, H)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_weights_start_orthogonal_and_one_gate_has_a_bias_of_one(kind):
    """The gate that keeps the state has the bias: the forget gate of an LSTM, the update gate of a GRU."""
    torch.manual_seed(0)
    core = RecurrentCore(kind, 16, 16, ortho_init=True)
    for gate in core.weight.detach().split(16):
        torch.testing.assert_close(gate @ gate.T, torch.eye(16), atol=1e-5, rtol=0)
    assert (core.input.bias[16:32] == 1).all() and core.input.bias.count_nonzero() == 16
    not_orthogonal = RecurrentCore(kind, 16, 16, ortho_init=False)
    assert not_orthogonal.weight.abs().max() <= 0.25 and not_orthogonal.input.bias[:16].abs().min() > 0
    assert core.n_state == state_size(kind, 16) == (16 if kind == "gru" else 32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_policy_gives_the_same_for_sequences_and_single_steps(kind):
    """Observations are nested and have an image."""
    torch.manual_seed(0)
    space = spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(3), image=spaces.Box(0, 255, (8, 8, 1), np.uint8))
    policy = Policy(space, spaces.Discrete(4), recurrent=kind, recurrent_size=8, cnn_features=6)
    assert policy.mlp_shape() is None and policy.n_state == state_size(kind, 8)
    leaves = policy.layout.allocate(B * L)
    space.seed(0)
    for row in range(B * L):
        policy.layout.write(leaves, row, space.sample())
    states = torch.rand(B, policy.n_state)
    params, values = policy(
        policy.prepare(leaves), start=SequenceStart(states, episode_starts("one episode").reshape(-1))
    )
    for t in range(L):
        step_leaves = {path: leaf[t::L] for path, leaf in leaves.items()}
        step_params, step_values, states = policy.step(policy.prepare(step_leaves), states)
        torch.testing.assert_close(step_params, params[t::L])
        torch.testing.assert_close(step_values, values[t::L])
