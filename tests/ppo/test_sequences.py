"""Recurrent policies learn from whole sequences, which start with the recurrent states of the rollout."""

import numpy as np
import pytest
import torch

from corral.config.schema import parse_config
from corral.envs.factory import resolve_env
from corral.policy.policy import Policy
from corral.policy.recurrent import SequenceStart
from corral.ppo.engine_torch import TorchEngine
from corral.ppo.gae import estimate_advantages
from corral.ppo.learner import Learner, UpdateSettings
from corral.ppo.loss_terms import LossTerms
from corral.rollout.actors import actor_spec
from corral.rollout.source_local import LocalSource
from corral.vec import make_vector_env
from tests.toy_envs import BrightSquare, Counter, Shuffled

CPU = torch.device("cpu")
ENVS = {
    "terminated": lambda: Counter(5),
    "truncated": lambda: Counter(7, truncate=True),
    "masked": lambda: resolve_env("toy-recall", {"delay": 3, "masked": True})(),
    "everything": "toy-everything",
    "scored": lambda: Shuffled(),
    "images": lambda: BrightSquare(),
    "long": "CartPole-v1",
}
N, T = 4, 32
pytestmark = pytest.mark.usefixtures("one_thread")


def collect(env, kind="gru", iterations=2, **settings):
    """Return the last of several rollouts, its advantages and a learner of the policy that collected it."""
    config = parse_config(
        {"env": "x", "n_envs": N, "n_steps": T, "batch_size": 64, "recurrent": kind, "recurrent_size": 12, **settings}
    )
    vector = make_vector_env(resolve_env(env), N, backend="serial", seed=0, infos="summed")
    torch.manual_seed(0)
    policy = Policy(
        vector.single_observation_space,
        vector.single_action_space,
        recurrent=kind,
        recurrent_size=12,
        cnn_features=16,
        normalize_obs=config.normalize_obs,
    )
    with torch.no_grad():
        for parameter in policy.network.pi.parameters():
            parameter.mul_(20)  # so that actions depend visibly on the recurrent state
    source = LocalSource(vector, actor_spec(policy, None, CPU, N).build(0, N), T, 0)
    source.publish(policy.state_dict(), 0)
    for iteration in range(iterations):
        source.begin(iteration)
        rollout = source.collect()
    source.close()
    episode_ends = rollout.terminated, rollout.truncated, rollout.final_values, rollout.last_values
    estimate = estimate_advantages(rollout.rewards.astype(np.float32), rollout.values, *episode_ends, 0.99, 0.95)
    return rollout, estimate, Learner(policy, config, 0, CPU, TorchEngine(policy, config, CPU))


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_unrolled_sequences_give_the_log_probs_and_values_of_the_rollout(name, kind):
    rollout, estimate, learner = collect(ENVS[name], kind)
    engine = learner.engine
    order = learner._shuffle(0)
    engine.load(rollout, estimate.returns, estimate.advantages.reshape(-1)[order], order)
    with torch.no_grad():
        for rows in engine._minibatch_rows:
            masks = None if engine._masks is None else engine._masks[rows]
            start = engine._starts_of(rows, engine._length)
            evaluated = learner.policy.evaluate(engine._inputs_of(rows), engine._actions[rows], masks, start)
            log_probs, values, _ = engine._scalars[rows].unbind(1)
            torch.testing.assert_close(evaluated.log_probs, log_probs, atol=2e-4, rtol=1e-4)
            torch.testing.assert_close(evaluated.values, values, atol=2e-4, rtol=1e-4)
    log_probs, values = engine.log_probs_and_values(rollout)
    np.testing.assert_allclose(log_probs, rollout.log_probs, atol=2e-4, rtol=1e-4)
    np.testing.assert_allclose(engine.log_probs_and_values(rollout, 3)[1], values[::3], atol=1e-6)
    stats = learner.update(rollout, estimate, UpdateSettings(0, 3e-4))
    assert stats.grad_norm > 0


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_recurrent_states_are_zero_only_after_an_episode_ends(name):
    rollout, _, _ = collect(ENVS[name])
    ended = (rollout.terminated | rollout.truncated)[:-1]
    assert ended.any() and not rollout.states[1:][ended].any()
    assert (np.abs(rollout.states[1:][~ended]).sum(-1) > 0).all()
    assert np.abs(rollout.states[0]).sum() > 0, "a rollout continues with the states at the end of the last one"


def test_the_final_value_of_a_truncated_episode_uses_its_recurrent_state():
    rollout, _, learner = collect(ENVS["truncated"])
    policy = learner.policy
    t, n = np.argwhere(rollout.truncated)[0]
    observation = torch.from_numpy(rollout.observations[""][t, n][None])
    _, _, state = policy.step({"features": observation}, torch.from_numpy(rollout.states[t, n][None]))
    final_observation = observation + torch.tensor([[0.0, 1.0]])
    _, value, _ = policy.step({"features": final_observation}, state)
    assert value.item() == pytest.approx(float(rollout.final_values[t, n]), abs=1e-5)
    _, last_values, _ = policy.step(
        {"features": torch.from_numpy(rollout.last_observations[""])}, torch.from_numpy(rollout.last_states)
    )
    np.testing.assert_allclose(last_values.detach().numpy(), rollout.last_values, atol=1e-5)


def test_minibatches_are_whole_sequences_and_each_comes_once_in_an_epoch():
    _, _, learner = collect(ENVS["terminated"], sequence_length=8, n_epochs=3)
    order = learner._shuffle(5)
    assert order.shape == (3 * T * N // 64, 64)
    steps, envs = np.divmod(order.reshape(-1, 8), N)
    assert (envs == envs[:, :1]).all() and (np.diff(steps) == 1).all() and (steps[:, 0] % 8 == 0).all()
    for epoch in np.split(order, 3):
        assert np.array_equal(np.sort(epoch.reshape(-1)), np.arange(T * N))


def test_shards_of_a_minibatch_split_no_sequence():
    """The gradient is the same as without shards; it would differ if a recurrent state were lost between two shards."""
    gradients = []
    for n_shards in (1, 3):
        rollout, estimate, learner = collect(ENVS["images"], learner_shares=n_shards, batch_size=128)
        order = learner._shuffle(0)
        learner.engine.load(rollout, estimate.returns, estimate.advantages.reshape(-1)[order], order)
        learner.engine.compute_gradient(0)
        gradients.append({name: p.grad for name, p in learner.policy.named_parameters() if p.grad is not None})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-5, rtol=1e-3, msg=lambda m: f"{name}: {m}")


def test_a_reference_and_a_frozen_policy_work_with_a_recurrent_policy():
    rollout, estimate, learner = collect(ENVS["everything"], kl_ref_coef=1.0, kl_ref_steps=100)
    learner.set_reference(learner.policy.state_dict())
    before = {name: p.clone() for name, p in learner.policy.named_parameters()}
    stats = learner.update(rollout, estimate, UpdateSettings(0, 1e-3, LossTerms(kl_ref_coef=1.0, freeze_policy=True)))
    assert stats.kl_ref == pytest.approx(0.0, abs=1e-5)
    for name, parameter in learner.policy.named_parameters():
        assert torch.equal(parameter, before[name]) == (not name.startswith("network.vf")), name
    learner.update(rollout, estimate, UpdateSettings(1, 1e-2, LossTerms()))
    assert learner.update(rollout, estimate, UpdateSettings(2, 1e-3, LossTerms(kl_ref_coef=1.0))).kl_ref > 1e-4


def test_gradients_do_not_flow_past_the_start_of_a_sequence_or_an_episode():
    torch.manual_seed(0)
    _, _, learner = collect(ENVS["terminated"])
    features = torch.randn(2 * 4, 2, requires_grad=True)
    starts = torch.zeros(8, dtype=torch.bool)
    starts[2] = True
    outputs = learner.policy.core(features, SequenceStart(torch.randn(2, 12), starts))
    (gradient,) = torch.autograd.grad(outputs[3].sum(), features)
    assert (gradient.abs().sum(1) > 0).tolist() == [False, False, True, True, False, False, False, False]
