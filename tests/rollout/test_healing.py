"""Workers of the ``worker`` source that die, hang or grow: the rollouts are the same as if nothing had happened."""

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from corral.core.errors import EnvFault, UsageError, WorkerDied
from corral.core.types import RecoveryCounts
from corral.processes.supervision import RecoveryConfig
from tests.rollout.test_source_workers import collect, connected
from tests.toy_envs import Counter, Deadly, Leaking, Slow, Stateful, Unlike

COLUMNS = ("actions", "log_probs", "values", "rewards", "terminated", "truncated", "last_values", "next_episode")


def alike(one, two):
    """Two rollouts, to the last bit; ``next_episode`` where it means something."""
    ended = one.terminated | one.truncated
    for name in COLUMNS:
        a, b = getattr(one, name), getattr(two, name)
        assert np.array_equal(a[ended], b[ended]) if name == "next_episode" else np.array_equal(a, b), name
    assert np.array_equal(one.final_values[one.truncated], two.final_values[two.truncated])
    for path, column in one.observations.items():
        assert np.array_equal(column, two.observations[path])
        assert np.array_equal(one.last_observations[path], two.last_observations[path])
    assert one.episodes == two.episodes


def run(env, disturb, iterations=4, **settings):
    """The last of some rollouts; ``disturb(source, crew, iteration)`` is called while each is under way."""
    source, crew = connected(env, **settings)
    try:
        recovery_counts = RecoveryCounts()
        for iteration in range(iterations):
            source.begin(iteration)
            disturb(source, crew, iteration)
            rollout = source.collect()
            recovery_counts += rollout.recovery_counts
        kept = {
            f.name: np.copy(v)
            for f in dataclasses.fields(rollout)
            if isinstance(v := getattr(rollout, f.name), np.ndarray)
        }
        leaves = {
            name: {p: a.copy() for p, a in getattr(rollout, name).items()}
            for name in ("observations", "last_observations")
        }
        return dataclasses.replace(rollout, **kept, **leaves), recovery_counts
    finally:
        source.close()


def nothing(source, crew, iteration):
    pass


def kill(number, which=0, when=2):
    def disturb(source, crew, iteration):
        if iteration == when:
            time.sleep(0.05)
            os.kill(source.pids()[which], number)

    return disturb


@pytest.mark.parametrize(
    "env", [lambda: Slow(length=7), lambda: Slow(length=11, truncate=True)], ids=["ends", "cut off"]
)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_worker_that_is_killed_leaves_no_trace(env, overlap):
    one, _ = run(env, nothing, overlap=overlap)
    two, recovery_counts = run(env, kill(signal.SIGKILL, 1), overlap=overlap)
    alike(one, two)
    assert recovery_counts == RecoveryCounts(restarts=1)


def test_a_new_worker_remembers_what_the_old_one_did():
    settings = {"recurrent": "lstm", "n_steps": 24}
    one, _ = run(lambda: Slow(length=11, truncate=True), nothing, **settings)
    two, recovery_counts = run(lambda: Slow(length=11, truncate=True), kill(signal.SIGKILL, 1), **settings)
    alike(one, two)
    assert np.array_equal(one.states, two.states) and np.array_equal(one.last_states, two.last_states)
    assert one.states.any() and recovery_counts == RecoveryCounts(restarts=1)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_however_workers_are_started(method):
    one, _ = run(Slow, nothing, start_method=method)
    two, recovery_counts = run(Slow, kill(signal.SIGKILL), start_method=method)
    alike(one, two)
    assert recovery_counts.restarts == 1


def test_a_stopped_worker_is_replaced_after_the_time_out_and_a_slow_one_is_not():
    said = []
    recovery = RecoveryConfig(heal=True, step_timeout=1.0, warn=said.append)
    one, untouched = run(Slow, nothing, recovery=recovery)
    assert untouched == RecoveryCounts()
    two, recovery_counts = run(Slow, kill(signal.SIGSTOP), recovery=recovery)
    alike(one, two)
    assert recovery_counts.restarts == 1 and "gave no sign of life for 1 s (--step-timeout)" in said[0]


def test_a_worker_that_dies_idle_or_after_its_part_is_replaced():
    def late(source, crew, iteration):
        if iteration == 1:
            pipe = source._pool.workers[1].pipe
            while not pipe.poll():
                time.sleep(0.01)  # the second has fewer envs, so it is done first
            os.kill(source.pids()[1], signal.SIGKILL)

    settings = {"n": 3, "n_steps": 12}
    one, _ = run(Slow, nothing, **settings)
    two, recovery_counts = run(Slow, late, **settings)
    alike(one, two)
    assert recovery_counts.restarts == 1
    source, _ = connected(Slow, overlap=True, **settings)  # all done while nobody looks, then one dies
    for iteration in range(4):
        source.begin(iteration)
        if iteration == 1:
            time.sleep(0.4)
            os.kill(source.pids()[0], signal.SIGKILL)
            time.sleep(0.1)
        three = source.collect()
        assert not any(w.pipe.poll() for w in source._pool.workers)  # nobody has anything more to say
    alike(one, three)
    source.close()
    source, _ = connected(Slow, **settings)
    collect(source)
    os.kill(source.pids()[0], signal.SIGKILL)
    time.sleep(0.1)
    for iteration in range(1, 4):
        source.begin(iteration)
        three = source.collect()
    alike(one, three)
    source.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_shares_of_a_helper_that_is_gone_are_computed_by_the_trainer(number):
    source, crew = connected("CartPole-v1", helpers=1, recovery=RecoveryConfig(heal=True, step_timeout=0.5))
    collect(source)
    arrays, rng = crew.shares.arrays, np.random.default_rng(0)
    arrays["batch"][...] = rng.random(arrays["batch"].shape)
    arrays["advantages"][...] = rng.standard_normal(arrays["advantages"].shape)
    arrays["order"][...] = rng.permutation(64)
    arrays["weights"][...] = rng.standard_normal(arrays["weights"].shape) / 4
    crew.begin()
    crew.compute(0)
    together = arrays["gradients"].copy()
    os.kill(source.pids()[0], number)
    arrays["gradients"][...] = np.nan
    crew.compute(0)
    crew.compute(0)
    crew.end()
    assert np.array_equal(together, arrays["gradients"])
    source.begin(1)
    rollout = source.collect()
    assert rollout.recovery_counts.restarts == 1 and rollout.n_steps == 16
    crew.begin()
    crew.compute(0)
    crew.end()
    source.close()


def test_a_worker_that_always_dies_at_the_same_step_ends_the_run_with_the_place():
    with pytest.raises(EnvFault, match=r"exited with code 7.*3 times in a row at the same step") as caught:
        run(Deadly, nothing, iterations=10)
    fault = caught.value
    assert fault.location.step == 2 and fault.location.seed % 5 == 0 and fault.exit_code == 1
    assert len(fault.reproduction["actions"][""]) == 2 and fault.reproduction["seed"] == fault.location.seed


def test_the_number_of_restarts_can_be_limited():
    def always(source, crew, iteration):
        kill(signal.SIGKILL, iteration % 2, iteration)(source, crew, iteration)

    assert run(Slow, always, recovery=RecoveryConfig(heal=True, max_restarts=4))[1].restarts == 4
    with pytest.raises(WorkerDied, match="the 3 of --max-restarts"):
        run(Slow, always, recovery=RecoveryConfig(heal=True, max_restarts=3))


def test_an_env_that_cannot_be_brought_back_ends_its_episode_as_truncated():
    said = []
    rollout, recovery_counts = run(
        lambda: Unlike(length=1000),
        kill(signal.SIGKILL),
        iterations=3,
        recovery=RecoveryConfig(heal=True, warn=said.append),
    )
    assert recovery_counts == RecoveryCounts(restarts=1, inexact=2)
    assert rollout.truncated[:, :2].sum(0).tolist() == [1, 1] and not rollout.truncated[:, 2:].any()
    t = int(rollout.truncated[:, 0].argmax())
    assert rollout.rewards[t, 0] == 0 and rollout.observations[""][t + 1, 0, 1] == 0  # the next begins
    assert "could not be restored" in said[-1]


def test_an_env_that_can_say_where_it_is_need_not_be_replayed():
    one, _ = run(lambda: Stateful(length=1000), nothing)
    two, recovery_counts = run(lambda: Stateful(length=1000), kill(signal.SIGKILL))
    alike(one, two)
    assert recovery_counts == RecoveryCounts(restarts=1)
    assert two.infos["replayed"].total == 0 < two.infos["replayed"].count


def test_a_worker_that_grows_is_replaced_at_the_end_of_an_episode():
    settings = {"n_steps": 60, "iterations": 2}
    one, _ = run(lambda: Leaking(length=5), nothing, **settings)
    said = []
    two, recovery_counts = run(
        lambda: Leaking(length=5),
        nothing,
        recovery=RecoveryConfig(heal=True, max_rss=300, warn=said.append),
        **settings,
    )
    alike(one, two)
    assert recovery_counts.recycled >= 2 and recovery_counts.restarts == 0 and "uses more than 300 MB" in said[0]


def test_a_limit_below_what_a_new_worker_needs_is_refused():
    with pytest.raises(UsageError, match=r"worker_max_rss 10: a new worker uses \d+ MB already"):
        connected(Counter, recovery=RecoveryConfig(heal=True, max_rss=10))


def test_workers_that_die_while_envs_move_are_replaced():
    def move(kills):
        def disturb(source, crew, iteration):
            if iteration == 1:
                source.collect, collected = (lambda: rollout), source.collect
                rollout = collected()
                del source.collect
                if kills:
                    os.kill(source.pids()[1], signal.SIGKILL)
                moved = source.move([range(1), range(1, 4)])
                assert moved is not kills
                source.begin(2)

        return disturb

    one, _ = run(Slow, move(False), iterations=3, adaptive=True)
    two, recovery_counts = run(Slow, move(True), iterations=3, adaptive=True)
    alike(one, two)
    assert recovery_counts.restarts == 1


class _DiesInReplay(Slow):
    """Cannot be replayed: a second copy ends its process at the third step of any episode."""

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


def test_a_replacement_that_always_dies_in_its_replay_ends_the_run():
    with pytest.raises(WorkerDied, match="3 times in a row without any progress"):
        run(lambda: _DiesInReplay(1000), kill(signal.SIGKILL))
