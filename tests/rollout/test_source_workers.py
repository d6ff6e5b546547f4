"""Workers that own envs and policy: small, quick to end, and no trace of who did what."""

import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from corral.config.schema import parse_config
from corral.core.errors import EnvFault, UsageError, WorkerDied
from corral.envs.factory import resolve_env
from corral.policy.policy import Policy
from corral.ppo.mlp_engine import share_setup
from corral.rollout.actors import actor_spec
from corral.rollout.source import SourceSpec
from corral.rollout.source_workers import WorkerSource
from tests.toy_envs import Broken, Counter, Masked, Modules

CPU = torch.device("cpu")


def connected(env, n=4, workers=2, n_steps=16, helpers=0, recurrent="none", **kwargs):
    source = WorkerSource(SourceSpec("worker", resolve_env(env), n, workers, n_steps, 7, **kwargs))
    torch.manual_seed(0)
    policy = Policy(
        source.env_info.observation_space, source.env_info.action_space, recurrent=recurrent, recurrent_size=8
    )
    config = parse_config({"env": "x", "n_envs": n, "n_steps": n_steps, "batch_size": n * n_steps, "learner_shares": 2})
    shape = policy.mlp_shape()
    shares = None if shape is None else share_setup(policy, shape, config, source.has_masks)
    crew = source.connect(actor_spec(policy, None, CPU, n), policy.state_dict(), None, shares, helpers).crew
    for array in crew.shares.arrays.values() if crew else ():
        array[...] = 0
    source.publish(policy.state_dict(), 0)
    return source, crew


def collect(source, iterations=1):
    for iteration in range(iterations):
        source.begin(iteration)
        rollout = source.collect()
    return rollout


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_of_the_built_in_network_need_no_torch_and_little_memory(method):
    source, _ = connected(lambda: Modules(length=20), start_method=method)
    rollout = collect(source)
    own = [psutil.Process(pid).memory_full_info().uss / 2**20 for pid in source.pids()]
    source.close()
    assert rollout.infos["torch"].total == 0
    assert max(own) < 60 if method == "spawn" else max(own) < 40


def test_images_stay_bytes():
    source, _ = connected("toy-everything")
    rollout = collect(source)
    source.close()
    assert rollout.observations["image"].dtype == np.uint8


def test_masks_come_with_the_rollout():
    source, _ = connected(lambda: Masked("method"))
    rollout = collect(source)
    source.close()
    assert np.array_equal(rollout.masks.argmax(-1), rollout.actions[..., 0])


@pytest.mark.parametrize("how", ["raise", "nan"])
def test_a_fault_in_a_worker_brings_its_place(how):
    """Bad data at once; an exception once it has ended three episodes in a row at the same step."""
    source, _ = connected(lambda: Broken(how, at=9), n_steps=40)
    try:
        with pytest.raises(EnvFault) as caught:
            collect(source)
    finally:
        source.close()
    place = caught.value.location
    assert (place.step, place.episode) == (9, 2 if how == "raise" else 0) and caught.value.exit_code == 1


def test_envs_that_cannot_be_made_are_a_wrong_setup():
    with pytest.raises(EnvFault) as caught:
        WorkerSource(SourceSpec("worker", resolve_env(lambda: Broken("constructor")), 4, 2, 8, 0))
    assert caught.value.exit_code == 2 and "no rom found" in str(caught.value)


class Slow(Counter):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def test_a_worker_that_dies_before_its_first_step_is_a_wrong_setup():
    source, _ = connected(lambda: Broken("os_exit", at=1))
    try:
        with pytest.raises(WorkerDied, match="exited with code 7") as caught:
            collect(source)
    finally:
        source.close()
    assert caught.value.exit_code == 2


def test_an_update_that_was_cut_short_leaves_helpers_ready():
    source, crew = connected("CartPole-v1", helpers=1)
    collect(source)
    crew.begin()
    crew.compute(0)  # and then nothing more is heard of this update
    assert collect(source, 2).n_steps == 16
    crew.begin()
    crew.compute(0)
    crew.end()
    source.close()


def test_helpers_compute_their_shares():
    source, crew = connected("CartPole-v1", helpers=1)
    collect(source)
    arrays = crew.shares.arrays
    rng = np.random.default_rng(0)
    arrays["batch"][...] = rng.random(arrays["batch"].shape)
    arrays["advantages"][...] = rng.standard_normal(arrays["advantages"].shape)
    arrays["order"][...] = rng.permutation(64)
    arrays["weights"][...] = rng.standard_normal(arrays["weights"].shape) / 4
    arrays["gradients"][...] = np.nan
    crew.begin()
    crew.compute(0)
    together = arrays["gradients"].copy()
    crew.end()
    for share in range(2):
        crew.shares.compute(0, share)
    source.close()
    assert np.isfinite(together).all() and np.array_equal(together, arrays["gradients"])


def test_too_much_memory_is_refused_with_the_numbers():
    with pytest.raises(UsageError, match="MB of shared memory"):
        connected("CartPole-v1", n_steps=10**9)


class Noisy(Slow):
    """Leaves a file behind when it is closed."""

    def close(self):
        Path("closed").touch()


def test_closing_in_mid_rollout_is_quick_and_closes_the_envs():
    source, _ = connected(Noisy, n_steps=10_000)
    source.begin(0)
    time.sleep(0.1)
    started = time.monotonic()
    source.close()
    assert time.monotonic() - started < 30 and Path("closed").exists()


# ---- moving envs -----------------------------------------------------------------------------------------------


MOVES = [[range(1), range(1, 4)], [range(4), range(0)], [range(0), range(4)], [range(2), range(2, 4)]]


@pytest.mark.parametrize("env", ["CartPole-v1", "toy-maze", "toy-everything"])
def test_envs_that_move_go_on_as_if_nothing_had_happened(env):
    rollouts = []
    for moves in ([], MOVES):
        source, _ = connected(env, adaptive=True)
        collect(source)
        for iteration in range(1, 6):
            if iteration <= len(moves):
                assert source.move(moves[iteration - 1])
            source.begin(iteration)
            rollout = source.collect()
        rollouts.append(rollout)
        assert source.moves == len(moves)
        source.close()
    one, two = rollouts
    for name in ("actions", "log_probs", "values", "rewards", "terminated", "truncated", "final_values", "last_values"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert one.episodes == two.episodes


class OnlyOne(Counter):
    """There can be four of them, and no fifth."""

    def __init__(self):
        super().__init__()
        for seat in range(4):
            try:
                self.seat = Path(f"seat-{seat}")
                self.seat.touch(exist_ok=False)
                return
            except FileExistsError:
                continue
        raise RuntimeError("no more licences")


def test_envs_that_cannot_be_made_twice_stay_where_they_are():
    source, _ = connected(OnlyOne, adaptive=True)
    collect(source)
    assert not source.move(MOVES[0])
    assert collect(source).n_steps == 16
    source.close()


class Unrepeatable(Counter):
    """Never shows the same twice."""

    def _observe(self):
        return np.array([time.perf_counter() % 1, self.step_count], np.float32)


def test_an_env_that_does_not_come_back_the_same_stays_where_it_is():
    source, _ = connected(lambda: Unrepeatable(length=50), adaptive=True)
    collect(source)
    before = list(source.env_ranges)
    assert not source.move(MOVES[0])
    assert source.env_ranges == before and source.moves == 0
    rollout = collect(source)
    source.close()
    assert rollout.observations[""][0, 0, 1] > 0  # its episode went on


def test_workers_start_though_the_end_of_a_killed_fork_server_is_reported_late(monkeypatch):
    """A start that comes right after the kill finds a dead socket, and a server that still counts as running."""
    connected(Counter, start_method="forkserver")[0].close()
    server = forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGKILL)
    ensure, known_at = server.ensure_running, time.monotonic() + 0.2
    monkeypatch.setattr(server, "ensure_running", lambda: ensure() if time.monotonic() > known_at else None)
    source, _ = connected(Counter, start_method="forkserver")
    rollout = collect(source)
    source.close()
    assert rollout.collectors == 2
