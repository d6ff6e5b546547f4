"""Training on images: the policy learns, and every backend and number of threads gives the same weights."""

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


def test_a_cnn_learns_to_find_the_bright_square():
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
    ("env_options", "settings"),
    [
        ({}, {}),
        ({"side": 40, "cell": 8, "vector": True}, {"batch_size": 120, "n_steps": 24, "timesteps": 240}),
        ({"side": 12, "channels_first": False}, {"cnn": "impala", "overlap": True, "n_steps": 24, "timesteps": 240}),
    ],
    ids=["small", "nature, with a vector", "impala, overlap"],
)
def test_weights_do_not_depend_on_the_backend(env_options, settings):
    backends = [{"backend": "serial"}, {"backend": "process", "num_workers": 2}]
    backends += [{"backend": "worker", "num_workers": n, "parallel_start_method": "fork"} for n in (1, 2, 3)]
    hashes = [weights(lambda: BrightSquare(**env_options), **settings, **backend) for backend in backends]
    assert len(set(hashes)) == 1, hashes


def test_weights_do_not_depend_on_the_number_of_threads():
    """The shards of a minibatch depend on the run's config, not on the number of threads of learner or actor."""
    thread_settings = [{"learner_threads": n} for n in (1, 2)]
    hashes = [weights(BrightSquare, batch_size=120, backend="serial", **threads) for threads in (*thread_settings, {})]
    assert len(set(hashes)) == 1, hashes


def test_gradients_of_minibatch_shards_add_up_to_the_full_gradient(monkeypatch):
    """With and without shards, the gradient is the same except for rounding."""
    settings = {**SMALL, "batch_size": 240, "timesteps": 240, "learning_rate": 1e-5, "backend": "serial"}
    sharded = corral.train(BrightSquare, **settings)
    monkeypatch.setattr("corral.ppo.minibatch_shards._SHARDS_BY_ROWS", ())
    unsharded = corral.train(BrightSquare, **settings)
    assert sharded.summary.weights_sha256 != unsharded.summary.weights_sha256
    rows = [list(csv.DictReader((run.run_dir / "progress.csv").open()))[-1] for run in (sharded, unsharded)]
    names = [name for name in rows[0] if name.startswith("train/")]
    assert len(names) > 5
    for name in names:
        assert float(rows[0][name]) == pytest.approx(float(rows[1][name]), rel=1e-3, abs=1e-6), name


def test_weights_with_bf16_do_not_depend_on_the_backend():
    """The run is short, because bfloat16 is slow on processors without instructions for it."""
    short = {"n_steps": 12, "timesteps": 120, "batch_size": 60, "bf16": True}
    float32 = weights(BrightSquare, **{**short, "bf16": False}, backend="serial")
    backends = [{"backend": "serial"}, {"backend": "worker", "num_workers": 2, "parallel_start_method": "fork"}]
    hashes = [weights(BrightSquare, **short, **backend) for backend in backends]
    assert len(set(hashes)) == 1 and float32 not in hashes


def test_automatic_settings_are_recorded_and_the_run_can_be_loaded_and_resumed():
    run = corral.train(lambda: BrightSquare(), **SMALL, backend="serial", output_dir="run")
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert config["net_arch"] == {"pi": [], "vf": []} and config["learner"] == "torch"
    text = Path("run/config.yaml").read_text()
    assert "rows are inferred in tiles of" in text or "rows are inferred in batches of one row" in text  # by processor
    model = corral.load("run")
    observation, _ = BrightSquare().reset(seed=0)
    action, _ = model.predict(observation)
    batch_actions, _ = model.predict(np.stack([observation] * 3))
    assert batch_actions.tolist() == [action] * 3
    resumed = corral.resume("run", env=lambda: BrightSquare(), timesteps=720, quiet=True)
    assert resumed.summary.steps == 720
    assert resumed.summary.weights_sha256 == weights(lambda: BrightSquare(), timesteps=720)
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
def test_image_settings_that_do_not_fit_the_observations_are_refused(env, settings, message):
    settings = {**{name: value for name, value in SMALL.items() if name != "cnn_features"}, **settings}
    with pytest.raises(UsageError, match=message):
        corral.train(env, **settings)


def test_images_without_a_cnn_are_trained_by_the_numpy_learner():
    corral.train(lambda: BrightSquare(12), **{**SMALL, "cnn_features": 256}, cnn="none", output_dir="flat")
    assert yaml.safe_load(Path("flat/config.yaml").read_text())["learner"] == "numpy"


def test_learner_shares_are_recorded_and_kept_on_resume_and_their_threads_end_with_the_run():
    before = threading.active_count()
    uninterrupted = weights(BrightSquare, learner_shares=3, timesteps=720)
    weights(BrightSquare, learner_shares=3, output_dir="run")
    assert yaml.safe_load(Path("run/config.yaml").read_text())["learner_shares"] == 3
    assert corral.resume("run", env=BrightSquare, timesteps=720, quiet=True).summary.weights_sha256 == uninterrupted
    assert weights(BrightSquare, learner_shares=1, timesteps=720) != uninterrupted
    assert threading.active_count() == before
