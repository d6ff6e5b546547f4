"""Training on pictures: it learns, and whoever acts, it learns the same."""

import csv
import threading
from pathlib import Path

import numpy as np
import pytest
import yaml

import corral
from corral.core.errors import UsageError
from tests.toy_envs import BrightSquare

SMALL = {
    "n_envs": 5,
    "n_steps": 48,
    "batch_size": 60,
    "n_epochs": 1,
    "timesteps": 480,
    "cnn_features": 32,
    "seed": 3,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
}


def weights(env, **settings):
    return corral.train(env, **{**SMALL, **settings}).summary.weights_sha256


def test_the_bright_square_is_found():
    result = corral.train(
        lambda: BrightSquare(cell=4),
        timesteps=10_240,
        n_envs=8,
        n_steps=64,
        batch_size=128,
        n_epochs=4,
        learning_rate=1.5e-3,
        ent_coef=0.01,
        seed=1,
        eval_freq=0,
        tensorboard=False,
        quiet=True,
    )
    assert result.summary.mean_reward > 0.6  # chance is 0.1


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ({}, {}),
        ({"side": 40, "cell": 8, "vector": True}, {"batch_size": 120, "n_steps": 24, "timesteps": 240}),
        ({"side": 12, "channels_first": False}, {"cnn": "impala", "overlap": True, "n_steps": 24, "timesteps": 240}),
    ],
    ids=["small", "nature, beside a vector", "impala, overlapping"],
)
def test_weights_do_not_depend_on_who_acts(how, settings):
    ways = [{"backend": "serial"}, {"backend": "process", "num_workers": 2}]
    ways += [{"backend": "worker", "num_workers": n, "parallel_start_method": "fork"} for n in (1, 2, 3)]
    found = [weights(lambda: BrightSquare(**how), **settings, **way) for way in ways]
    assert len(set(found)) == 1, found


def test_weights_do_not_depend_on_threads():
    """Of any kind, those of the actor included: parts of a minibatch are the run's."""
    ways = [{"learner_threads": n} for n in (1, 2)]
    found = [weights(BrightSquare, batch_size=120, backend="serial", **way) for way in (*ways, {})]
    assert len(set(found)) == 1, found


def test_parts_of_a_minibatch_add_up(monkeypatch):
    """Whole or in parts, the gradient is the same but for rounding."""
    settings = {**SMALL, "batch_size": 240, "timesteps": 240, "learning_rate": 1e-5, "backend": "serial"}
    parts = corral.train(BrightSquare, **settings)
    monkeypatch.setattr("corral.ppo.minibatch_shards._SHARDS_BY_ROWS", ())
    whole = corral.train(BrightSquare, **settings)
    assert parts.summary.weights_sha256 != whole.summary.weights_sha256
    rows = [list(csv.DictReader((run.run_dir / "progress.csv").open()))[-1] for run in (parts, whole)]
    names = [name for name in rows[0] if name.startswith("train/")]
    assert len(names) > 5
    for name in names:
        assert float(rows[0][name]) == pytest.approx(float(rows[1][name]), rel=1e-3, abs=1e-6), name


def test_bf16_is_the_same_whoever_acts():
    """Few steps: without instructions for it, it is slow."""
    few = {"n_steps": 12, "timesteps": 120, "batch_size": 60, "bf16": True}
    plain = weights(BrightSquare, **{**few, "bf16": False}, backend="serial")
    ways = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2, "parallel_start_method": "fork"}]
    found = [weights(BrightSquare, **few, **way) for way in ways]
    assert len(set(found)) == 1 and plain not in found


def test_what_was_decided_is_recorded():
    run = corral.train(lambda: BrightSquare(), **SMALL, backend="serial", output_dir="run")
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["net_arch"] == {"pi": [], "vf": []} and config["learner"] == "torch"
    text = Path("run/config.yaml").read_text()
    assert "rows are inferred in tiles of" in text
    model = corral.load("run")
    observation, _ = BrightSquare().reset(seed=0)
    one, _ = model.predict(observation)
    several, _ = model.predict(np.stack([observation] * 3))
    assert several.tolist() == [one] * 3
    again = corral.resume("run", env=lambda: BrightSquare(), timesteps=720, quiet=True)
    assert again.summary.steps == 720
    assert again.summary.weights_sha256 == weights(lambda: BrightSquare(), timesteps=720)
    assert run.summary.steps == 480


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("CartPole-v1", {"cnn": "nature"}, "cnn nature is for images, but the observations have none"),
        ("CartPole-v1", {"cnn_features": 32}, "cnn_features 32 is for images, but the observations have none"),
        ("CartPole-v1", {"bf16": True}, "bf16 True is for images, but the observations have none"),
        (BrightSquare, {"cnn": "nature"}, "needs images of at least 36 x 36, but the image is 16 x 16"),
        (BrightSquare, {"learner": "numpy"}, "learner numpy is for networks that numpy runs"),
        ("CartPole-v1", {"learner": "torch", "learner_shares": 2}, "learner_shares with learner torch is for images"),
        (BrightSquare, {"learner_threads": 8, "learner_shares": 2}, "learner_threads 8 is more than the 2 shards"),
        (BrightSquare, {"cnn": "atari"}, "cnn 'atari': should be 'auto', 'nature', 'small', 'impala' or 'none'"),
    ],
)
def test_what_does_not_fit_is_refused(env, settings, message):
    settings = {**{name: value for name, value in SMALL.items() if name != "cnn_features"}, **settings}
    with pytest.raises(UsageError, match=message):
        corral.train(env, **settings)


def test_flat_pictures_are_learned_by_numpy():
    corral.train(lambda: BrightSquare(12), **{**SMALL, "cnn_features": 256}, cnn="none", output_dir="flat")
    assert yaml.safe_load(Path("flat/config.yaml").read_text())["learner"] == "numpy"


def test_parts_of_a_minibatch_are_recorded_and_kept_and_their_threads_end_with_the_run():
    before = threading.active_count()
    whole = weights(BrightSquare, learner_shares=3, timesteps=720)
    weights(BrightSquare, learner_shares=3, output_dir="run")
    assert yaml.safe_load(Path("run/config.yaml").read_text())["learner_shares"] == 3
    assert corral.resume("run", env=BrightSquare, timesteps=720, quiet=True).summary.weights_sha256 == whole
    assert weights(BrightSquare, learner_shares=1, timesteps=720) != whole
    assert threading.active_count() == before
