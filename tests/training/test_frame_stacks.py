"""Frames are stored once, and nothing that is learned depends on it."""

import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

import corral
from corral.core.errors import UsageError
from corral.core.frame_stacks import ObservationView, find_frame_stacks
from corral.core.spaces import Layout
from corral.core.types import ActionSample
from corral.rollout.buffers import allocate_rollout, column_specs
from corral.rollout.collector import Collector
from corral.vec.serial import SerialVectorEnv
from tests.toy_envs import BrightSquare, ByteDigits, Film

SMALL = {
    "n_envs": 3,
    "n_steps": 32,
    "batch_size": 48,
    "n_epochs": 2,
    "timesteps": 288,
    "cnn_features": 16,
    "seed": 5,
    "eval_freq": 0,
    "tensorboard": False,
    "quiet": True,
}
FORKED = {"parallel_start_method": "fork"}


def weights(env, **settings):
    return corral.train(env, **{**SMALL, **settings}).summary.weights_sha256


class Coin:
    """An actor that tosses the noise."""

    defers_values, value_leaves, n_state = False, None, 0

    def act(self, observations, masks, noise, states=None):
        return ActionSample(
            (noise < 0.5).astype(np.int64), np.zeros(len(noise), np.float32), np.zeros(len(noise), np.float32)
        )

    def values(self, observations, envs, states=None):
        return np.zeros(len(envs), np.float32)


def collected(env, iterations=2, n_steps=20):
    vector = SerialVectorEnv(env, 4, seed=1, infos="summed")
    vector.reset_arrays()
    collector = Collector(vector, Coin(), n_steps, 0)
    rollout = allocate_rollout(vector.layout, vector.codec, n_steps, 4, False, vector.env_info.stacks)
    for iteration in range(iterations):
        collector.collect(iteration, rollout)
        yield rollout


@pytest.mark.parametrize("frames", [2, 3, 5])
def test_stacks_come_out_as_they_were_shown(frames):
    pairs = zip(collected(lambda: Film(frames)), collected(lambda: Film(frames, declare=False)), strict=True)
    for once, whole in pairs:
        assert once.observations["map"].shape == (20 + frames - 1, 4, 2, 8, 8)
        assert once.observations["plain"].shape == (20, 4, 2) and whole.stacks == {}
        assert (once.terminated | once.truncated).any()
        rows = np.random.default_rng(0).permutation(80)[:30]
        for found, expected in (
            (ObservationView(once).all(), ObservationView(whole).all()),
            (ObservationView(once)[rows], ObservationView(whole)[rows]),
        ):
            for path, leaf in expected.items():
                assert found[path].dtype == leaf.dtype
                np.testing.assert_array_equal(found[path], leaf, err_msg=path)


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "serial"},
        {"backend": "process", "num_workers": 2, **FORKED},
        {"num_workers": 1, "backend": "worker", **FORKED},
        {"num_workers": 2, **FORKED},
        {"num_workers": 2, "overlap": True, **FORKED},
        {"backend": "serial", "normalize_obs": True},
        {"backend": "serial", "kl_ref_coef": 1.0, "critic_warmup": 96},
        {"backend": "serial", "cnn": "none", "cnn_features": 256},
        {"backend": "serial", "cnn": "none", "cnn_features": 256, "normalize_obs": True, "learner": "torch"},
        {"num_workers": 2, "cnn": "none", "cnn_features": 256, "overlap": True, **FORKED},
    ],
    ids=lambda settings: ", ".join(f"{name} {value}" for name, value in settings.items()),
)
def test_weights_are_those_of_whole_stacks(settings):
    once, whole = (weights(lambda declare=declare: Film(declare=declare), **settings) for declare in (True, False))
    assert once == whole


def test_stacked_vectors_of_bytes_are_normalised_as_whole_stacks():
    class Undeclared(FrameStackObservation):
        frame_stacks = {}  # noqa: RUF012 - as an env would write it

    settings = {"backend": "serial", "cnn_features": 256, "normalize_obs": True}
    once, whole = (
        weights(lambda kind=kind: kind(ByteDigits(), 3), **settings) for kind in (FrameStackObservation, Undeclared)
    )
    assert once == whole


def test_resumed_runs_go_on_the_same():
    """In the middle of episodes, so that frames from before the rollout matter."""
    settings = {**SMALL, "backend": "serial", "output_dir": "run"}
    corral.train(lambda: Film(length=50), **{**settings, "timesteps": 96})
    again = corral.resume("run", env=lambda: Film(length=50), timesteps=288, quiet=True)
    assert again.summary.weights_sha256 == weights(lambda: Film(length=50, declare=False))


class Deadly(Film):
    """Kills its process once, in the middle of an episode in the middle of a rollout."""

    def __init__(self, mark):
        super().__init__(length=50)
        self.mark = mark

    def step(self, action):
        if self.steps == 20 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_a_worker_that_dies_in_the_middle_of_a_rollout_is_replaced(tmp_path):
    result = corral.train(lambda: Deadly(tmp_path / "dead"), **SMALL, num_workers=2, **FORKED)
    assert result.summary.restarts == 1 and result.summary.inexact == 0
    assert result.summary.weights_sha256 == weights(lambda: Film(length=50, declare=False))


class Taught(Film):
    """Knows what to do, and who plays the other side."""

    opponents = ("teacher",)

    def advise(self, name):
        return int(self.seen[1]["global"][0] > 0)

    def action_masks(self):
        return np.ones(2, np.bool_)


def test_experts_are_imitated():
    expert = {"expert": "teacher", "expert_steps": 200, "expert_epochs": 2, "backend": "serial"}
    once, whole = (weights(lambda declare=declare: Taught(declare=declare), **expert) for declare in (True, False))
    assert once == whole


@pytest.mark.parametrize("workers", [{"backend": "serial"}, {"num_workers": 2, **FORKED}], ids=["serial", "workers"])
@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("zeros", "is 3 frames, oldest first, but after a reset they are not all the same frame; correct that"),
        ("newest first", "is 3 frames, oldest first, but a step does not shift them by one"),
        ("refilled", "is 3 frames, oldest first, but a step does not shift them by one.*frame_stacks = {}"),
    ],
)
def test_envs_that_stack_otherwise_are_refused(flaw, message, workers):
    with pytest.raises(UsageError, match=message):
        weights(lambda: Film(flaw=flaw, length=30), **workers)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mop": 3}, "frame_stacks name 'mop', but its observations are 'choice', 'global', 'map', 'plain'"),
        ({"map": 4}, r"say that 'map' is 4 frames, joined along the first axis, but it is Box\(0, 255, \(6, 8, 8\)"),
        ({"choice": 3}, r"say that 'choice' is 3 frames, .* but it is Discrete\(3\)"),
        ({"map": "three"}, "expected a dict of paths and numbers of frames"),
        (3, "frame_stacks are 3, expected a dict"),
    ],
)
def test_claims_that_cannot_be_are_refused(given, message):
    env = Film()
    env.frame_stacks = given
    with pytest.raises(UsageError, match=message):
        find_frame_stacks(env)


def test_claims_are_seen_through_wrappers():
    assert find_frame_stacks(gym.wrappers.TimeLimit(Film(), 5)) == {"map": 3, "global": 3}
    assert find_frame_stacks(Film(1)) == {}


def grey(**how):
    env = gym.wrappers.TransformObservation(
        BrightSquare(), lambda seen: seen.max(0), spaces.Box(0, 255, (16, 16), np.uint8)
    )
    return FrameStackObservation(env, 4, **how)


def test_gymnasiums_stacks_are_recognised():
    assert find_frame_stacks(gym.wrappers.TimeLimit(grey(), 9)) == {"": 4}
    assert find_frame_stacks(grey(padding_type="zero")) == {}
    assert find_frame_stacks(gym.wrappers.RescaleObservation(grey(), np.float32(0), np.float32(1))) == {}
    assert find_frame_stacks(FrameStackObservation(BrightSquare(vector=True), 3)) == {"map": 3, "time": 3}
    whole = lambda: gym.wrappers.TransformObservation(grey(), lambda seen: seen, None)  # noqa: E731
    assert find_frame_stacks(whole()) == {}, "who knows what it does"
    assert weights(grey, backend="serial") == weights(whole, backend="serial")


def test_the_largest_rollouts_fit():
    """12 envs, 2048 steps of four maps of 5 x 64 x 64 bytes, and 64 numbers: half a gigabyte rather than two."""
    space = spaces.Dict(map=spaces.Box(0, 255, (20, 64, 64), np.uint8), own=spaces.Box(-1, 1, (64,)))
    codec = SerialVectorEnv(BrightSquare, 1).codec

    def megabytes(stacks):
        named = column_specs(Layout(space), codec, 2048, 12, True, stacks)
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in named.values()) / 2**20

    assert megabytes({}) > 1900 and megabytes({"map": 4}) < 500
