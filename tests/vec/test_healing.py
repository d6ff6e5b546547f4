"""Envs that raise and workers that die under a vector env: its callers see the same as if nothing had happened."""

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
from corral.core.types import RecoveryCounts
from corral.doctor.replay import replay_fault
from corral.envs.factory import resolve_env
from corral.processes.supervision import HangDetector, RecoveryConfig
from corral.vec import make_vector_env
from corral.vec.replay_log import ReplayLog
from tests.toy_envs import Counter, Masked, OnceBroken, Picky, Stateful

BACKENDS = pytest.mark.parametrize("backend", ["serial", "process"])


def play(env, backend="serial", steps=30, disturb=lambda env, t: None, n=4, seed=5, **recovery):
    """What a vector env shows over some steps of fixed actions, and what was mended."""
    said = []
    vector = make_vector_env(
        resolve_env(env),
        n,
        backend=backend,
        num_workers=2 if backend == "process" else None,
        seed=seed,
        infos="summed",
        recovery=RecoveryConfig(heal=True, warn=said.append, **recovery),
    )
    try:
        vector.reset_arrays()
        rng, trace, a = np.random.default_rng(3), [], vector.arrays
        for t in range(steps):
            vector.codec.decode(vector.codec.random(vector.masks, n, rng), a.actions)
            disturb(vector, t)
            vector.send()
            disturb(vector, t + 0.5)
            vector.recv()
            row = [a.rewards, a.terminated, a.truncated, a.episode, a.masks, *a.observations.values()]
            ended = a.terminated | a.truncated
            trace.append([array.copy() for array in row] + [leaf[ended] for leaf in a.final_observations.values()])
        drained = vector.drain()
        return trace, drained, said
    finally:
        vector.close()


class Fatal(Counter):
    """Takes its process along in its step 9, if it gets there."""

    def step(self, action):
        if self.step_count == 8:
            os._exit(7)
        return super().step(action)


def test_a_vector_env_that_always_kills_its_worker_at_the_same_step_ends_the_run():
    def make(num_envs):
        lengths = [4] * (num_envs - 1) + [100]
        return SyncVectorEnv([functools.partial(Fatal, length) for length in lengths])

    with pytest.raises(EnvFault, match=r"exited with code 7.*3 times in a row"):
        play(make, "process", steps=100)


def test_workers_of_vector_envs_may_die_at_the_same_step_of_many_episodes():
    def kill(env, t):
        if t in (3.5, 10.5, 22.5, 26.5):
            os.kill(env.pids[0], signal.SIGKILL)

    _, drained, _ = play(lambda num_envs: SyncVectorEnv([lambda: Counter(1)] * num_envs), "process", disturb=kill)
    assert drained.recovery_counts.restarts == 4


def same(one, two):
    return all(
        np.array_equal(a, b) for row, other in zip(one, two, strict=True) for a, b in zip(row, other, strict=True)
    )


@BACKENDS
@pytest.mark.parametrize("where", ["step", "reset", "masks"])
def test_an_env_that_raises_once_is_made_again_and_goes_on(backend, where, tmp_path):
    undisturbed, _, _ = play(lambda: OnceBroken(where, None))
    trace, drained, _ = play(lambda: OnceBroken(where, tmp_path / "done"), backend)
    assert (tmp_path / "done").exists() and same(undisturbed, trace)
    assert drained.recovery_counts == RecoveryCounts(retries=1)
    (fault,) = drained.faults
    assert "the dragon won" in fault.summary and fault.reproduction is not None


@BACKENDS
@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_episode_that_always_raises_at_the_same_step_is_the_only_one_lost(backend, where):
    trace, drained, _ = play(lambda: Picky(where), backend, steps=60, seed=38)
    assert drained.recovery_counts.env_faults >= 2 and drained.recovery_counts == RecoveryCounts(
        env_faults=drained.recovery_counts.env_faults
    )
    lost = [fault.location for fault in drained.faults]
    assert all(location.seed % 5 == 0 and location.step == (2 if where == "step" else 0) for location in lost)
    if where == "step":
        cut = sum(int(truncated.sum()) for _, _, truncated, *_ in trace)
        assert cut == len(lost)  # nothing else is cut off
    else:
        numbers = np.array([episode for _, _, _, episode, *_ in trace])
        assert {location.episode for location in lost} & set(numbers.ravel()) != {*range(numbers.max() + 1)}
    assert same(trace, play(lambda: Picky(where), steps=60, seed=38)[0])


@BACKENDS
def test_three_lost_episodes_in_a_row_end_the_run_with_enough_to_see_it_again(backend, tmp_path):
    with pytest.raises(EnvFault, match="3 episodes in a row") as caught:
        play(lambda: Picky("step", every=1), backend)
    fault = caught.value
    assert fault.location.episode == 2 and "in _maybe" in fault.env_traceback and fault.exit_code == 1
    path = tmp_path / "fault.json"
    path.write_text(json.dumps({**fault.reproduction, "env_kwargs": {}}))
    assert "ValueError: not this one" in replay_fault(path, lambda: Picky("step", every=1))
    assert corral.replay_fault(path, Counter) is None


@BACKENDS
def test_bad_data_is_not_healed(backend):
    with pytest.raises(InvalidEnvData, match="forbids every action"):
        play(lambda: Masked("info", "empty"), backend)


@BACKENDS
def test_an_env_that_raises_now_and_then_does_not_stop_anything(backend):
    class Shaky(Counter):
        calls = 0  # over all envs of a process, so that the same step works the next time

        def step(self, action):
            Shaky.calls += 1
            if Shaky.calls % 17 == 0:
                raise ConnectionError("lost")
            return super().step(action)

    trace, drained, _ = play(lambda: Shaky(12), backend, steps=100, n=2)
    assert len(trace) == 100 and drained.recovery_counts.retries > 2


@pytest.mark.parametrize("moment", ["between steps", "in a step"])
@pytest.mark.parametrize(
    "env", ["CartPole-v1", "toy-everything", lambda: Masked("method")], ids=["plain", "nested", "masked"]
)
def test_a_worker_that_is_killed_leaves_no_trace(env, moment):
    def kill(vector, t):
        if t in (7, 8, 20) if moment == "between steps" else t in (7.5, 8.5, 20.5):
            os.kill(vector.pids[int(t) % 2], signal.SIGKILL)
            if moment == "between steps":
                time.sleep(0.05)

    trace, drained, said = play(env, "process", disturb=kill)
    assert same(trace, play(env)[0])
    assert drained.recovery_counts == RecoveryCounts(restarts=3) and "killed by SIGKILL" in said[0]


def test_a_hung_worker_is_replaced_and_a_slow_one_is_waited_for(tmp_path):
    class Sleepy(Counter):
        def step(self, action):
            if self.step_count == 3:
                with contextlib.suppress(FileExistsError):
                    (tmp_path / "slept").touch(exist_ok=False)
                    time.sleep(60)
            time.sleep(0.6 if self.step_count == 1 else 0)
            return super().step(action)

    trace, drained, said = play(Sleepy, "process", steps=8, n=2, step_timeout=1.0)
    assert same(trace, play(Counter, steps=8, n=2)[0]) and drained.recovery_counts == RecoveryCounts(restarts=1)
    assert "gave no sign of life for 1 s" in said[0] and "step 4" in said[0]


def test_a_step_that_is_too_slow_once_gets_twice_the_time():
    class Slow(Counter):
        def step(self, action):
            time.sleep(2.6 if self.step_count == 2 else 0)
            return super().step(action)

    _, drained, said = play(Slow, "process", steps=4, n=2, step_timeout=1.0)
    assert drained.recovery_counts.restarts == len(said) == 2  # one for each worker, and no more


def test_a_state_spares_the_replay_in_a_vector_env_too():
    def kill(vector, t):
        if t == 10:
            vector.drain()
        if t == 20:
            os.kill(vector.pids[0], signal.SIGKILL)

    trace, drained, _ = play(lambda: Stateful(1000), "process", disturb=kill)
    assert same(trace, play(lambda: Stateful(1000))[0]) and drained.recovery_counts == RecoveryCounts(restarts=1)


def test_without_a_seed_an_episode_cannot_be_repeated_and_ends_as_truncated():
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
def test_envs_can_be_brought_anywhere(backend):
    """From one vector env to another of either kind, in the middle of episodes."""
    recovery = RecoveryConfig(heal=True)
    first = make_vector_env(resolve_env("CartPole-v1"), 3, backend="serial", seed=1, recovery=recovery)
    second = make_vector_env(resolve_env("CartPole-v1"), 3, backend=backend, seed=1, recovery=recovery)
    first.reset_arrays(), second.reset_arrays()
    rng, a, b = np.random.default_rng(0), first.arrays, second.arrays
    for _ in range(50):
        a.actions[""][...] = rng.integers(0, 2, 3)
        first.send(), first.recv()
    seen = [{"": a.observations[""][i].copy()} for i in range(3)]
    positions = [first.stepper._replay_log.position(i, seen[i], None) for i in range(3)]
    assert second.restore(positions) == []
    for _ in range(50):
        a.actions[""][...] = b.actions[""][...] = rng.integers(0, 2, 3)
        for env in (first, second):
            env.send(), env.recv()
        assert np.array_equal(a.observations[""], b.observations[""]) and np.array_equal(a.episode, b.episode)
    first.close(), second.close()


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60), st.integers(1, 30), st.integers(1, 8))
def test_a_history_is_what_was_played_since_the_last_reset(events, limit, rows):
    """Against the obvious: one list for each env."""
    actions = {"": np.zeros(3, np.int64)}
    replay_log, expected, before = ReplayLog(actions, 0, 7, limit, rows), [[], [], []], [0, 0, 0]
    for i in range(3):
        replay_log.begin(i, 0)
    for k, (env, resets) in enumerate(events):
        actions[""][:] = [k, k + 1000, k + 2000]
        replay_log.append()
        for i in range(3):
            expected[i].append(k + 1000 * i)
        if resets:
            replay_log.begin(env, k)
            expected[env], before[env] = [], 0
        elif k % 5 == 4:
            replay_log.start_from_state(env, b"here")
            before[env] += len(expected[env])
            expected[env] = []
    for i in range(3):
        position = replay_log.position(i, {}, None)
        assert position.steps == before[i] + len(expected[i])
        if len(expected[i]) > limit:
            assert position.actions is None and not position.repeatable
        else:
            assert position.actions[""].tolist() == expected[i]
    again = ReplayLog(actions, 0, 7, limit, rows)
    again.restore([replay_log.position(i, {}, None) for i in range(3)])
    actions[""][:] = -1
    for _ in range(9):
        again.append()
    again.restore([replay_log.position(i, {}, None) for i in range(3)])
    again.append()
    for i in range(3):
        one, two = again.position(i, {}, None, undone=True), replay_log.position(i, {}, None)
        assert (one.episode, one.seed, one.steps, one.state) == (two.episode, two.seed, two.steps, two.state)
        assert one.repeatable == two.repeatable and (
            not one.repeatable or one.actions[""].tolist() == two.actions[""].tolist()
        )


def test_patience_counts_only_what_it_saw(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("corral.processes.supervision.time.monotonic", lambda: clock[0])
    patience = HangDetector(None, "--step-timeout")

    def silent(seconds, sign, every=1.0):
        over = False
        for _ in range(int(seconds / every)):
            clock[0] += every
            over = patience.is_hung(0, sign)
        return over

    assert not silent(59, "a") and silent(3, "a")
    assert not silent(1, "b")
    patience.stop_watching()
    clock[0] += 3600  # nobody was watching
    assert not silent(10, "b") and not silent(3600, "b", every=3600)  # we were stopped ourselves
    assert not silent(40, "b")
    assert not silent(1, "c")  # it was slow, but it goes on: from now on more is allowed
    assert not silent(600, "c") and silent(700, "c")
    short = HangDetector(2.0, "--step-timeout")
    short.double_limit(1)
    assert (short.limit(1), short.limit(2)) == (4.0, 2.0)
    short.reset_limits()
    assert short.limit(1) == 2.0


def test_files_of_a_fault_are_data(tmp_path):
    path = Path(tmp_path / "fault.json")
    for text in ("", "[]", "{}", '{"actions": {"": 3}, "seed": 1}', '{"actions": {"": [0]}, "seed": "x"}'):
        path.write_text(text)
        with pytest.raises(corral.CorralError, match="is not a fault file of a run"):
            replay_fault(path, Counter)
    path.write_text('{"actions": {"other": [0]}, "seed": 1}')
    with pytest.raises(corral.CorralError, match="has actions"):
        replay_fault(path, Counter)


@BACKENDS
def test_long_episodes_can_be_brought_back(backend):
    def kill(vector, t):
        if t == 2500 and backend == "process":
            os.kill(vector.pids[0], signal.SIGKILL)

    trace, drained, _ = play(lambda: Counter(10_000), backend, steps=2600, n=2, disturb=kill)
    assert drained.recovery_counts == RecoveryCounts(restarts=int(backend == "process"))
    assert trace[-1][0].tolist() == [2600, 2600]


def test_a_worker_that_dies_after_a_step_that_ended_an_episode_is_exact():
    """While another still steps: its envs are in new episodes already."""

    class Uneven(Counter):
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

    trace, drained, _ = play(lambda: Uneven(3), "process", steps=8, disturb=kill)
    assert same(trace, play(lambda: Counter(3), steps=8)[0]) and drained.recovery_counts == RecoveryCounts(restarts=1)


@BACKENDS
def test_an_env_that_raises_and_cannot_be_brought_back_does_not_go_on_for_ever(backend):
    class Hopeless(Counter):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.draw = time.perf_counter() % 1
            return self._observe(), {}

        def step(self, action):
            if self.step_count == 2:
                raise ValueError("no")
            return super().step(action)

    with pytest.raises(EnvFault, match="could not be restored, in 3 episodes in a row"):
        play(Hopeless, backend)


@BACKENDS
def test_a_reset_that_was_asked_for_is_not_replaced_by_another(backend):
    class Strict(Counter):
        def reset(self, *, seed=None, options=None):
            if options:
                raise ValueError("unknown option")
            return super().reset(seed=seed)

    env = corral.make_parallel_env(Strict, 2, backend=backend)
    env.reset(seed=1)
    env.step(np.zeros(2, int))
    with pytest.raises(EnvFault, match="unknown option"):
        env.reset(options={"level": 3})
    env.close()


def test_slow_resets_and_calls_are_not_steps():
    class Ponderous(Counter):
        def reset(self, *, seed=None, options=None):
            time.sleep(0.6)
            return super().reset(seed=seed)

        def think(self):
            time.sleep(1.2)
            return 7

    env = corral.make_parallel_env(Ponderous, 2, num_workers=1, step_timeout=1.0, seed=1)
    env.reset()
    env.step(np.zeros(2, int))
    env.reset()
    assert env.call("think")[:1] == (7,)
    env.close()


def test_a_limit_below_what_a_new_worker_needs_is_refused():
    with pytest.raises(corral.CorralError, match=r"worker_max_rss 10: a new worker uses \d+ MB already"):
        play(Counter, "process", max_rss=10)
