"""Rollouts store each frame of stacked observations once, which does not change the weights."""

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
FORK = {"parallel_start_method": "fork"}


def weights(env, **settings):
    return corral.train(env, **{**SMALL, **settings}).summary.weights_sha256


class RandomActor:
    """An actor that chooses one of two actions at random, from the given noise."""

    defers_values, value_leaves, n_state = False, None, 0

    def act(self, observations, masks, noise, states=None):
        return ActionSample(
            (noise < 0.5).astype(np.int64), np.zeros(len(noise), np.float32), np.zeros(len(noise), np.float32)
        )

    def values(self, observations, envs, states=None):
        return np.zeros(len(envs), np.float32)


def collect_rollouts(env, iterations=2, n_steps=20):
    vector = SerialVectorEnv(env, 4, seed=1, infos="summed")
    vector.reset_arrays()
    collector = Collector(vector, RandomActor(), n_steps, 0)
    rollout = allocate_rollout(vector.layout, vector.codec, n_steps, 4, False, vector.env_info.stacks)
    for iteration in range(iterations):
        collector.collect(iteration, rollout)
        yield rollout


@pytest.mark.parametrize("frames", [2, 3, 5])
def test_stacks_rebuilt_from_single_frames_equal_the_observations(frames):
    pairs = zip(
        collect_rollouts(lambda: Film(frames)), collect_rollouts(lambda: Film(frames, declare=False)), strict=True
    )
    for deduplicated, full in pairs:
        assert deduplicated.observations["map"].shape == (20 + frames - 1, 4, 2, 8, 8)
        assert deduplicated.observations["plain"].shape == (20, 4, 2) and full.stacks == {}
        assert (deduplicated.terminated | deduplicated.truncated).any()
        rows = np.random.default_rng(0).permutation(80)[:30]
        for actual, expected in (
            (ObservationView(deduplicated).all(), ObservationView(full).all()),
            (ObservationView(deduplicated)[rows], ObservationView(full)[rows]),
        ):
            for path, leaf in expected.items():
                assert actual[path].dtype == leaf.dtype
                np.testing.assert_array_equal(actual[path], leaf, err_msg=path)


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "serial"},
        {"backend": "process", "num_workers": 2, **FORK},
        {"num_workers": 1, "backend": "worker", **FORK},
        {"num_workers": 2, **FORK},
        {"num_workers": 2, "overlap": True, **FORK},
        {"backend": "serial", "normalize_obs": True},
        {"backend": "serial", "kl_ref_coef": 1.0, "critic_warmup": 96},
        {"backend": "serial", "cnn": "none", "cnn_features": 256},
        {"backend": "serial", "cnn": "none", "cnn_features": 256, "normalize_obs": True, "learner": "torch"},
        {"num_workers": 2, "cnn": "none", "cnn_features": 256, "overlap": True, **FORK},
    ],
    ids=lambda settings: ", ".join(f"{name} {value}" for name, value in settings.items()),
)
def test_storing_frames_once_does_not_change_the_weights(settings):
    deduplicated, full = (
        weights(lambda declare=declare: Film(declare=declare), **settings) for declare in (True, False)
    )
    assert deduplicated == full


def test_storing_frames_once_does_not_change_normalisation_of_stacked_byte_vectors():
    class Undeclared(FrameStackObservation):
        frame_stacks = {}  # noqa: RUF012 - as the author of an env would write it

    settings = {"backend": "serial", "cnn_features": 256, "normalize_obs": True}
    deduplicated, full = (
        weights(lambda kind=kind: kind(ByteDigits(), 3), **settings) for kind in (FrameStackObservation, Undeclared)
    )
    assert deduplicated == full


def test_a_resumed_run_equals_an_uninterrupted_run():
    """The run is stopped in the middle of episodes, so the first stacks need frames from before the rollout."""
    settings = {**SMALL, "backend": "serial", "output_dir": "run"}
    corral.train(lambda: Film(length=50), **{**settings, "timesteps": 96})
    resumed = corral.resume("run", env=lambda: Film(length=50), timesteps=288, quiet=True)
    assert resumed.summary.weights_sha256 == weights(lambda: Film(length=50, declare=False))


class Deadly(Film):
    """Kills its process once, in the middle of an episode in the middle of a rollout."""

    def __init__(self, death_marker):
        super().__init__(length=50)
        self.death_marker = death_marker

    def step(self, action):
        if self.steps == 20 and not self.death_marker.exists():
            self.death_marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_a_worker_that_dies_in_the_middle_of_a_rollout_is_replaced_exactly(tmp_path):
    result = corral.train(lambda: Deadly(tmp_path / "dead"), **SMALL, num_workers=2, **FORK)
    assert result.summary.restarts == 1 and result.summary.inexact == 0
    assert result.summary.weights_sha256 == weights(lambda: Film(length=50, declare=False))


class FilmWithExpert(Film):
    """Has a scripted expert, ``advise``, that can be imitated."""

    opponents = ("teacher",)

    def advise(self, name):
        return int(self.seen[1]["global"][0] > 0)

    def action_masks(self):
        return np.ones(2, np.bool_)


def test_storing_frames_once_does_not_change_imitation_of_an_expert():
    expert = {"expert": "teacher", "expert_steps": 200, "expert_epochs": 2, "backend": "serial"}
    deduplicated, full = (
        weights(lambda declare=declare: FilmWithExpert(declare=declare), **expert) for declare in (True, False)
    )
    assert deduplicated == full


@pytest.mark.parametrize("workers", [{"backend": "serial"}, {"num_workers": 2, **FORK}], ids=["serial", "workers"])
@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("zeros", "is 3 frames, oldest first, but after a reset they are not all the same frame; correct that"),
        ("newest first", "is 3 frames, oldest first, but a step does not shift them by one"),
        ("refilled", "is 3 frames, oldest first, but a step does not shift them by one.*frame_stacks = {}"),
    ],
)
def test_envs_whose_observations_contradict_their_frame_stacks_are_refused(flaw, message, workers):
    with pytest.raises(UsageError, match=message):
        weights(lambda: Film(flaw=flaw, length=30), **workers)


@pytest.mark.parametrize(
    ("frame_stacks", "message"),
    [
        ({"mop": 3}, "frame_stacks name 'mop', but its observations are 'choice', 'global', 'map', 'plain'"),
        ({"map": 4}, r"say that 'map' is 4 frames, joined along the first axis, but it is Box\(0, 255, \(6, 8, 8\)"),
        ({"choice": 3}, r"say that 'choice' is 3 frames, .* but it is Discrete\(3\)"),
        ({"map": "three"}, "expected a dict of paths and numbers of frames"),
        (3, "frame_stacks are 3, expected a dict"),
    ],
)
def test_frame_stacks_that_do_not_fit_the_observation_space_are_refused(frame_stacks, message):
    env = Film()
    env.frame_stacks = frame_stacks
    with pytest.raises(UsageError, match=message):
        find_frame_stacks(env)


def test_frame_stacks_are_found_through_wrappers():
    assert find_frame_stacks(gym.wrappers.TimeLimit(Film(), 5)) == {"map": 3, "global": 3}
    assert find_frame_stacks(Film(1)) == {}


def grey_stack(**options):
    """Four stacked grey images, with Gymnasium's wrapper."""
    env = gym.wrappers.TransformObservation(
        BrightSquare(), lambda image: image.max(0), spaces.Box(0, 255, (16, 16), np.uint8)
    )
    return FrameStackObservation(env, 4, **options)


def test_stacks_of_gymnasiums_wrapper_are_detected():
    assert find_frame_stacks(gym.wrappers.TimeLimit(grey_stack(), 9)) == {"": 4}
    assert find_frame_stacks(grey_stack(padding_type="zero")) == {}
    assert find_frame_stacks(gym.wrappers.RescaleObservation(grey_stack(), np.float32(0), np.float32(1))) == {}
    assert find_frame_stacks(FrameStackObservation(BrightSquare(vector=True), 3)) == {"map": 3, "time": 3}
    undetected = lambda: gym.wrappers.TransformObservation(grey_stack(), lambda stack: stack, None)  # noqa: E731
    assert find_frame_stacks(undetected()) == {}, "a wrapper outside the stack may change it"
    assert weights(grey_stack, backend="serial") == weights(undetected, backend="serial")


def test_storing_frames_once_needs_a_quarter_of_the_memory():
    """12 envs, 2048 steps of four maps of 5 x 64 x 64 bytes, and 64 numbers: 0.5 GB instead of 2 GB."""
    space = spaces.Dict(map=spaces.Box(0, 255, (20, 64, 64), np.uint8), vector=spaces.Box(-1, 1, (64,)))
    codec = SerialVectorEnv(BrightSquare, 1).codec

    def megabytes(stacks):
        specs = column_specs(Layout(space), codec, 2048, 12, True, stacks)
        return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in specs.values()) / 2**20

    assert megabytes({}) > 1900 and megabytes({"map": 4}) < 500
