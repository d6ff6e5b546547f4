"""The KL penalty to a reference policy, and updates that freeze the policy and learn only values."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.policy import array_distributions, distributions
from corral.policy.policy import Policy, n_action_params
from corral.ppo.engine_torch import TorchEngine
from corral.ppo.learner import Learner, UpdateSettings
from corral.ppo.loss_terms import LossTerms, loss_terms_at
from tests.policy.test_mlp import ACTIONS, legal_masks
from tests.ppo.test_learner import CPU, ENVS, rollout_and_learner

KINDS = ["numpy", "torch"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ACTIONS)
def test_the_kl_divergence_and_its_gradients_equal_those_of_autograd(name, masked):
    rng, rows = np.random.default_rng(0), 30
    policy = Policy(spaces.Box(-1, 1, (4,)), ACTIONS[name])
    heads, n_params, n_gaussian = policy.codec.heads, policy.codec.n_params, policy.log_std.numel()
    params, reference_params = rng.standard_normal((2, rows, n_params)).astype(np.float32)
    log_std, reference_log_std = rng.standard_normal((2, n_gaussian)).astype(np.float32) / 3
    masks = legal_masks(policy, rows, rng) if masked else None
    noise = (1 - rng.random((rows, policy.codec.n_actions))).astype(np.float32)
    sample = array_distributions.draw(heads, params, log_std, masks, noise)

    tensors = [torch.from_numpy(array.copy()) for array in (params, log_std, reference_params, reference_log_std)]
    for tensor in tensors[:2]:
        tensor.requires_grad_(True)
    tensor_masks = None if masks is None else torch.from_numpy(masks)
    expected = distributions.kl_divergence(heads, *tensors, tensor_masks)
    (0.3 * expected).sum().backward()
    d_params, d_log_std = np.ones_like(params), np.ones_like(log_std)  # gradients are added to what the arrays hold
    likelihood = array_distributions.likelihood(heads, params, log_std, sample.actions, masks)
    reference = array_distributions.Reference(reference_params, reference_log_std)
    computed = array_distributions.add_divergence(
        heads, likelihood, params, log_std, masks, reference, 0.3, d_params, d_log_std
    )
    np.testing.assert_allclose(computed, expected.detach(), atol=1e-5, rtol=1e-5)
    assert (computed > -1e-6).all()
    np.testing.assert_allclose(d_params - 1, tensors[0].grad, atol=1e-5)
    if n_gaussian:
        np.testing.assert_allclose(d_log_std - 1, tensors[1].grad, atol=1e-4)
    kl_to_itself = distributions.kl_divergence(heads, *tensors[:2], *tensors[:2], tensor_masks)
    assert kl_to_itself.abs().max() < 1e-6


def test_the_kl_divergence_equals_that_of_torch_distributions():
    torch.manual_seed(0)
    params, reference_params = torch.randn(2, 5, 3)
    torch_kl = torch.distributions.kl_divergence
    for space, make_distribution in (
        (spaces.Discrete(3), lambda p: torch.distributions.Categorical(logits=p)),
        (spaces.MultiBinary(3), lambda p: torch.distributions.Independent(torch.distributions.Bernoulli(logits=p), 1)),
        (spaces.Box(-1, 1, (3,)), lambda p: torch.distributions.Independent(torch.distributions.Normal(p, 1.0), 1)),
    ):
        policy = Policy(spaces.Box(-1, 1, (2,)), space)
        computed = distributions.kl_divergence(
            policy.codec.heads, params, policy.log_std, reference_params, policy.log_std, None
        )
        torch.testing.assert_close(
            computed, torch_kl(make_distribution(reference_params), make_distribution(params)), atol=1e-5, rtol=1e-5
        )


def perturbed_weights(policy, scale=0.5):
    """Return the weights of a policy with random noise added to each."""
    torch.manual_seed(5)
    return {name: weight + scale * torch.randn_like(weight) for name, weight in policy.state_dict().items()}


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("name", ["discrete", "maze", "everything", "scored", "scored, unmasked"])
def test_numpy_and_autograd_agree_on_updates_with_a_reference_policy(name, normalize_obs):
    learners = []
    for kind in KINDS:
        rollout, estimate, learner = rollout_and_learner(
            ENVS[name], kind, kl_ref_coef=0.7, n_epochs=2, ent_coef=0.01, normalize_obs=normalize_obs
        )
        reference = perturbed_weights(learner.policy)
        learner.set_reference(
            {key: weight.abs() + 0.5 if "deviation" in key else weight for key, weight in reference.items()}
        )
        stats = learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(kl_ref_coef=0.7)))
        learners.append((learner, stats))
    (numpy_learner, numpy_stats), (torch_learner, torch_stats) = learners
    assert numpy_stats.kl_ref == pytest.approx(torch_stats.kl_ref, rel=1e-3) and numpy_stats.kl_ref > 0
    assert numpy_stats.loss == pytest.approx(torch_stats.loss, rel=2e-3, abs=1e-4)
    for (label, p), q in zip(numpy_learner.policy.named_parameters(), torch_learner.policy.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=3e-5, rtol=1e-3, msg=lambda m, label=label: f"{label}: {m}")


@pytest.mark.parametrize("name", ["discrete", "scored", "box"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_kl_coefficient_keeps_the_policy_near_its_reference(kind, name):
    def mean_change(kl_ref):
        rollout, estimate, learner = rollout_and_learner(ENVS[name], kind, kl_ref_coef=1.0)
        learner.set_reference(learner.policy.state_dict())
        learner.update(rollout, estimate, UpdateSettings(0, 3e-3, LossTerms(kl_ref_coef=kl_ref)))
        log_probs, _ = learner.engine.log_probs_and_values(rollout)
        return float(np.abs(log_probs - rollout.log_probs).mean())

    assert mean_change(1000.0) < 0.25 * mean_change(0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_kl_coefficient_moves_the_policy_to_its_reference(kind):
    rollout, estimate, learner = rollout_and_learner(ENVS["scored"], kind, kl_ref_coef=1.0, n_epochs=5)
    learner.set_reference(perturbed_weights(learner.policy, scale=0.2))
    stats = [learner.update(rollout, estimate, UpdateSettings(i, 3e-3, LossTerms(kl_ref_coef=100.0))) for i in range(6)]
    assert stats[-1].kl_ref < 0.2 * stats[0].kl_ref


@pytest.mark.parametrize("name", ["discrete", "everything", "scored"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_policy_keeps_every_bit_while_values_are_learned(kind, name):
    rollout, estimate, learner = rollout_and_learner(ENVS[name], kind, kl_ref_coef=0.5, ent_coef=0.01, n_epochs=2)
    learner.set_reference(perturbed_weights(learner.policy))
    before = {key: weight.clone() for key, weight in learner.policy.state_dict().items()}
    stats = learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(kl_ref_coef=0.5, freeze_policy=True)))
    after = learner.policy.state_dict()
    for key, weight in before.items():
        is_value = key.startswith("network.vf.")
        assert torch.equal(weight, after[key]) != is_value or not weight.numel(), key
    assert stats.approx_kl < 1e-6 and stats.loss == pytest.approx(0.5 * stats.value_loss, rel=1e-5)


def test_numpy_and_autograd_agree_after_a_critic_warm_up():
    """Adam's moments of the policy start with its first update, so that its first step is not larger than usual."""
    learners = []
    for kind in KINDS:
        rollout, estimate, learner = rollout_and_learner("CartPole-v1", kind, n_epochs=2)
        learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(freeze_policy=True)))
        _, moments = learner.engine.checkpoint_tensors()
        _, _, restored = rollout_and_learner("CartPole-v1", kind, n_epochs=2)
        restored.policy.load_state_dict(learner.policy.state_dict())
        restored.engine.restore_moments(moments)
        for each in (learner, restored):
            each.update(rollout, estimate, UpdateSettings(1, 1e-3))
        for p, q in zip(learner.policy.parameters(), restored.policy.parameters(), strict=True):
            assert torch.equal(p, q)
        learners.append(learner)
    for p, q in zip(*(learner.policy.parameters() for learner in learners), strict=True):
        torch.testing.assert_close(p, q, atol=3e-5, rtol=1e-3)


def test_freezing_the_policy_freezes_a_trunk_that_policy_and_value_share():
    class SharedTrunk(torch.nn.Module):
        def __init__(self, observation_space, action_space):
            super().__init__()
            self.trunk = torch.nn.Linear(4, 8)
            self.pi, self.vf = torch.nn.Linear(8, n_action_params(action_space)), torch.nn.Linear(8, 1)

        def forward(self, observations):
            hidden = self.trunk(observations).tanh()
            return self.pi(hidden), self.vf(hidden).squeeze(-1)

    rollout, estimate, mlp_learner = rollout_and_learner("CartPole-v1", "torch")
    policy = Policy(mlp_learner.policy.layout.space, mlp_learner.policy.codec.layout.space, network=SharedTrunk)
    learner = Learner(policy, mlp_learner.config, 0, CPU, TorchEngine(policy, mlp_learner.config, CPU))
    before = {key: weight.clone() for key, weight in policy.state_dict().items()}
    learner.update(rollout, estimate, UpdateSettings(0, 1e-2, LossTerms(freeze_policy=True)))
    changed = {key for key, weight in policy.state_dict().items() if not torch.equal(weight, before[key])}
    assert changed == {"network.vf.weight", "network.vf.bias"}


def test_the_kl_coefficient_falls_linearly_to_zero():
    config = parse_config({"env": "x", "kl_ref_coef": 2.0, "timesteps": 1000, "critic_warmup": 300})
    assert [loss_terms_at(config, t).kl_ref_coef for t in (0, 500, 1000, 2000)] == [2.0, 1.0, 0.0, 0.0]
    assert [loss_terms_at(config, t).freeze_policy for t in (0, 299, 300)] == [True, True, False]
    assert config.kl_ref_steps == 1000  # it is recorded, so that a longer budget does not change the schedule
    assert loss_terms_at(parse_config({"env": "x"}), 0) == LossTerms()
    assert loss_terms_at(parse_config({"env": "x", "kl_ref_coef": 1, "kl_ref_steps": 10}), 5).kl_ref_coef == 0.5


def test_a_missing_or_wrong_reference_or_schedule_is_refused():
    with pytest.raises(UsageError, match="kl_ref_coef needs kl_ref_steps or timesteps"):
        parse_config({"env": "x", "kl_ref_coef": 1, "num_episodes": 5})
    with pytest.raises(UsageError, match="kl_ref_steps 5 has no effect without kl_ref_coef"):
        parse_config({"env": "x", "kl_ref_steps": 5})
    rollout, estimate, learner = rollout_and_learner("CartPole-v1", kl_ref_coef=1.0)
    with pytest.raises(UsageError, match="kl_ref_coef 1 needs a reference policy"):
        learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(kl_ref_coef=1.0)))
    with pytest.raises(UsageError, match="the reference does not fit"):
        learner.set_reference({"network.pi.0.weight": np.zeros((2, 2))})
