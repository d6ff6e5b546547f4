"""Warm starts: the policy imitates an expert, stays near it at first, and an interrupted warm start can be resumed."""

import signal
from pathlib import Path

import numpy as np
import pytest

import corral
from corral.core.errors import EnvFault, UsageError
from corral.envs.factory import resolve_env
from corral.opponents.expert_rollouts import collect_expert_games
from corral.processes.recovery_config import RecoveryConfig
from corral.recipes.warmstart import warmstart
from corral.storage.checkpoint import list_checkpoints
from corral.storage.metrics_file import read_metrics
from tests.toy_envs import Counter, HighCard, MortalHighCard

SMALL = {"n_envs": 4, "n_steps": 32, "batch_size": 64, "n_epochs": 2, "eval_freq": 0, "tensorboard": False, "seed": 1}


def collect_games(factory, n_steps, num_workers):
    """Return complete games of the miser against the random opponent, of at most ``n_steps`` steps in all."""
    return collect_expert_games(
        factory,
        "miser",
        {"opponent": "random"},
        n_steps,
        n_envs=4,
        num_workers=num_workers,
        start_method="auto",
        seed=3,
        gamma=0.9,
        recovery=RecoveryConfig(recover=True),
    )


def assert_same_games(first, second):
    assert np.array_equal(first.actions, second.actions) and np.array_equal(first.masks, second.masks)
    assert np.array_equal(first.returns, second.returns) and first.win_rate == second.win_rate
    assert all(np.array_equal(leaf, second.observations[path]) for path, leaf in first.observations.items())


def test_expert_games_are_complete_and_the_same_for_any_number_of_workers():
    games = collect_games(resolve_env(HighCard), 203, num_workers=1)
    assert len(games.actions) == 200 == 5 * games.games, "steps of an unfinished game were kept"
    assert (games.actions[:, 0] == games.masks.argmax(1)).all(), "the miser always plays the lowest card"
    assert np.array_equal(games.masks, games.observations[""][:, :8] > 0)
    returns = games.returns.reshape(-1, 5)
    assert np.allclose(returns, returns[:, -1:] * 0.9 ** np.arange(4, -1, -1))
    assert {*returns[:, -1]} <= {-1.0, 0.0, 1.0} and games.win_rate == np.mean((returns[:, -1] + 1) / 2)
    assert_same_games(games, collect_games(resolve_env(HighCard), 203, num_workers=3))


def test_expert_games_are_the_same_if_workers_die():
    Path("deaths").mkdir()
    env_that_kills_its_worker = resolve_env(MortalHighCard, {"directory": str(Path("deaths").absolute())})
    games = collect_games(env_that_kills_its_worker, 400, num_workers=2)
    assert games.fault_counts.restarts == len(list(Path("deaths").iterdir())) > 0
    assert_same_games(games, collect_games(resolve_env(HighCard), 400, num_workers=1))


def test_a_warm_start_begins_with_the_experts_policy_and_a_kl_penalty_that_ends():
    settings = {**SMALL, "timesteps": 1280, "critic_warmup": 512, "expert_steps": 2000}
    warmstart(
        HighCard,
        expert="miser",
        opponent="random",
        quiet=True,
        output_dir="run",
        keep_checkpoints=20,
        checkpoint_freq=128,
        **settings,
    )
    first_checkpoint = list_checkpoints(Path("run/checkpoints"))[0]
    model = corral.load("run", checkpoint=str(first_checkpoint))
    env, plays_lowest_card = HighCard(), []
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        action, _ = model.predict(observation, action_masks=env.action_masks())
        plays_lowest_card.append(action == np.flatnonzero(env.hands[0])[0])
    assert np.mean(plays_lowest_card) > 0.9
    rows = read_metrics(Path("run/metrics.jsonl"))
    assert all(abs(row["train/kl_ref"]) < 1e-6 for row in rows[:4]), (
        "the policy changed during the warm-up of the critic"
    )
    assert rows[4]["train/kl_ref"] > 1e-6 and rows[4]["train/kl_ref_coef"] > 0
    assert rows[-1]["train/kl_ref_coef"] == 0 and "train/kl_ref" not in rows[-1]


def test_the_imitated_policy_is_saved_even_if_the_first_training_step_fails():
    class FailsInTraining(HighCard):
        n_constructed = 0

        def __init__(self):
            super().__init__()
            self.number = FailsInTraining.n_constructed  # the training envs are constructed before those of the expert
            FailsInTraining.n_constructed += 1

        def step(self, action):
            if self.number < SMALL["n_envs"]:
                raise ValueError("the dragon won")
            return super().step(action)

    settings = {**SMALL, "timesteps": 128, "expert_steps": 200, "backend": "serial", "output_dir": "run"}
    with pytest.raises(EnvFault) as caught:
        warmstart(FailsInTraining, expert="miser", opponent="random", quiet=True, **settings)
    assert caught.value.exit_code == 2 and list_checkpoints(Path("run/checkpoints"))


def test_preset_v2_fits_the_critic_to_the_expert_and_has_more_entropy():
    for preset in ("v1", "v2"):
        warmstart(HighCard, preset=preset, timesteps=128, expert_steps=500, quiet=True, output_dir=preset, **SMALL)
    v1_config, v2_config = (corral.load(preset).config for preset in ("v1", "v2"))
    assert (v1_config.expert, v1_config.expert_values, v2_config.expert_values) == ("miser", False, True)
    assert v2_config.ent_coef > v1_config.ent_coef and v1_config.kl_ref_coef == v2_config.kl_ref_coef > 0
    first_critic_weights = []
    for preset in ("v1", "v2"):
        first_checkpoint = list_checkpoints(Path(preset, "checkpoints"))[0]
        policy = corral.load(preset, checkpoint=str(first_checkpoint)).policy
        first_critic_weights.append(policy.state_dict()["network.vf.0.weight"])
    assert not np.array_equal(*first_critic_weights)


@pytest.mark.parametrize("backend", ["serial", "worker"])
def test_a_resumed_warm_start_has_the_weights_of_an_uninterrupted_one(backend):
    settings = {**SMALL, "expert": "miser", "expert_steps": 500, "opponent": "random", "kl_ref_coef": 0.5}
    settings |= {"kl_ref_steps": 600, "critic_warmup": 256, "quiet": True}
    uninterrupted = corral.train(HighCard, timesteps=768, output_dir="whole", backend="serial", **settings).summary
    corral.train(HighCard, timesteps=384, output_dir="run", backend=backend, **settings)
    resumed = corral.resume("run", env=HighCard, timesteps=768, quiet=True).summary
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def test_a_run_interrupted_during_imitation_imitates_again_when_resumed(monkeypatch):
    settings = {**SMALL, "expert": "miser", "expert_steps": 500, "opponent": "random", "quiet": True}
    uninterrupted = corral.train(HighCard, timesteps=256, output_dir="whole", **settings).summary

    def send_sigint(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("corral.training.hooks.warm_start.imitate", send_sigint)
        corral.train(HighCard, timesteps=256, output_dir="run", **settings)
    resumed = corral.resume("run", env=HighCard, quiet=True).summary
    assert resumed.weights_sha256 == uninterrupted.weights_sha256


def test_without_a_budget_of_steps_critic_warmup_and_kl_penalty_have_default_lengths():
    Path("own.yaml").write_text("expert_steps: 200\nexpert: random\n")
    warmstart(HighCard, num_episodes=20, config="own.yaml", quiet=True, output_dir="run", **SMALL)
    config = corral.load("run").config
    assert (config.timesteps, config.critic_warmup, config.kl_ref_steps) == (None, 5_000, 50_000)
    assert (config.expert, config.opponent) == ("random", "miser")


def test_the_kl_penalty_must_be_a_number_and_its_steps_need_a_penalty():
    with pytest.raises(UsageError, match="kl_ref_coef 'x'"):
        warmstart(HighCard, kl_ref_coef="x", **SMALL)
    with pytest.raises(UsageError, match="kl_ref_steps 9 has no effect without kl_ref_coef"):
        warmstart(HighCard, kl_ref_coef="0", kl_ref_steps=9, **SMALL)
    settings = {**SMALL, "timesteps": 128, "expert_steps": 200, "output_dir": "run", "quiet": True}
    warmstart(HighCard, kl_ref_coef="0", **settings)
    assert corral.load("run").config.kl_ref_steps is None


def test_an_unknown_or_missing_expert_is_refused():
    with pytest.raises(UsageError, match="unknown expert 'greedy'; there are: random, miser"):
        corral.train(HighCard, timesteps=128, expert="greedy", quiet=True, **SMALL)
    with pytest.raises(UsageError, match="has no expert to imitate"):
        corral.train(Counter, timesteps=128, expert="greedy", quiet=True, **SMALL)
