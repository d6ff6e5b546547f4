"""Staying near a reference policy, and learning the value function alone."""

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


@pytest.fixture(autouse=True)
def one_thread():
    """As in training; more of them only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ACTIONS)
def test_the_divergence_and_its_gradients_are_autograds(name, masked):
    rng, rows = np.random.default_rng(0), 30
    policy = Policy(spaces.Box(-1, 1, (4,)), ACTIONS[name])
    heads, n, g = policy.codec.heads, policy.codec.n_params, policy.log_std.numel()
    params, fixed = rng.standard_normal((2, rows, n)).astype(np.float32)
    log_std, fixed_std = rng.standard_normal((2, g)).astype(np.float32) / 3
    masks = legal_masks(policy, rows, rng) if masked else None
    noise = (1 - rng.random((rows, policy.codec.n_actions))).astype(np.float32)
    drawn = array_distributions.draw(heads, params, log_std, masks, noise)

    tensors = [torch.from_numpy(array.copy()) for array in (params, log_std, fixed, fixed_std)]
    for tensor in tensors[:2]:
        tensor.requires_grad_(True)
    tensor_masks = None if masks is None else torch.from_numpy(masks)
    expected = distributions.kl_divergence(heads, *tensors, tensor_masks)
    (0.3 * expected).sum().backward()
    d_params, d_log_std = np.ones_like(params), np.ones_like(log_std)  # what was there stays
    known = array_distributions.likelihood(heads, params, log_std, drawn.actions, masks)
    reference = array_distributions.Reference(fixed, fixed_std)
    found = array_distributions.add_divergence(
        heads, known, params, log_std, masks, reference, 0.3, d_params, d_log_std
    )
    np.testing.assert_allclose(found, expected.detach(), atol=1e-5, rtol=1e-5)
    assert (found > -1e-6).all()
    np.testing.assert_allclose(d_params - 1, tensors[0].grad, atol=1e-5)
    if g:
        np.testing.assert_allclose(d_log_std - 1, tensors[1].grad, atol=1e-4)
    same = distributions.kl_divergence(heads, *tensors[:2], *tensors[:2], tensor_masks)
    assert same.abs().max() < 1e-6


def test_the_divergence_of_choices_and_numbers_is_torchs():
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 3)
    kl = torch.distributions.kl_divergence
    for space, make in (
        (spaces.Discrete(3), lambda p: torch.distributions.Categorical(logits=p)),
        (spaces.MultiBinary(3), lambda p: torch.distributions.Independent(torch.distributions.Bernoulli(logits=p), 1)),
        (spaces.Box(-1, 1, (3,)), lambda p: torch.distributions.Independent(torch.distributions.Normal(p, 1.0), 1)),
    ):
        policy = Policy(spaces.Box(-1, 1, (2,)), space)
        found = distributions.kl_divergence(policy.codec.heads, a, policy.log_std, b, policy.log_std, None)
        torch.testing.assert_close(found, kl(make(b), make(a)), atol=1e-5, rtol=1e-5)


def moved(policy, by=0.5):
    """The weights of a policy, all of them a little different."""
    torch.manual_seed(5)
    return {name: weight + by * torch.randn_like(weight) for name, weight in policy.state_dict().items()}


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("name", ["discrete", "maze", "everything", "scored", "scored, unmasked"])
def test_numpy_and_autograd_stay_near_a_reference_alike(name, normalize_obs):
    learners = []
    for kind in KINDS:
        rollout, estimate, learner = rollout_and_learner(
            ENVS[name], kind, kl_ref_coef=0.7, n_epochs=2, ent_coef=0.01, normalize_obs=normalize_obs
        )
        reference = moved(learner.policy)
        learner.set_reference(
            {key: weight.abs() + 0.5 if "deviation" in key else weight for key, weight in reference.items()}
        )
        stats = learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(kl_ref=0.7)))
        learners.append((learner, stats))
    (mine, my_stats), (torchs, their_stats) = learners
    assert my_stats.kl_ref == pytest.approx(their_stats.kl_ref, rel=1e-3) and my_stats.kl_ref > 0
    assert my_stats.loss == pytest.approx(their_stats.loss, rel=2e-3, abs=1e-4)
    for (label, p), q in zip(mine.policy.named_parameters(), torchs.policy.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=3e-5, rtol=1e-3, msg=lambda m, label=label: f"{label}: {m}")


@pytest.mark.parametrize("name", ["discrete", "scored", "box"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_weight_keeps_the_policy_where_it_is(kind, name):
    def how_far(weight):
        rollout, estimate, learner = rollout_and_learner(ENVS[name], kind, kl_ref_coef=1.0)
        learner.set_reference(learner.policy.state_dict())
        learner.update(rollout, estimate, UpdateSettings(0, 3e-3, LossTerms(kl_ref=weight)))
        log_probs, _ = learner.engine.evaluate(rollout)
        return float(np.abs(log_probs - rollout.log_probs).mean())

    assert how_far(1000.0) < 0.25 * how_far(0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_goes_to_its_reference(kind):
    rollout, estimate, learner = rollout_and_learner(ENVS["scored"], kind, kl_ref_coef=1.0, n_epochs=5)
    learner.set_reference(moved(learner.policy, by=0.2))
    stats = [learner.update(rollout, estimate, UpdateSettings(i, 3e-3, LossTerms(kl_ref=100.0))) for i in range(6)]
    assert stats[-1].kl_ref < 0.2 * stats[0].kl_ref


@pytest.mark.parametrize("name", ["discrete", "everything", "scored"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_held_policy_keeps_every_bit_while_values_are_learned(kind, name):
    rollout, estimate, learner = rollout_and_learner(ENVS[name], kind, kl_ref_coef=0.5, ent_coef=0.01, n_epochs=2)
    learner.set_reference(moved(learner.policy))
    before = {key: weight.clone() for key, weight in learner.policy.state_dict().items()}
    stats = learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(kl_ref=0.5, freeze_policy=True)))
    after = learner.policy.state_dict()
    for key, weight in before.items():
        is_value = key.startswith("network.vf.")
        assert torch.equal(weight, after[key]) != is_value or not weight.numel(), key
    assert stats.approx_kl < 1e-6 and stats.loss == pytest.approx(0.5 * stats.value_loss, rel=1e-5)


def test_after_a_warm_up_numpy_and_autograd_go_on_alike():
    """The policy's moments begin when it begins to learn: its first step is not larger than any first step."""
    learners = []
    for kind in KINDS:
        rollout, estimate, learner = rollout_and_learner("CartPole-v1", kind, n_epochs=2)
        learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(freeze_policy=True)))
        _, moments = learner.engine.checkpoint_tensors()
        _, _, again = rollout_and_learner("CartPole-v1", kind, n_epochs=2)
        again.policy.load_state_dict(learner.policy.state_dict())
        again.engine.restore(moments)
        for one in (learner, again):
            one.update(rollout, estimate, UpdateSettings(1, 1e-3))
        for p, q in zip(learner.policy.parameters(), again.policy.parameters(), strict=True):
            assert torch.equal(p, q)
        learners.append(learner)
    for p, q in zip(*(learner.policy.parameters() for learner in learners), strict=True):
        torch.testing.assert_close(p, q, atol=3e-5, rtol=1e-3)


def test_a_network_with_a_shared_trunk_is_held_by_what_the_action_depends_on():
    class Shared(torch.nn.Module):
        def __init__(self, observation_space, action_space):
            super().__init__()
            self.trunk = torch.nn.Linear(4, 8)
            self.pi, self.vf = torch.nn.Linear(8, n_action_params(action_space)), torch.nn.Linear(8, 1)

        def forward(self, observations):
            hidden = self.trunk(observations).tanh()
            return self.pi(hidden), self.vf(hidden).squeeze(-1)

    rollout, estimate, plain = rollout_and_learner("CartPole-v1", "torch")
    policy = Policy(plain.policy.layout.space, plain.policy.codec.layout.space, network=Shared)
    learner = Learner(policy, plain.config, 0, CPU, TorchEngine(policy, plain.config, CPU))
    before = {key: weight.clone() for key, weight in policy.state_dict().items()}
    learner.update(rollout, estimate, UpdateSettings(0, 1e-2, LossTerms(freeze_policy=True)))
    changed = {key for key, weight in policy.state_dict().items() if not torch.equal(weight, before[key])}
    assert changed == {"network.vf.weight", "network.vf.bias"}


def test_the_weight_falls_to_nothing():
    config = parse_config({"env": "x", "kl_ref_coef": 2.0, "timesteps": 1000, "critic_warmup": 300})
    assert [loss_terms_at(config, t).kl_ref for t in (0, 500, 1000, 2000)] == [2.0, 1.0, 0.0, 0.0]
    assert [loss_terms_at(config, t).freeze_policy for t in (0, 299, 300)] == [True, True, False]
    assert config.kl_ref_steps == 1000  # recorded, so that a longer budget does not change it
    assert loss_terms_at(parse_config({"env": "x"}), 0) == LossTerms()
    assert loss_terms_at(parse_config({"env": "x", "kl_ref_coef": 1, "kl_ref_steps": 10}), 5).kl_ref == 0.5


def test_what_cannot_be_done_is_refused():
    with pytest.raises(UsageError, match="kl_ref_coef needs kl_ref_steps or timesteps"):
        parse_config({"env": "x", "kl_ref_coef": 1, "num_episodes": 5})
    with pytest.raises(UsageError, match="kl_ref_steps 5 has no effect without kl_ref_coef"):
        parse_config({"env": "x", "kl_ref_steps": 5})
    rollout, estimate, learner = rollout_and_learner("CartPole-v1", kl_ref_coef=1.0)
    with pytest.raises(UsageError, match="kl_ref_coef 1 needs a reference policy"):
        learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(kl_ref=1.0)))
    with pytest.raises(UsageError, match="the reference does not fit"):
        learner.set_reference({"network.pi.0.weight": np.zeros((2, 2))})
