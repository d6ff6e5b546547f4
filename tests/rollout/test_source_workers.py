"""The ``worker`` source, whose workers own envs and a copy of the policy: memory, faults, closing and moving of envs."""

import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from corral.config.backends import BACKENDS
from corral.config.schema import parse_config
from corral.core.entry_points import import_internal
from corral.core.errors import EnvFault, UsageError, WorkerDied
from corral.envs.factory import resolve_env
from corral.policy.policy import Policy
from corral.ppo.mlp_engine import share_setup
from corral.rollout.actors import actor_spec
from corral.rollout.source import SourceSpec
from corral.rollout.source_workers import WorkerSource
from tests.toy_envs import Broken, Counter, Masked, Modules

CPU = torch.device("cpu")


def make_source(env, n_envs=4, num_workers=2, n_steps=16, helpers=0, recurrent="none", backend="worker", **kwargs):
    """Return a source with started workers and published weights, and its crew (None without helpers)."""
    spec = SourceSpec(backend, resolve_env(env), n_envs, num_workers, n_steps, 7, **kwargs)
    source = import_internal(BACKENDS[backend])(spec)
    torch.manual_seed(0)
    policy = Policy(
        source.env_info.observation_space, source.env_info.action_space, recurrent=recurrent, recurrent_size=8
    )
    config = parse_config(
        {"env": "x", "n_envs": n_envs, "n_steps": n_steps, "batch_size": n_envs * n_steps, "learner_shares": 2}
    )
    shape = policy.mlp_shape()
    shares = None if shape is None else share_setup(policy, shape, config, source.has_masks)
    source.connect(actor_spec(policy, None, CPU, n_envs), policy.state_dict(), None, shares, helpers)
    crew = source.crew
    for array in crew.shares.arrays.values() if crew else ():
        array[...] = 0
    source.publish(policy.state_dict(), 0)
    return source, crew


def write_random_minibatch(arrays):
    """Fill the shared arrays of a crew with a minibatch and weights."""
    rng = np.random.default_rng(0)
    arrays["batch"][...] = rng.random(arrays["batch"].shape)
    arrays["advantages"][...] = rng.standard_normal(arrays["advantages"].shape)
    arrays["order"][...] = rng.permutation(64)
    arrays["weights"][...] = rng.standard_normal(arrays["weights"].shape) / 4


def collect(source, iterations=1):
    """Collect rollouts and return the last one."""
    for iteration in range(iterations):
        source.begin(iteration)
        rollout = source.collect()
    return rollout


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_with_the_built_in_network_do_not_import_torch_and_use_little_memory(method):
    source, _ = make_source(lambda: Modules(length=20), start_method=method)
    rollout = collect(source)
    memory_mb = [psutil.Process(pid).memory_full_info().uss / 2**20 for pid in source.pids()]
    source.close()
    assert rollout.infos["torch"].total == 0
    assert max(memory_mb) < 60 if method == "spawn" else max(memory_mb) < 40


def test_images_are_stored_as_uint8():
    source, _ = make_source("toy-everything")
    rollout = collect(source)
    source.close()
    assert rollout.observations["image"].dtype == np.uint8


def test_masks_are_part_of_the_rollout():
    source, _ = make_source(lambda: Masked("method"))
    rollout = collect(source)
    source.close()
    assert np.array_equal(rollout.masks.argmax(-1), rollout.actions[..., 0])


@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_fault_in_a_worker_names_episode_and_step(fault):
    """Invalid data end the run at once; an exception does so in the third episode in a row that it ends."""
    source, _ = make_source(lambda: Broken(fault, at=9), n_steps=40)
    try:
        with pytest.raises(EnvFault) as caught:
            collect(source)
    finally:
        source.close()
    location = caught.value.location
    assert (location.step, location.episode) == (9, 2 if fault == "raise" else 0) and caught.value.exit_code == 1


def test_an_env_that_cannot_be_constructed_has_exit_code_2():
    with pytest.raises(EnvFault) as caught:
        WorkerSource(SourceSpec("worker", resolve_env(lambda: Broken("constructor")), 4, 2, 8, 0))
    assert caught.value.exit_code == 2 and "no rom found" in str(caught.value)


class SlowCounter(Counter):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def test_a_worker_that_dies_in_its_first_step_has_exit_code_2():
    source, _ = make_source(lambda: Broken("os_exit", at=1))
    try:
        with pytest.raises(WorkerDied, match="exited with code 7") as caught:
            collect(source)
    finally:
        source.close()
    assert caught.value.exit_code == 2


def test_workers_collect_and_help_again_after_an_update_that_was_cut_short():
    source, crew = make_source("CartPole-v1", helpers=1)
    collect(source)
    crew.begin()
    crew.compute(0)  # this update ends without crew.end()
    assert collect(source, 2).n_steps == 16
    crew.begin()
    crew.compute(0)
    crew.end()
    source.close()


def test_gradients_with_helpers_equal_those_of_the_trainer_alone():
    source, crew = make_source("CartPole-v1", helpers=1)
    collect(source)
    arrays = crew.shares.arrays
    write_random_minibatch(arrays)
    arrays["gradients"][...] = np.nan
    crew.begin()
    crew.compute(0)
    gradients = arrays["gradients"].copy()
    crew.end()
    for share in range(2):
        crew.shares.compute(0, share)
    source.close()
    assert np.isfinite(gradients).all() and np.array_equal(gradients, arrays["gradients"])


def test_a_rollout_that_does_not_fit_in_memory_is_refused():
    with pytest.raises(UsageError, match="MB of shared memory"):
        make_source("CartPole-v1", n_steps=10**9)


class TouchesFileOnClose(SlowCounter):
    """Creates a file when it is closed."""

    def close(self):
        Path("closed").touch()


def test_closing_during_a_rollout_is_quick_and_closes_the_envs():
    source, _ = make_source(TouchesFileOnClose, n_steps=10_000)
    source.begin(0)
    time.sleep(0.1)
    started = time.monotonic()
    source.close()
    assert time.monotonic() - started < 30 and Path("closed").exists()


# ---- moving envs -----------------------------------------------------------------------------------------------


ASSIGNMENTS = [[range(1), range(1, 4)], [range(4), range(0)], [range(0), range(4)], [range(2), range(2, 4)]]


@pytest.mark.parametrize("env", ["CartPole-v1", "toy-maze", "toy-everything"])
def test_rollouts_are_the_same_if_envs_move_between_workers(env):
    rollouts = []
    for assignments in ([], ASSIGNMENTS):
        source, _ = make_source(env, adaptive=True)
        collect(source)
        for iteration in range(1, 6):
            if iteration <= len(assignments):
                assert source.move(assignments[iteration - 1])
            source.begin(iteration)
            rollout = source.collect()
        rollouts.append(rollout)
        assert source.moves == len(assignments)
        source.close()
    unmoved, moved = rollouts
    for name in ("actions", "log_probs", "values", "rewards", "terminated", "truncated", "final_values", "last_values"):
        assert np.array_equal(getattr(unmoved, name), getattr(moved, name)), name
    assert unmoved.episodes == moved.episodes


class FourLicences(Counter):
    """An env of which only four instances can be constructed."""

    def __init__(self):
        super().__init__()
        for number in range(4):
            try:
                self.licence = Path(f"licence-{number}")
                self.licence.touch(exist_ok=False)
                return
            except FileExistsError:
                continue
        raise RuntimeError("no more licences")


def test_a_move_fails_and_envs_stay_if_no_further_env_can_be_constructed():
    source, _ = make_source(FourLicences, adaptive=True)
    collect(source)
    assert not source.move(ASSIGNMENTS[0])
    assert collect(source).n_steps == 16
    source.close()


class Unrepeatable(Counter):
    """Never returns the same observation twice."""

    def _observe(self):
        return np.array([time.perf_counter() % 1, self.step_count], np.float32)


def test_a_move_fails_and_envs_stay_if_an_episode_cannot_be_replayed_exactly():
    source, _ = make_source(lambda: Unrepeatable(length=50), adaptive=True)
    collect(source)
    env_ranges = list(source.env_ranges)
    assert not source.move(ASSIGNMENTS[0])
    assert source.env_ranges == env_ranges and source.moves == 0
    rollout = collect(source)
    source.close()
    assert rollout.observations[""][0, 0, 1] > 0  # the episode has continued


def test_workers_start_right_after_the_fork_server_was_killed(monkeypatch):
    """For a moment the socket of the fork server is dead, but the server still counts as running."""
    make_source(Counter, start_method="forkserver")[0].close()
    server = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGKILL)
    ensure_running, reported_at = server.ensure_running, time.monotonic() + 0.2
    monkeypatch.setattr(server, "ensure_running", lambda: ensure_running() if time.monotonic() > reported_at else None)
    source, _ = make_source(Counter, start_method="forkserver")
    rollout = collect(source)
    source.close()
    assert rollout.collectors == 2
