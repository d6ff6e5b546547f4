"""Warm starts: the policy begins as its expert plays, does not forget it, and a warm start can be interrupted."""

import signal
from pathlib import Path

import numpy as np
import pytest

import corral
from corral.core.errors import EnvFault, UsageError
from corral.envs.factory import resolve_env
from corral.opponents.expert_rollouts import collect_expert_games
from corral.processes.supervision import RecoveryConfig
from corral.recipes.warmstart import warmstart
from corral.storage.checkpoint import list_checkpoints
from corral.storage.metrics_file import read_metrics
from tests.toy_envs import Counter, HighCard, MortalHighCard

SMALL = {"n_envs": 4, "n_steps": 32, "batch_size": 64, "n_epochs": 2, "eval_freq": 0, "tensorboard": False, "seed": 1}
HOW = {"n_envs": 4, "start_method": "auto", "seed": 3, "gamma": 0.9, "recovery": RecoveryConfig(heal=True)}


def same(one, two):
    assert np.array_equal(one.actions, two.actions) and np.array_equal(one.masks, two.masks)
    assert np.array_equal(one.returns, two.returns) and one.win_rate == two.win_rate
    assert all(np.array_equal(leaf, two.observations[path]) for path, leaf in one.observations.items())


def test_expert_games_are_whole_and_the_same_wherever_they_are_played():
    games = collect_expert_games(resolve_env(HighCard), "miser", {"opponent": "random"}, 203, num_workers=1, **HOW)
    assert len(games.actions) == 200 == 5 * games.games, "steps of a game that is not over do not count"
    assert (games.actions[:, 0] == games.masks.argmax(1)).all(), "a miser plays the lowest card"
    assert np.array_equal(games.masks, games.observations[""][:, :8] > 0)
    returns = games.returns.reshape(-1, 5)
    assert np.allclose(returns, returns[:, -1:] * 0.9 ** np.arange(4, -1, -1))
    assert {*returns[:, -1]} <= {-1.0, 0.0, 1.0} and games.win_rate == np.mean((returns[:, -1] + 1) / 2)
    same(games, collect_expert_games(resolve_env(HighCard), "miser", {"opponent": "random"}, 203, num_workers=3, **HOW))


def test_workers_that_die_leave_no_trace_in_expert_games():
    Path("deaths").mkdir()
    mortal = resolve_env(MortalHighCard, {"directory": str(Path("deaths").absolute())})
    games = collect_expert_games(mortal, "miser", {"opponent": "random"}, 400, num_workers=2, **HOW)
    assert games.recovery_counts.restarts == len(list(Path("deaths").iterdir())) > 0
    same(games, collect_expert_games(resolve_env(HighCard), "miser", {"opponent": "random"}, 400, num_workers=1, **HOW))


def test_a_warm_start_begins_where_its_expert_is_and_stays_there_at_first():
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
    first = list_checkpoints(Path("run/checkpoints"))[0]
    model = corral.load("run", checkpoint=str(first))
    env, lowest = HighCard(), []
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        action, _ = model.predict(observation, action_masks=env.action_masks())
        lowest.append(action == np.flatnonzero(env.hands[0])[0])
    assert np.mean(lowest) > 0.9
    rows = read_metrics(Path("run/metrics.jsonl"))
    assert all(abs(row["train/kl_ref"]) < 1e-6 for row in rows[:4]), "while only the values learn"
    assert rows[4]["train/kl_ref"] > 1e-6 and rows[4]["train/kl_ref_coef"] > 0
    assert rows[-1]["train/kl_ref_coef"] == 0 and "train/kl_ref" not in rows[-1]


def test_what_was_learned_from_an_expert_stays_even_if_the_env_then_fails_at_once():
    class FailsInTraining(HighCard):
        made = 0

        def __init__(self):
            super().__init__()
            self.number = FailsInTraining.made  # the envs to train on are made first, then those of the expert
            FailsInTraining.made += 1

        def step(self, action):
            if self.number < SMALL["n_envs"]:
                raise ValueError("the dragon won")
            return super().step(action)

    settings = {**SMALL, "timesteps": 128, "expert_steps": 200, "backend": "serial", "output_dir": "run"}
    with pytest.raises(EnvFault) as caught:
        warmstart(FailsInTraining, expert="miser", opponent="random", quiet=True, **settings)
    assert caught.value.exit_code == 2 and list_checkpoints(Path("run/checkpoints"))


def test_the_presets_differ_in_values_and_entropy():
    for preset in ("v1", "v2"):
        warmstart(HighCard, preset=preset, timesteps=128, expert_steps=500, quiet=True, output_dir=preset, **SMALL)
    one, two = (corral.load(preset).config for preset in ("v1", "v2"))
    assert (one.expert, one.expert_values, two.expert_values) == ("miser", False, True)
    assert two.ent_coef > one.ent_coef and one.kl_ref_coef == two.kl_ref_coef > 0
    values = [list_checkpoints(Path(preset, "checkpoints"))[0] for preset in ("v1", "v2")]
    untouched, fitted = (corral.load(p, checkpoint=str(c)) for p, c in zip(("v1", "v2"), values, strict=True))
    name = "network.vf.0.weight"
    assert not np.array_equal(untouched.policy.state_dict()[name], fitted.policy.state_dict()[name])


@pytest.mark.parametrize("backend", ["serial", "worker"])
def test_a_warm_start_is_resumed_exactly(backend):
    settings = {**SMALL, "expert": "miser", "expert_steps": 500, "opponent": "random", "kl_ref_coef": 0.5}
    settings |= {"kl_ref_steps": 600, "critic_warmup": 256, "quiet": True}
    whole = corral.train(HighCard, timesteps=768, output_dir="whole", backend="serial", **settings).summary
    corral.train(HighCard, timesteps=384, output_dir="run", backend=backend, **settings)
    again = corral.resume("run", env=HighCard, timesteps=768, quiet=True).summary
    assert again.weights_sha256 == whole.weights_sha256


def test_a_warm_start_that_was_interrupted_begins_again(monkeypatch):
    settings = {**SMALL, "expert": "miser", "expert_steps": 500, "opponent": "random", "quiet": True}
    whole = corral.train(HighCard, timesteps=256, output_dir="whole", **settings).summary

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("corral.training.hooks.warm_start.imitate", interrupted)
        corral.train(HighCard, timesteps=256, output_dir="run", **settings)
    again = corral.resume("run", env=HighCard, quiet=True).summary
    assert again.weights_sha256 == whole.weights_sha256


def test_without_a_budget_of_steps_a_warm_start_has_its_usual_lengths():
    Path("own.yaml").write_text("expert_steps: 200\nexpert: random\n")
    warmstart(HighCard, num_episodes=20, config="own.yaml", quiet=True, output_dir="run", **SMALL)
    config = corral.load("run").config
    assert (config.timesteps, config.critic_warmup, config.kl_ref_steps) == (None, 5_000, 50_000)
    assert (config.expert, config.opponent) == ("random", "miser")


def test_the_penalty_is_a_number_and_its_steps_are_not_ignored():
    with pytest.raises(UsageError, match="kl_ref_coef 'x'"):
        warmstart(HighCard, kl_ref_coef="x", **SMALL)
    with pytest.raises(UsageError, match="kl_ref_steps 9 has no effect without kl_ref_coef"):
        warmstart(HighCard, kl_ref_coef="0", kl_ref_steps=9, **SMALL)
    settings = {**SMALL, "timesteps": 128, "expert_steps": 200, "output_dir": "run", "quiet": True}
    warmstart(HighCard, kl_ref_coef="0", **settings)
    assert corral.load("run").config.kl_ref_steps is None


def test_without_an_expert_there_is_advice():
    with pytest.raises(UsageError, match="unknown expert 'greedy'; there are: random, miser"):
        corral.train(HighCard, timesteps=128, expert="greedy", quiet=True, **SMALL)
    with pytest.raises(UsageError, match="has no expert to imitate"):
        corral.train(Counter, timesteps=128, expert="greedy", quiet=True, **SMALL)
