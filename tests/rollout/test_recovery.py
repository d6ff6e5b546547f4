"""Workers of the ``worker`` source that die, hang or use too much memory are replaced; the rollouts stay the same."""

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from corral.core.errors import EnvFault, UsageError, WorkerDied
from corral.core.types import FaultCounts
from corral.processes.recovery_config import RecoveryConfig
from tests.rollout.test_source_workers import collect, make_source, write_random_minibatch
from tests.toy_envs import Counter, Deadly, Leaking, Slow, Stateful, Unlike

COLUMNS = ("actions", "log_probs", "values", "rewards", "terminated", "truncated", "last_values", "next_episode")


def assert_same_rollouts(first, second):
    """Compare two rollouts bit for bit; ``next_episode`` has a meaning only where an episode ended."""
    ended = first.terminated | first.truncated
    for name in COLUMNS:
        a, b = getattr(first, name), getattr(second, name)
        assert np.array_equal(a[ended], b[ended]) if name == "next_episode" else np.array_equal(a, b), name
    assert np.array_equal(first.final_values[first.truncated], second.final_values[second.truncated])
    for path, column in first.observations.items():
        assert np.array_equal(column, second.observations[path])
        assert np.array_equal(first.last_observations[path], second.last_observations[path])
    assert first.episodes == second.episodes


def collect_with(env, disturb, iterations=4, **settings):
    """Return a copy of the last of some rollouts, and the recoveries that happened during all of them.

    ``disturb(source, crew, iteration)`` is called while each rollout is collected.
    """
    source, crew = make_source(env, **settings)
    try:
        fault_counts = FaultCounts()
        for iteration in range(iterations):
            source.begin(iteration)
            disturb(source, crew, iteration)
            rollout = source.collect()
            fault_counts += rollout.fault_counts
        columns = {
            field.name: np.copy(value)
            for field in dataclasses.fields(rollout)
            if isinstance(value := getattr(rollout, field.name), np.ndarray)
        }
        leaves = {
            name: {path: leaf.copy() for path, leaf in getattr(rollout, name).items()}
            for name in ("observations", "last_observations")
        }
        return dataclasses.replace(rollout, **columns, **leaves), fault_counts
    finally:
        source.close()


def do_nothing(source, crew, iteration):
    pass


def send_signal(signal_number, worker=0, at_iteration=2):
    """Return a function that sends a signal to a worker while it collects the rollout of one iteration."""

    def disturb(source, crew, iteration):
        if iteration == at_iteration:
            time.sleep(0.05)
            os.kill(source.pids()[worker], signal_number)

    return disturb


@pytest.mark.parametrize(
    "env", [lambda: Slow(length=7), lambda: Slow(length=11, truncate=True)], ids=["terminated", "truncated"]
)
@pytest.mark.parametrize("overlap", [False, True])
def test_the_rollout_is_the_same_if_a_worker_is_killed(env, overlap):
    undisturbed, _ = collect_with(env, do_nothing, overlap=overlap)
    recovered, fault_counts = collect_with(env, send_signal(signal.SIGKILL, 1), overlap=overlap)
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts == FaultCounts(restarts=1)


def test_recurrent_states_are_the_same_if_a_worker_is_killed():
    def env():
        return Slow(length=11, truncate=True)

    settings = {"recurrent": "lstm", "n_steps": 24}
    undisturbed, _ = collect_with(env, do_nothing, **settings)
    recovered, fault_counts = collect_with(env, send_signal(signal.SIGKILL, 1), **settings)
    assert_same_rollouts(undisturbed, recovered)
    assert np.array_equal(undisturbed.states, recovered.states)
    assert np.array_equal(undisturbed.last_states, recovered.last_states)
    assert undisturbed.states.any() and fault_counts == FaultCounts(restarts=1)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_killed_worker_is_replaced_with_any_start_method(method):
    undisturbed, _ = collect_with(Slow, do_nothing, start_method=method)
    recovered, fault_counts = collect_with(Slow, send_signal(signal.SIGKILL), start_method=method)
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts.restarts == 1


def test_a_stopped_worker_is_replaced_after_the_step_timeout_and_a_slow_one_is_not():
    warnings = []
    recovery = RecoveryConfig(recover=True, step_timeout=1.0, warn=warnings.append)
    undisturbed, undisturbed_counts = collect_with(Slow, do_nothing, recovery=recovery)
    assert undisturbed_counts == FaultCounts()
    recovered, fault_counts = collect_with(Slow, send_signal(signal.SIGSTOP), recovery=recovery)
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts.restarts == 1 and "gave no sign of life for 1 s (--step-timeout)" in warnings[0]


def test_a_worker_that_dies_between_rollouts_or_after_its_part_of_one_is_replaced():
    def kill_after_its_part(source, crew, iteration):
        if iteration == 1:
            pipe = source._pool.workers[1].pipe
            while not pipe.poll():
                time.sleep(0.01)  # the second worker has fewer envs, so it finishes first
            os.kill(source.pids()[1], signal.SIGKILL)

    settings = {"n_envs": 3, "n_steps": 12}
    undisturbed, _ = collect_with(Slow, do_nothing, **settings)
    recovered, fault_counts = collect_with(Slow, kill_after_its_part, **settings)
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts.restarts == 1

    # All workers finish a rollout; then one dies before its reply is read.
    source, _ = make_source(Slow, overlap=True, **settings)
    for iteration in range(4):
        source.begin(iteration)
        if iteration == 1:
            time.sleep(0.4)
            os.kill(source.pids()[0], signal.SIGKILL)
            time.sleep(0.1)
        recovered = source.collect()
        assert not any(worker.pipe.poll() for worker in source._pool.workers)  # all replies were read
    assert_same_rollouts(undisturbed, recovered)
    source.close()

    # A worker dies between two rollouts.
    source, _ = make_source(Slow, **settings)
    collect(source)
    os.kill(source.pids()[0], signal.SIGKILL)
    time.sleep(0.1)
    for iteration in range(1, 4):
        source.begin(iteration)
        recovered = source.collect()
    assert_same_rollouts(undisturbed, recovered)
    source.close()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_trainer_computes_the_shares_of_a_killed_or_stopped_helper(signal_number):
    source, crew = make_source("CartPole-v1", helpers=1, recovery=RecoveryConfig(recover=True, step_timeout=0.5))
    collect(source)
    arrays = crew.shares.arrays
    write_random_minibatch(arrays)
    crew.begin()
    crew.compute(0)
    gradients = arrays["gradients"].copy()
    os.kill(source.pids()[0], signal_number)
    arrays["gradients"][...] = np.nan
    crew.compute(0)
    crew.compute(0)
    crew.end()
    assert np.array_equal(gradients, arrays["gradients"])
    source.begin(1)
    rollout = source.collect()
    assert rollout.fault_counts.restarts == 1 and rollout.n_steps == 16
    crew.begin()
    crew.compute(0)
    crew.end()
    source.close()


def test_a_worker_that_dies_three_times_at_the_same_step_ends_the_run_and_the_error_names_the_step():
    with pytest.raises(EnvFault, match=r"exited with code 7.*3 times in a row at the same step") as caught:
        collect_with(Deadly, do_nothing, iterations=10)
    fault = caught.value
    assert fault.location.step == 2 and fault.location.seed % 5 == 0 and fault.exit_code == 1
    assert len(fault.reproduction["actions"][""]) == 2 and fault.reproduction["seed"] == fault.location.seed


def test_max_restarts_limits_the_number_of_restarts():
    def kill_one_in_every_iteration(source, crew, iteration):
        send_signal(signal.SIGKILL, iteration % 2, iteration)(source, crew, iteration)

    recovery = RecoveryConfig(recover=True, max_restarts=4)
    _, fault_counts = collect_with(Slow, kill_one_in_every_iteration, recovery=recovery)
    assert fault_counts.restarts == 4
    with pytest.raises(WorkerDied, match="the limit of 3 restarts"):
        collect_with(Slow, kill_one_in_every_iteration, recovery=RecoveryConfig(recover=True, max_restarts=3))


def test_an_env_that_cannot_be_restored_has_its_episode_truncated():
    warnings = []
    rollout, fault_counts = collect_with(
        lambda: Unlike(length=1000),
        send_signal(signal.SIGKILL),
        iterations=3,
        recovery=RecoveryConfig(recover=True, warn=warnings.append),
    )
    assert fault_counts == FaultCounts(restarts=1, inexact=2)
    assert rollout.truncated[:, :2].sum(0).tolist() == [1, 1] and not rollout.truncated[:, 2:].any()
    last_step = int(rollout.truncated[:, 0].argmax())
    assert rollout.rewards[last_step, 0] == 0
    assert rollout.observations[""][last_step + 1, 0, 1] == 0  # the next episode begins
    assert "could not be restored" in warnings[-1]


def test_an_env_with_get_state_is_restored_without_a_replay():
    undisturbed, _ = collect_with(lambda: Stateful(length=1000), do_nothing)
    recovered, fault_counts = collect_with(lambda: Stateful(length=1000), send_signal(signal.SIGKILL))
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts == FaultCounts(restarts=1)
    assert recovered.infos["replayed"].total == 0 < recovered.infos["replayed"].count


def test_a_worker_over_the_memory_limit_is_replaced_at_the_end_of_an_episode():
    settings = {"n_steps": 60, "iterations": 2}
    undisturbed, _ = collect_with(lambda: Leaking(length=5), do_nothing, **settings)
    warnings = []
    recovered, fault_counts = collect_with(
        lambda: Leaking(length=5),
        do_nothing,
        recovery=RecoveryConfig(recover=True, max_rss=300, warn=warnings.append),
        **settings,
    )
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts.recycled >= 2 and fault_counts.restarts == 0 and "uses more than 300 MB" in warnings[0]


def test_a_memory_limit_below_the_memory_of_a_new_worker_is_refused():
    with pytest.raises(UsageError, match=r"worker_max_rss 10: a new worker uses \d+ MB already"):
        make_source(Counter, recovery=RecoveryConfig(recover=True, max_rss=10))


def test_workers_that_die_while_envs_move_are_replaced():
    def move_in_iteration_1(kill_worker):
        def disturb(source, crew, iteration):
            if iteration == 1:
                source.collect()
                if kill_worker:
                    os.kill(source.pids()[1], signal.SIGKILL)
                moved = source.move([range(1), range(1, 4)])
                assert moved is not kill_worker
                source.begin(2)

        return disturb

    undisturbed, _ = collect_with(Slow, move_in_iteration_1(False), iterations=3, adaptive=True)
    recovered, fault_counts = collect_with(Slow, move_in_iteration_1(True), iterations=3, adaptive=True)
    assert_same_rollouts(undisturbed, recovered)
    assert fault_counts.restarts == 1


class _DiesInReplay(Slow):
    """Cannot be replayed: a second copy ends its process in the third step of any episode."""

    def reset(self, *, seed=None, options=None):
        with contextlib.suppress(FileExistsError):
            Path(f"first-{seed}").touch(exist_ok=False)
            self.deadly = False
            return super().reset(seed=seed)
        self.deadly = True
        return super().reset(seed=seed)

    def step(self, action):
        if self.deadly and self.step_count == 2:
            os._exit(9)
        return super().step(action)


def test_a_worker_that_dies_in_its_replay_three_times_ends_the_run():
    with pytest.raises(WorkerDied, match="3 times in a row without any progress"):
        collect_with(lambda: _DiesInReplay(1000), send_signal(signal.SIGKILL))
