"""Recovery: envs that raise are retried and dead workers restarted, with the same steps as without the faults."""

import contextlib
import functools
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import corral
from corral.core.errors import EnvFault, InvalidEnvData
from corral.core.types import FaultCounts
from corral.doctor.replay import replay_fault
from corral.envs.factory import resolve_env
from corral.processes.hang_detector import HangDetector
from corral.processes.recovery_config import RecoveryConfig
from corral.vec import make_vector_env
from corral.vec.replay_log import ReplayLog
from tests.toy_envs import Counter, Masked, OnceBroken, Picky, Stateful

BACKENDS = pytest.mark.parametrize("backend", ["serial", "process"])


def collect_trace(env, backend="serial", steps=30, disturb=lambda env, t: None, n=4, seed=5, **recovery):
    """Return the arrays of every step with fixed random actions, the ``EnvReport`` and the warnings.

    ``disturb(env, t)`` is called before the actions of step t are sent, and with t + 0.5 while the envs step.
    """
    warnings = []
    vector = make_vector_env(
        resolve_env(env),
        n,
        backend=backend,
        num_workers=2 if backend == "process" else None,
        seed=seed,
        infos="summed",
        recovery=RecoveryConfig(recover=True, warn=warnings.append, **recovery),
    )
    try:
        vector.reset_arrays()
        rng, trace, arrays = np.random.default_rng(3), [], vector.arrays
        for t in range(steps):
            vector.codec.decode(vector.codec.random(vector.masks, n, rng), arrays.actions)
            disturb(vector, t)
            vector.send()
            disturb(vector, t + 0.5)
            vector.recv()
            ended = arrays.terminated | arrays.truncated
            step_arrays = [arrays.rewards, arrays.terminated, arrays.truncated, arrays.episode, arrays.masks]
            step_arrays += arrays.observations.values()
            step_arrays += [leaf[ended] for leaf in arrays.final_observations.values()]
            trace.append([array.copy() for array in step_arrays])
        return trace, vector.take_report(), warnings
    finally:
        vector.close()


class ExitsInStep9(Counter):
    """Ends its process in step 9 of an episode, if that is long enough."""

    def step(self, action):
        if self.step_count == 8:
            os._exit(7)
        return super().step(action)


def test_a_vector_env_that_always_kills_its_worker_at_the_same_step_ends_the_run():
    def make(num_envs):
        lengths = [4] * (num_envs - 1) + [100]
        return SyncVectorEnv([functools.partial(ExitsInStep9, length) for length in lengths])

    with pytest.raises(EnvFault, match=r"exited with code 7.*3 times in a row"):
        collect_trace(make, "process", steps=100)


def test_workers_of_vector_envs_may_die_at_the_same_step_of_many_episodes():
    def kill(env, t):
        if t in (3.5, 10.5, 22.5, 26.5):
            os.kill(env.pids[0], signal.SIGKILL)

    def make(num_envs):
        return SyncVectorEnv([lambda: Counter(1)] * num_envs)

    _, report, _ = collect_trace(make, "process", disturb=kill)
    assert report.fault_counts.restarts == 4


def traces_equal(first, second):
    steps = zip(first, second, strict=True)
    return all(np.array_equal(a, b) for one, other in steps for a, b in zip(one, other, strict=True))


@BACKENDS
@pytest.mark.parametrize("where", ["step", "reset", "masks"])
def test_an_env_that_raises_once_is_remade_and_its_episode_continues(backend, where, tmp_path):
    undisturbed, _, _ = collect_trace(lambda: OnceBroken(where, None))
    trace, report, _ = collect_trace(lambda: OnceBroken(where, tmp_path / "done"), backend)
    assert (tmp_path / "done").exists() and traces_equal(undisturbed, trace)
    assert report.fault_counts == FaultCounts(retries=1)
    (fault,) = report.faults
    assert "the dragon won" in fault.summary and fault.reproduction is not None


@BACKENDS
@pytest.mark.parametrize("where", ["step", "reset"])
def test_only_episodes_that_raise_again_when_retried_are_lost(backend, where):
    trace, report, _ = collect_trace(lambda: Picky(where), backend, steps=60, seed=38)
    counts = report.fault_counts
    assert counts.env_faults >= 2 and counts == FaultCounts(env_faults=counts.env_faults)
    lost = [fault.location for fault in report.faults]
    assert all(location.seed % 5 == 0 and location.step == (2 if where == "step" else 0) for location in lost)
    if where == "step":
        truncations = sum(int(truncated.sum()) for _, _, truncated, *_ in trace)
        assert truncations == len(lost)  # no other episode is truncated
    else:
        episodes = np.array([episode for _, _, _, episode, *_ in trace])
        assert {location.episode for location in lost} & set(episodes.ravel()) != {*range(episodes.max() + 1)}
    assert traces_equal(trace, collect_trace(lambda: Picky(where), steps=60, seed=38)[0])


@BACKENDS
def test_three_lost_episodes_in_a_row_end_the_run_with_a_fault_that_can_be_replayed(backend, tmp_path):
    with pytest.raises(EnvFault, match="3 episodes in a row") as caught:
        collect_trace(lambda: Picky("step", every=1), backend)
    fault = caught.value
    assert fault.location.episode == 2 and "in _raise_in_some_episodes" in fault.env_traceback and fault.exit_code == 1
    path = tmp_path / "fault.json"
    path.write_text(json.dumps({**fault.reproduction, "env_kwargs": {}}))
    assert "ValueError: not this one" in replay_fault(path, lambda: Picky("step", every=1))
    assert corral.replay_fault(path, Counter) is None


@BACKENDS
def test_invalid_data_of_an_env_is_not_retried(backend):
    with pytest.raises(InvalidEnvData, match="forbids every action"):
        collect_trace(lambda: Masked("info", "empty"), backend)


@BACKENDS
def test_an_env_that_raises_occasionally_does_not_end_the_run(backend):
    class RaisesEvery17Calls(Counter):
        calls = 0  # of all envs of a process, so that the same step succeeds when it is retried

        def step(self, action):
            RaisesEvery17Calls.calls += 1
            if RaisesEvery17Calls.calls % 17 == 0:
                raise ConnectionError("lost")
            return super().step(action)

    trace, report, _ = collect_trace(lambda: RaisesEvery17Calls(12), backend, steps=100, n=2)
    assert len(trace) == 100 and report.fault_counts.retries > 2


@pytest.mark.parametrize("moment", ["between steps", "in a step"])
@pytest.mark.parametrize(
    "env", ["CartPole-v1", "toy-everything", lambda: Masked("method")], ids=["cartpole", "nested spaces", "masked"]
)
def test_killed_workers_do_not_change_the_steps(env, moment):
    def kill(vector, t):
        if t in (7, 8, 20) if moment == "between steps" else t in (7.5, 8.5, 20.5):
            os.kill(vector.pids[int(t) % 2], signal.SIGKILL)
            if moment == "between steps":
                time.sleep(0.05)

    trace, report, warnings = collect_trace(env, "process", disturb=kill)
    assert traces_equal(trace, collect_trace(env)[0])
    assert report.fault_counts == FaultCounts(restarts=3) and "killed by SIGKILL" in warnings[0]


def test_a_hung_worker_is_restarted_and_a_slow_one_is_waited_for(tmp_path):
    class HangsOnce(Counter):
        def step(self, action):
            if self.step_count == 3:
                with contextlib.suppress(FileExistsError):
                    (tmp_path / "slept").touch(exist_ok=False)
                    time.sleep(60)
            time.sleep(0.6 if self.step_count == 1 else 0)
            return super().step(action)

    trace, report, warnings = collect_trace(HangsOnce, "process", steps=8, n=2, step_timeout=1.0)
    assert traces_equal(trace, collect_trace(Counter, steps=8, n=2)[0])
    assert report.fault_counts == FaultCounts(restarts=1)
    assert "gave no sign of life for 1 s" in warnings[0] and "step 4" in warnings[0]


def test_the_step_timeout_doubles_after_a_step_that_was_too_slow():
    class Slow(Counter):
        def step(self, action):
            time.sleep(2.6 if self.step_count == 2 else 0)
            return super().step(action)

    _, report, warnings = collect_trace(Slow, "process", steps=4, n=2, step_timeout=1.0)
    assert report.fault_counts.restarts == len(warnings) == 2  # one for each worker


def test_envs_with_get_state_are_restored_after_a_worker_was_killed():
    def kill(vector, t):
        if t == 10:
            vector.take_report()
        if t == 20:
            os.kill(vector.pids[0], signal.SIGKILL)

    trace, report, _ = collect_trace(lambda: Stateful(1000), "process", disturb=kill)
    assert traces_equal(trace, collect_trace(lambda: Stateful(1000))[0])
    assert report.fault_counts == FaultCounts(restarts=1)


def test_an_episode_without_a_seed_is_truncated_when_its_worker_dies():
    env = corral.make_parallel_env(lambda: Counter(1000), 2, num_workers=2)
    env.reset(seed=3)
    env.step(np.zeros(2, int))
    os.kill(env.pids[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match="killed by SIGKILL.*restarted"):
        _, _, _, truncated, _ = env.step(np.zeros(2, int))
    assert not truncated.any()  # the first episode has the seed that reset gave
    env.set_attr("length", 3)
    for _ in range(5):
        env.step(np.zeros(2, int))
    os.kill(env.pids[1], signal.SIGKILL)
    with pytest.warns(UserWarning, match="could not be restored"):
        observations, _, _, truncated, infos = env.step(np.zeros(2, int))
    assert truncated.tolist() == [False, True] and observations[1, 1] == 0 and infos["final_obs"][1][1] > 0
    env.close()


@BACKENDS
def test_positions_can_be_restored_in_another_vector_env_of_either_backend(backend):
    """The positions are in the middle of episodes; afterwards both vector envs make the same steps."""
    recovery = RecoveryConfig(recover=True)
    first = make_vector_env(resolve_env("CartPole-v1"), 3, backend="serial", seed=1, recovery=recovery)
    second = make_vector_env(resolve_env("CartPole-v1"), 3, backend=backend, seed=1, recovery=recovery)
    first.reset_arrays(), second.reset_arrays()
    rng, a, b = np.random.default_rng(0), first.arrays, second.arrays
    for _ in range(50):
        a.actions[""][...] = rng.integers(0, 2, 3)
        first.send(), first.recv()
    observations = [{"": a.observations[""][i].copy()} for i in range(3)]
    positions = [first.stepper._replay_log.position(i, observations[i], None) for i in range(3)]
    assert second.restore(positions) == []
    for _ in range(50):
        a.actions[""][...] = b.actions[""][...] = rng.integers(0, 2, 3)
        for env in (first, second):
            env.send(), env.recv()
        assert np.array_equal(a.observations[""], b.observations[""]) and np.array_equal(a.episode, b.episode)
    first.close(), second.close()


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60), st.integers(1, 30), st.integers(1, 8))
def test_the_replay_log_holds_the_actions_since_the_last_reset_or_state(events, limit, rows):
    """Compare the log with the simplest model: one list of actions for each env."""
    actions = {"": np.zeros(3, np.int64)}
    replay_log = ReplayLog(actions, first_env=0, root_seed=7, limit=limit, rows=rows)
    expected, steps_before_state = [[], [], []], [0, 0, 0]
    for i in range(3):
        replay_log.begin(i, 0)
    for k, (env, resets) in enumerate(events):
        actions[""][:] = [k, k + 1000, k + 2000]
        replay_log.append()
        for i in range(3):
            expected[i].append(k + 1000 * i)
        if resets:
            replay_log.begin(env, k)
            expected[env], steps_before_state[env] = [], 0
        elif k % 5 == 4:
            replay_log.start_from_state(env, b"state")
            steps_before_state[env] += len(expected[env])
            expected[env] = []
    for i in range(3):
        position = replay_log.position(i, {}, None)
        assert position.steps == steps_before_state[i] + len(expected[i])
        if len(expected[i]) > limit:
            assert position.actions is None and not position.repeatable
        else:
            assert position.actions[""].tolist() == expected[i]
    restored_log = ReplayLog(actions, first_env=0, root_seed=7, limit=limit, rows=rows)
    restored_log.restore([replay_log.position(i, {}, None) for i in range(3)])
    actions[""][:] = -1
    for _ in range(9):
        restored_log.append()
    restored_log.restore([replay_log.position(i, {}, None) for i in range(3)])
    restored_log.append()
    for i in range(3):
        restored, position = (
            restored_log.position(i, {}, None, without_last_action=True),
            replay_log.position(i, {}, None),
        )
        assert (restored.episode, restored.seed) == (position.episode, position.seed)
        assert (restored.steps, restored.state) == (position.steps, position.state)
        assert restored.repeatable == position.repeatable and (
            not restored.repeatable or restored.actions[""].tolist() == position.actions[""].tolist()
        )


def test_the_hang_detector_counts_only_time_between_checks(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("corral.processes.hang_detector.time.monotonic", lambda: clock[0])
    detector = HangDetector(None, "--step-timeout")

    def hangs_after(seconds, heartbeat, interval=1.0):
        """Check worker 0 for so long, with the same heartbeat; return whether it counts as hung at the end."""
        is_hung = False
        for _ in range(int(seconds / interval)):
            clock[0] += interval
            is_hung = detector.is_hung(0, heartbeat)
        return is_hung

    assert not hangs_after(59, "a") and hangs_after(3, "a")
    assert not hangs_after(1, "b")
    detector.stop_watching()
    clock[0] += 3600  # the caller does not wait
    assert not hangs_after(10, "b")
    assert not hangs_after(3600, "b", interval=3600)  # the trainer itself was stopped between two checks
    assert not hangs_after(40, "b")
    assert not hangs_after(1, "c")  # the worker was slow, but continues: the learned limit is longer now
    assert not hangs_after(600, "c") and hangs_after(700, "c")
    fixed_limit = HangDetector(2.0, "--step-timeout")
    fixed_limit.double_limit(1)
    assert (fixed_limit.limit(1), fixed_limit.limit(2)) == (4.0, 2.0)
    fixed_limit.reset_limits()
    assert fixed_limit.limit(1) == 2.0


def test_damaged_fault_files_are_refused(tmp_path):
    path = Path(tmp_path / "fault.json")
    for text in ("", "[]", "{}", '{"actions": {"": 3}, "seed": 1}', '{"actions": {"": [0]}, "seed": "x"}'):
        path.write_text(text)
        with pytest.raises(corral.CorralError, match="is not a fault file of a run"):
            replay_fault(path, Counter)
    path.write_text('{"actions": {"other": [0]}, "seed": 1}')
    with pytest.raises(corral.CorralError, match="has actions"):
        replay_fault(path, Counter)


@BACKENDS
def test_long_episodes_are_restored(backend):
    def kill(vector, t):
        if t == 2500 and backend == "process":
            os.kill(vector.pids[0], signal.SIGKILL)

    trace, report, _ = collect_trace(lambda: Counter(10_000), backend, steps=2600, n=2, disturb=kill)
    assert report.fault_counts == FaultCounts(restarts=int(backend == "process"))
    assert trace[-1][0].tolist() == [2600, 2600]


def test_a_worker_that_dies_after_a_step_that_ended_its_episodes_is_restored_exactly():
    """Its envs have begun new episodes already, while another worker still steps."""

    class SometimesSlow(Counter):
        slow = False

        def step(self, action):
            time.sleep(0.3 if self.slow else 0.0)
            return super().step(action)

    def kill(vector, t):
        if t == 0:
            vector.set_attr("slow", [False, False, True, True])
        if t == 2.5:  # the third step ends every episode; the first worker has answered by now
            time.sleep(0.2)
            os.kill(vector.pids[0], signal.SIGKILL)

    trace, report, _ = collect_trace(lambda: SometimesSlow(3), "process", steps=8, disturb=kill)
    assert traces_equal(trace, collect_trace(lambda: Counter(3), steps=8)[0])
    assert report.fault_counts == FaultCounts(restarts=1)


@BACKENDS
def test_an_env_that_raises_and_cannot_be_restored_ends_the_run_after_three_episodes(backend):
    class RaisesAndIgnoresSeed(Counter):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.draw = time.perf_counter() % 1
            return self._observe(), {}

        def step(self, action):
            if self.step_count == 2:
                raise ValueError("no")
            return super().step(action)

    with pytest.raises(EnvFault, match="could not be restored, in 3 episodes in a row"):
        collect_trace(RaisesAndIgnoresSeed, backend)


@BACKENDS
def test_an_exception_in_a_reset_with_options_is_raised_to_the_caller(backend):
    class RefusesOptions(Counter):
        def reset(self, *, seed=None, options=None):
            if options:
                raise ValueError("unknown option")
            return super().reset(seed=seed)

    env = corral.make_parallel_env(RefusesOptions, 2, backend=backend)
    env.reset(seed=1)
    env.step(np.zeros(2, int))
    with pytest.raises(EnvFault, match="unknown option"):
        env.reset(options={"level": 3})
    env.close()


def test_the_step_timeout_does_not_apply_to_resets_and_calls():
    class SlowOutsideSteps(Counter):
        def reset(self, *, seed=None, options=None):
            time.sleep(0.6)
            return super().reset(seed=seed)

        def slow_method(self):
            time.sleep(1.2)
            return 7

    env = corral.make_parallel_env(SlowOutsideSteps, 2, num_workers=1, step_timeout=1.0, seed=1)
    env.reset()
    env.step(np.zeros(2, int))
    env.reset()
    assert env.call("slow_method")[:1] == (7,)
    env.close()


def test_a_worker_max_rss_below_the_memory_of_a_new_worker_is_refused():
    with pytest.raises(corral.CorralError, match=r"worker_max_rss 10: a new worker uses \d+ MB already"):
        collect_trace(Counter, "process", max_rss=10)
