"""PPO updates: numpy, autograd and Stable-Baselines3 agree, and the losses are those of PPO."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium import spaces

from corral.config.schema import parse_config
from corral.envs.factory import resolve_env
from corral.policy.policy import Policy
from corral.ppo import losses
from corral.ppo.engine_torch import TorchEngine
from corral.ppo.gae import estimate_advantages
from corral.ppo.learner import Learner, LearnerDiverged, UpdateSettings, UpdateStats
from corral.ppo.mlp_engine import MlpEngine, share_setup
from corral.ppo.shares import Shares
from corral.rollout.actors import actor_spec
from corral.rollout.source_local import LocalSource
from corral.vec import make_vector_env
from tests.toy_envs import ByteDigits, Masked, Shuffled, Spaces

CPU = torch.device("cpu")
ENVS = {
    "discrete": "CartPole-v1",
    "box": "Pendulum-v1",
    "masked": lambda: Masked("method"),
    "maze": "toy-maze",
    "everything": "toy-everything",
    "multi": lambda: Spaces(spaces.Box(-1, 1, (3,)), spaces.MultiDiscrete([3, 4])),
    "scored": lambda: Shuffled(),
    "scored, unmasked": lambda: Shuffled(masked=False, dtype=np.float32),
    "bytes": lambda: ByteDigits(),
    "binary": lambda: Spaces(spaces.Box(-1, 1, (3,)), spaces.MultiBinary(3)),
}


def rollout_and_learner(env, learner="numpy", **settings):
    """Return a rollout of four envs, its advantages and a learner of the policy that collected it."""
    config = parse_config({"env": "x", "n_envs": 4, "n_steps": 32, "batch_size": 32, **settings})
    vector = make_vector_env(resolve_env(env), 4, backend="serial", seed=0, infos="summed")
    torch.manual_seed(0)
    policy = Policy(vector.single_observation_space, vector.single_action_space, normalize_obs=config.normalize_obs)
    actor = actor_spec(policy, None, CPU, 4).build(0, 4)
    source = LocalSource(vector, actor, config.n_steps, 0)
    source.publish(policy.state_dict(), 0)
    source.begin(0)
    rollout = source.collect()
    source.close()
    if learner == "torch":
        engine = TorchEngine(policy, config, CPU)
    else:
        shares = share_setup(policy, policy.mlp_shape(), config, rollout.masks is not None)
        engine = MlpEngine(policy, config, Shares.here(shares))
    estimate = estimate_advantages(
        rollout.rewards,
        rollout.values,
        rollout.terminated,
        rollout.truncated,
        rollout.final_values,
        rollout.last_values,
        0.99,
        0.95,
    )
    return rollout, estimate, Learner(policy, config, 0, CPU, engine)


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_first_minibatch_has_ratio_one(name, normalize_obs, kind):
    """Actor and learner compute the same log-probabilities, with the same masks, distributions and normalisation."""
    rollout, estimate, learner = rollout_and_learner(ENVS[name], kind, normalize_obs=normalize_obs)
    log_probs, values = learner.engine.log_probs_and_values(rollout)
    assert np.abs(np.exp(log_probs - rollout.log_probs) - 1).max() < 1e-5
    np.testing.assert_allclose(values, rollout.values, atol=1e-5, rtol=1e-5)
    for all_rows, every_third_row in zip(
        (log_probs, values), learner.engine.log_probs_and_values(rollout, 3), strict=True
    ):
        np.testing.assert_allclose(every_third_row, all_rows[::3], atol=1e-6, rtol=1e-6)
    stats = learner.update(rollout, estimate, UpdateSettings(0, 3e-4))
    assert stats.grad_norm > 0
    log_probs, _ = learner.engine.log_probs_and_values(rollout)
    change = np.abs(np.exp(log_probs - rollout.log_probs) - 1).max()
    assert change > 1e-5 or name == "masked"  # the update changed the policy


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("settings", [{}, {"clip_range_vf": 0.01, "ent_coef": 0.1, "learner_shares": 3}])
def test_numpy_and_autograd_take_the_same_steps(name, settings):
    """An update of 8 minibatches gives the same weights and the same statistics, up to rounding."""
    common = {"n_epochs": 2, "normalize_advantage": name != "masked", **settings}
    rollout, estimate, numpy_learner = rollout_and_learner(ENVS[name], "numpy", **common)
    common.pop("learner_shares", None)
    _, _, torch_learner = rollout_and_learner(ENVS[name], "torch", **common)
    stats = [learner.update(rollout, estimate, UpdateSettings(0, 3e-4)) for learner in (numpy_learner, torch_learner)]
    for (label, p), q in zip(numpy_learner.policy.named_parameters(), torch_learner.policy.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=2e-5, rtol=1e-3, msg=lambda m, label=label: f"{label}: {m}")
    for field in dataclasses.fields(UpdateStats):
        numpy_stat, torch_stat = (getattr(update_stats, field.name) for update_stats in stats)
        assert numpy_stat == torch_stat or numpy_stat == pytest.approx(torch_stat, rel=2e-3, abs=2e-5), field.name


def test_an_update_raises_the_probability_of_better_actions():
    rollout, estimate, learner = rollout_and_learner("CartPole-v1", n_epochs=1, batch_size=128)
    learner.update(rollout, estimate, UpdateSettings(0, 1e-3))
    after, _ = learner.engine.log_probs_and_values(rollout)
    advantages = estimate.advantages - estimate.advantages.mean()
    assert ((after - rollout.log_probs) * advantages).mean() > 0


def test_the_clipped_surrogate_and_the_kl_estimate_are_those_of_stable_baselines3():
    torch.manual_seed(0)
    log_ratio, advantages = torch.randn(64) * 0.3, torch.randn(64)
    ratio = log_ratio.exp()
    expected = -torch.min(advantages * ratio, advantages * ratio.clamp(0.8, 1.2)).mean()
    torch.testing.assert_close(losses.policy_loss(log_ratio, advantages, 0.2), expected)
    expected_kl = ((ratio - 1) - log_ratio).mean()
    torch.testing.assert_close(losses.approximate_kl(log_ratio), expected_kl, atol=1e-6, rtol=1e-4)
    assert losses.clip_fraction(log_ratio, 0.2) == ((ratio - 1).abs() > 0.2).float().mean()


def test_value_clipping_keeps_values_near_the_old_ones():
    old, new, returns = torch.zeros(3), torch.tensor([0.05, 5.0, -5.0]), torch.ones(3)
    clipped = losses.value_loss(new, old, returns, 0.1)
    assert clipped == torch.nn.functional.mse_loss(torch.tensor([0.05, 0.1, -0.1]), returns)
    assert losses.value_loss(new, old, returns, None) == torch.nn.functional.mse_loss(new, returns)


def test_the_advantage_of_a_minibatch_of_one_row_is_not_normalised_to_zero():
    rollout, estimate, learner = rollout_and_learner("CartPole-v1", batch_size=1, n_epochs=1)
    assert learner.update(rollout, estimate, UpdateSettings(0, 3e-4)).grad_norm > 0.1


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_target_kl_ends_an_update_early(kind):
    rollout, estimate, learner = rollout_and_learner("CartPole-v1", kind, target_kl=1e-6)
    learner.update(rollout, estimate, UpdateSettings(0, 1e-2))
    assert 1 <= learner.n_gradient_steps < 10 * 4


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_one_gradient_step_equals_that_of_stable_baselines3(kind):
    """The same network, rollout and minibatch give the same weights."""
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    rollout, estimate, learner = rollout_and_learner("CartPole-v1", kind, n_epochs=1, batch_size=128, ent_coef=0.01)
    model = PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gym.make("CartPole-v1")] * 4),
        n_steps=32,
        batch_size=128,
        n_epochs=1,
        ent_coef=0.01,
        device="cpu",
    )
    with torch.no_grad():
        sb3_policy = model.policy
        for layers, sb3_layers in (
            (learner.policy.network.pi, [*sb3_policy.mlp_extractor.policy_net, sb3_policy.action_net]),
            (learner.policy.network.vf, [*sb3_policy.mlp_extractor.value_net, sb3_policy.value_net]),
        ):
            for layer, sb3_layer in zip(layers, sb3_layers, strict=True):
                for weight, sb3_weight in zip(layer.parameters(), sb3_layer.parameters(), strict=True):
                    sb3_weight.copy_(weight)
    buffer = model.rollout_buffer
    buffer.observations, buffer.actions = rollout.observations[""].copy(), rollout.actions.astype(np.float32)
    buffer.values, buffer.log_probs = rollout.values.copy(), rollout.log_probs.copy()
    buffer.advantages, buffer.returns = estimate.advantages.copy(), estimate.returns.copy()
    buffer.full = True
    model.set_logger(configure(None, []))
    model.train()
    learner.update(rollout, estimate, UpdateSettings(0, 3e-4))
    weights = torch.cat([p.reshape(-1) for p in learner.policy.network.pi.parameters()])
    sb3_weights = torch.cat(
        [
            p.reshape(-1)
            for layer in (*sb3_policy.mlp_extractor.policy_net, sb3_policy.action_net)
            for p in layer.parameters()
        ]
    )
    torch.testing.assert_close(weights, sb3_weights, atol=1e-6, rtol=1e-4)


def test_an_advantage_of_nan_raises_learner_diverged():
    rollout, estimate, learner = rollout_and_learner("CartPole-v1")
    estimate.advantages[0, 0] = np.nan
    with pytest.raises(LearnerDiverged, match="not finite in iteration 0"):
        learner.update(rollout, estimate, UpdateSettings(0, 3e-4))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_restored_optimiser_continues_bit_for_bit(kind):
    rollout, estimate, original = rollout_and_learner("CartPole-v1", kind)
    original.update(rollout, estimate, UpdateSettings(0, 3e-4))
    _, _, restored = rollout_and_learner("CartPole-v1", kind)
    restored.policy.load_state_dict(original.policy.state_dict())
    restored.engine.restore_moments(original.engine.checkpoint_tensors()[1])
    for learner in (original, restored):
        learner.update(rollout, estimate, UpdateSettings(1, 3e-4))
    for p, q in zip(original.policy.parameters(), restored.policy.parameters(), strict=True):
        assert torch.equal(p, q)
