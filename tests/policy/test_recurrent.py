"""Memory: what is written out by hand is what torch's layers and autograd say."""

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
    torch.manual_seed(0)
    core = RecurrentCore(kind, F, H, ortho_init=True).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    features = torch.randn(B * L, F, dtype=torch.double, requires_grad=True)
    return core, features, torch.randn(B, core.n_state, dtype=torch.double)


def flags(how):
    begins = torch.zeros(B, L, dtype=torch.bool)
    if how == "anew":
        begins[0, 2] = begins[1, 1] = begins[1, 5] = True
    return begins


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["whole", "anew"])
def test_sequences_and_their_gradients_are_those_of_step_after_step(kind, how):
    core, features, states = core_and_data(kind)
    begins = flags(how)
    state, shown = states, []
    for t in range(L):
        state = torch.where(begins[:, t, None], torch.zeros_like(state), state)
        state = core.step(features.view(B, L, F)[:, t], state)
        shown.append(core.output(state))
    expected, found = torch.stack(shown, 1).reshape(B * L, H), core(features, SequenceStart(states, begins.reshape(-1)))
    torch.testing.assert_close(found, expected)
    weight, of = torch.randn_like(found), [features, *core.parameters()]
    for one, two in zip(
        torch.autograd.grad((found * weight).sum(), of), torch.autograd.grad((expected * weight).sum(), of), strict=True
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_torchs_layer(kind):
    core, features, states = core_and_data(kind)
    theirs = (nn.GRU if kind == "gru" else nn.LSTM)(F, H, batch_first=True).double()
    blocks = [0, 1, 2] if kind == "gru" else [0, 1, 3, 2]  # torch has the candidate before the last gate
    order = torch.cat([torch.arange(H) + block * H for block in blocks])
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(core.input.weight[order])
        theirs.weight_hh_l0.copy_(core.weight[order])
        theirs.bias_ih_l0.copy_(core.input.bias[order])
        theirs.bias_hh_l0.zero_()
        if kind == "gru":
            theirs.bias_hh_l0[2 * H :] = core.bias
    parts = tuple(part[None].contiguous() for part in states.split(H, 1))
    expected, _ = theirs(features.view(B, L, F), parts[0] if kind == "gru" else parts)
    torch.testing.assert_close(
        core(features, SequenceStart(states, flags("whole").reshape(-1))), expected.reshape(B * L, H)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_weights_start_orthogonal_and_what_is_remembered_is_kept(kind):
    torch.manual_seed(0)
    core = RecurrentCore(kind, 16, 16, ortho_init=True)
    for gate in core.weight.detach().split(16):
        torch.testing.assert_close(gate @ gate.T, torch.eye(16), atol=1e-5, rtol=0)
    assert (core.input.bias[16:32] == 1).all() and core.input.bias.count_nonzero() == 16
    plain = RecurrentCore(kind, 16, 16, ortho_init=False)
    assert plain.weight.abs().max() <= 0.25 and plain.input.bias[:16].abs().min() > 0
    assert core.n_state == state_size(kind, 16) == (16 if kind == "gru" else 32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_with_a_memory_unrolls_as_it_steps(kind):
    """Nested observations, masks: single steps and sequences give the same."""
    torch.manual_seed(0)
    space = spaces.Dict(
        a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(3), picture=spaces.Box(0, 255, (8, 8, 1), np.uint8)
    )
    policy = Policy(space, spaces.Discrete(4), recurrent=kind, recurrent_size=8, cnn_features=6)
    assert policy.mlp_shape() is None and policy.n_state == state_size(kind, 8)
    leaves = policy.layout.allocate(B * L)
    space.seed(0)
    for row in range(B * L):
        policy.layout.write(leaves, row, space.sample())
    states = torch.rand(B, policy.n_state)
    params, values = policy(policy.prepare(leaves), start=SequenceStart(states, flags("whole").reshape(-1)))
    for t in range(L):
        some = {path: leaf[t::L] for path, leaf in leaves.items()}
        step_params, step_values, states = policy.step(policy.prepare(some), states)
        torch.testing.assert_close(step_params, params[t::L])
        torch.testing.assert_close(step_values, values[t::L])
