"""Action distributions: sampling, log-probabilities and entropies, with and without masks."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from corral.core.actions import ActionCodec
from corral.core.seeding import action_noise
from corral.policy import distributions

MIXED = spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 4])])
SPACES = {
    "discrete": spaces.Discrete(6),
    "multi": spaces.MultiDiscrete([3, 4]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (3,)),
    "mixed": MIXED,
}


def random_inputs(space, n=64, masked=False, seed=0):
    """Return an action codec with random parameters, log-std, masks and noise for ``n`` rows."""
    codec, generator = ActionCodec(space), torch.Generator().manual_seed(seed)
    params = torch.randn(n, codec.n_params, generator=generator) * 2
    log_std = torch.linspace(-1, 0.5, sum(codec.gaussian))
    masks = None
    if masked:
        masks = torch.rand(n, codec.n_mask, generator=generator) < 0.4
        for head in codec.heads:
            if head.kind == "categorical":
                masks[:, head.mask.start] |= ~masks[:, head.mask].any(-1)
            elif head.kind == "bernoulli":
                pairs = masks[:, head.mask].unflatten(-1, (-1, 2))
                pairs[..., 0] |= ~pairs.any(-1)
    noise = torch.from_numpy(action_noise(seed, np.arange(1), 0, n, codec.gaussian)[:, 0])
    return codec, params, log_std, masks, noise


def torch_distributions(codec, params, log_std):
    """Return each head of the codec with its distribution as a ``torch.distributions`` object."""
    parts, gaussian = [], 0
    for head in codec.heads:
        p = params[:, head.params]
        if head.kind == "categorical":
            parts.append((head, torch.distributions.Categorical(logits=p)))
        elif head.kind == "bernoulli":
            parts.append((head, torch.distributions.Independent(torch.distributions.Bernoulli(logits=p), 1)))
        else:
            std = log_std[gaussian : gaussian + head.size].exp().expand_as(p)
            gaussian += head.size
            parts.append((head, torch.distributions.Independent(torch.distributions.Normal(p, std), 1)))
    return parts


@pytest.mark.parametrize("name", SPACES)
def test_likelihood_and_entropy_agree_with_torch(name):
    codec, params, log_std, _, noise = random_inputs(SPACES[name])
    actions = distributions.sample(codec.heads, params, log_std, None, noise)
    likelihood = distributions.likelihood(codec.heads, params, log_std, actions, None)
    log_probs = entropy = 0
    for head, expected in torch_distributions(codec, params, log_std):
        head_actions = actions[:, head.actions]
        log_probs += expected.log_prob(head_actions[:, 0] if head.kind == "categorical" else head_actions.float())
        entropy += expected.entropy()
    torch.testing.assert_close(likelihood.log_probs, log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(likelihood.entropy, entropy.expand(len(params)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_samples_follow_the_distribution(name):
    codec, params, log_std, _, _ = random_inputs(SPACES[name], 1)
    noise = torch.from_numpy(action_noise(1, np.arange(1), 0, 100_000, codec.gaussian)[:, 0])
    actions = distributions.sample(codec.heads, params.expand(100_000, -1), log_std, None, noise)
    for head, expected in torch_distributions(codec, params, log_std):
        head_actions = actions[:, head.actions]
        if head.kind == "categorical":
            frequencies = torch.bincount(head_actions[:, 0].long(), minlength=head.size) / len(head_actions)
            torch.testing.assert_close(frequencies, expected.probs[0], atol=0.01, rtol=0)
        else:
            torch.testing.assert_close(head_actions.float().mean(0), expected.mean[0], atol=0.02, rtol=0)
            torch.testing.assert_close(head_actions.float().std(0), expected.stddev[0], atol=0.02, rtol=0)


@given(st.sampled_from(["discrete", "multi", "binary", "mixed"]), st.integers(0, 10_000))
def test_masked_actions_are_never_sampled_and_gradients_stay_finite(name, seed):
    codec, params, log_std, masks, noise = random_inputs(SPACES[name], 32, masked=True, seed=seed)
    for actions in (
        distributions.sample(codec.heads, params, log_std, masks, noise),
        distributions.mode(codec.heads, params, masks),
    ):
        for head in codec.heads:
            head_actions = actions[:, head.actions].long()
            if head.kind == "categorical":
                assert masks[:, head.mask].gather(1, head_actions).all()
            elif head.kind == "bernoulli":
                assert masks[:, head.mask].unflatten(-1, (-1, 2)).gather(2, head_actions[..., None]).all()
        params.requires_grad_(True)
        likelihood = distributions.likelihood(codec.heads, params, log_std, actions, masks)
        assert torch.isfinite(likelihood.log_probs).all() and torch.isfinite(likelihood.entropy).all()
        (grad,) = torch.autograd.grad((likelihood.log_probs + likelihood.entropy).sum(), params)
        assert torch.isfinite(grad).all()
        params = params.detach()


def test_extreme_noise_still_samples_an_allowed_action():
    codec = ActionCodec(spaces.Discrete(4))
    masks = torch.tensor([[False, True, True, False]])
    for extreme in (np.nextafter(np.float32(0), np.float32(1)), np.float32(2**-24), np.float32(1)):
        noise = torch.full((1, 1), float(extreme))
        assert int(distributions.sample(codec.heads, torch.zeros(1, 4), torch.zeros(0), masks, noise)) in (1, 2)


def test_the_only_allowed_action_has_probability_one():
    codec = ActionCodec(spaces.Discrete(3))
    masks = torch.tensor([[False, False, True]])
    likelihood = distributions.likelihood(
        codec.heads, torch.tensor([[9.0, 9.0, -9.0]]), torch.zeros(0), torch.tensor([[2]]), masks
    )
    assert likelihood.log_probs.item() == 0 and likelihood.entropy.item() == 0
