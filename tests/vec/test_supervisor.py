"""The supervisor as a pure state machine: events in, decisions out, no processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import EnvFault, EnvLocation, WorkerDied
from corral.core.types import FaultCounts
from corral.processes.recovery_config import RecoveryConfig
from corral.vec.replay_log import EnvPosition
from corral.vec.supervisor import (
    MAX_DEATHS_WITHOUT_PROGRESS,
    CrashSite,
    Restart,
    Stop,
    Supervisor,
    WorkerDeath,
)

RECOVERS = RecoveryConfig(recover=True, env_known_to_work=True)


def killed(by_signal=True):
    error = WorkerDied(
        "the worker of env 0 (pid 7) was killed by SIGKILL: the env ended the process. To see where: ..."
    )
    error.by_signal, error.summary = by_signal, "the worker of env 0 (pid 7) was killed by SIGKILL"
    return error


def env_fault():
    return EnvFault("step() raised ValueError: x", EnvLocation(0, 2, 5, 3, "1"), "Traceback ...")


def site(env=0, episode=4, steps=9):
    actions = {"": np.zeros(steps, np.int64)}
    position = EnvPosition(episode, 11, steps, actions, {"": np.zeros(2)}, None)
    return CrashSite(env, position, np.int64(1), {"": np.int64(1)})


def stops(supervisor, *deaths):
    """Return which of the deaths lead to a stop."""
    return [isinstance(supervisor.decide(death), Stop) for death in deaths]


def test_without_recovery_the_first_death_stops_the_run_with_its_error():
    error = killed()
    assert Supervisor(RecoveryConfig(env_known_to_work=True)).decide(WorkerDeath(0, error)) == Stop(error)
    assert error.exit_code == 1


@pytest.mark.parametrize("by_signal", [True, False])
def test_before_the_first_completed_step_only_workers_that_a_signal_killed_are_restarted(by_signal):
    supervisor, error = Supervisor(RecoveryConfig(recover=True)), killed(by_signal)
    decision = supervisor.decide(WorkerDeath(0, error))
    assert isinstance(decision, Restart if by_signal else Stop)
    if not by_signal:
        assert decision.error is error and error.exit_code == 2  # the set-up is wrong
    supervisor.env_known_to_work = True
    assert isinstance(supervisor.decide(WorkerDeath(0, killed(by_signal), steps=1)), Restart)


def test_an_env_that_raises_before_the_first_completed_step_stops_the_run():
    error = env_fault()
    assert (
        Supervisor(RecoveryConfig(recover=True)).decide(WorkerDeath(0, error)) == Stop(error) and error.exit_code == 2
    )


def test_a_restart_message_names_worker_place_and_count_and_leaves_advice_out():
    supervisor = Supervisor(RECOVERS)
    first = supervisor.decide(WorkerDeath(0, killed(), site(), steps=9))
    assert first == Restart(
        "the worker of env 0 (pid 7) was killed by SIGKILL (env 0, seed 11, episode 4, step 10, on action 1); "
        "restarted, 1 restart so far"
    )
    second = supervisor.decide(WorkerDeath(1, env_fault()))
    assert second.message.endswith("restarted, 2 restarts so far") and "\n" not in second.message


def test_deaths_at_the_same_step_of_an_episode_stop_the_run_with_what_reproduces_it():
    supervisor = Supervisor(RECOVERS)
    deaths = [
        WorkerDeath(0, killed(), site(), steps=9, progress_outside_steps=n) for n in range(MAX_DEATHS_WITHOUT_PROGRESS)
    ]
    assert stops(supervisor, *deaths[:-1]) == [False, False]
    error = supervisor.decide(deaths[-1]).error
    assert isinstance(error, EnvFault) and "3 times in a row at the same step" in str(error) and error.exit_code == 1
    assert error.reproduction["seed"] == 11 and error.reproduction["actions"][""] == [0] * 9 + [1]


@pytest.mark.parametrize("other", [site(env=1), site(episode=5), site(steps=10)], ids=["env", "episode", "step"])
def test_a_death_at_another_step_counts_as_progress(other):
    supervisor = Supervisor(RECOVERS)
    deaths = [WorkerDeath(0, killed(), crash_site, steps=9) for crash_site in (site(), site(), other, site(), site())]
    assert stops(supervisor, *deaths) == [False] * 5
    assert stops(supervisor, deaths[0]) == [True]


def test_where_episodes_are_not_restored_workers_that_live_equally_long_make_no_progress():
    supervisor = Supervisor(RECOVERS, restores_episodes=False)
    lives = [WorkerDeath(0, killed(), site(episode=n), steps=steps) for n, steps in enumerate((7, 12, 17, 22))]
    assert stops(supervisor, *lives[:3]) == [False, False, False]
    error = supervisor.decide(lives[3]).error  # 5 steps after each of three restarts
    assert "after the same number of steps" in str(error)
    other = Supervisor(RECOVERS, restores_episodes=False)
    assert (
        stops(other, *(WorkerDeath(0, killed(), site(), steps=steps) for steps in (7, 12, 18, 24, 31))) == [False] * 5
    )


def test_deaths_between_steps_stop_the_run_if_neither_steps_nor_other_progress_differ():
    supervisor = Supervisor(RECOVERS)
    assert (
        stops(supervisor, *(WorkerDeath(0, killed(), steps=1, progress_outside_steps=beat) for beat in "aabbcc"))
        == [False] * 6
    )
    error = supervisor.decide(WorkerDeath(0, killed(), steps=1, progress_outside_steps="c")).error
    assert isinstance(error, WorkerDied) and "3 times in a row without any progress" in str(error)


def test_an_env_that_cannot_be_restarted_stops_the_run_with_its_own_error():
    supervisor, error = Supervisor(RECOVERS), env_fault()
    assert stops(supervisor, *[WorkerDeath(0, error)] * 2) == [False, False]
    assert supervisor.decide(WorkerDeath(0, error)) == Stop(error) and error.exit_code == 1


def test_workers_are_counted_apart():
    supervisor = Supervisor(RECOVERS)
    assert stops(supervisor, *(WorkerDeath(worker, killed(), site()) for worker in (0, 1, 0, 1))) == [False] * 4
    assert stops(supervisor, WorkerDeath(0, killed(), site())) == [True]


@given(limit=st.integers(0, 5), workers=st.lists(st.integers(0, 2), max_size=12))
def test_no_more_workers_are_restarted_than_allowed(limit, workers):
    supervisor = Supervisor(RecoveryConfig(recover=True, env_known_to_work=True, max_restarts=limit))
    decisions = [supervisor.decide(WorkerDeath(worker, killed(), steps=n)) for n, worker in enumerate(workers)]
    assert [isinstance(decision, Restart) for decision in decisions] == [n < limit for n in range(len(workers))]
    assert supervisor.take_counts() == FaultCounts(restarts=min(limit, len(workers)))
    if len(workers) > limit:
        assert f"the limit of {limit} restarts (--max-restarts)" in str(decisions[limit].error)


def test_workers_that_use_too_much_memory_are_restarted_and_counted_apart():
    warned = []
    supervisor = Supervisor(RecoveryConfig(recover=True, max_rss=300.0, max_restarts=0, warn=warned.append))
    died, error = [], killed()
    supervisor.restart_for_memory("worker of env 3", lambda: None, died.append)
    assert warned == ["the worker of env 3 uses more than 300 MB (--worker-max-rss); restarted"] and not died

    def start():
        raise error

    supervisor.restart_for_memory("worker of env 3", start, died.append)
    assert died == [error] and len(warned) == 2
    assert supervisor.take_counts() == FaultCounts(recycled=2) and supervisor.take_counts() == FaultCounts()


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_recover_starts_a_worker_until_it_starts_or_makes_no_progress(failures):
    warned, starts = [], []
    supervisor = Supervisor(RecoveryConfig(recover=True, env_known_to_work=True, warn=warned.append))

    def start():
        starts.append(None)
        if len(starts) <= failures:
            raise killed()
        return "started"

    death = WorkerDeath(0, killed(), site(), steps=9, progress_outside_steps=0)
    if failures < 3:
        assert supervisor.recover(death, start, lambda: 1) == "started"
        assert len(starts) == len(warned) == failures + 1
    else:  # the first death was in a step, the others while starting
        with pytest.raises(WorkerDied, match="3 times in a row without any progress"):
            supervisor.recover(death, start, lambda: 1)
        assert len(starts) == 3
    assert supervisor.take_counts() == FaultCounts(restarts=len(starts))


def test_recover_does_not_stop_while_failing_starts_make_progress():
    supervisor, beats = Supervisor(RECOVERS), iter(range(100))
    failures = iter([killed() for _ in range(20)])

    def start():
        if (error := next(failures, None)) is not None:
            raise error
        return "started"

    assert supervisor.recover(WorkerDeath(0, killed()), start, lambda: next(beats)) == "started"


def test_other_errors_of_a_start_are_raised_at_once():
    def start():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Supervisor(RECOVERS).recover(WorkerDeath(0, killed()), start, lambda: 0)
