"""What callers may ask of a vector env, in which order, and what they are told when they ask for something else."""

import multiprocessing
import os
import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, InvalidAction, NoAsyncCallError
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from corral.core.errors import CorralError, EnvFault, UsageError
from corral.envs.factory import resolve_env
from corral.vec.make_vec import make_parallel_env, make_vector_env
from corral.vec.serial import SerialVectorEnv
from tests.toy_envs import Counter, Masked, Spaces


@pytest.fixture(params=["serial", "process"])
def make(request):
    """Makes vector envs of one kind and closes them."""
    made = []

    def build(env, n=None, **kwargs):
        if request.param == "process":
            kwargs.setdefault("num_workers", 1 if env in (together, disabled, masked_together) else 2)
        made.append(make_parallel_env(env, n, backend=request.param, **kwargs))
        return made[-1]

    yield build
    for env in made:
        env.close()


class Optional(Counter):
    """Keeps the options of its last reset, and counts its resets."""

    resets, given = 0, "none yet"

    def reset(self, *, seed=None, options=None):
        self.resets, self.given = self.resets + 1, options
        return super().reset(seed=seed)


class Slow(Counter):
    """Waits for a file before it steps or resets, so that a test decides how long it takes."""

    def __init__(self, gate, in_reset=False):
        super().__init__()
        self.gate, self.in_reset = gate, in_reset

    def reset(self, *, seed=None, options=None):
        if self.in_reset:
            self.wait()
        return super().reset(seed=seed)

    def step(self, action):
        self.wait()
        return super().step(action)

    def wait(self):
        while not self.gate.exists():
            time.sleep(0.01)
        return 5


def together(num_envs):
    return SyncVectorEnv([Optional] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def disabled(num_envs):
    return SyncVectorEnv([Optional] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


# ---- reset ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [Optional, together, disabled])
def test_a_reset_mask_resets_those_envs_and_no_others(make, env):
    vector = make(env, 3)
    first, _ = vector.reset(seed=[4, 5, 6])
    for _ in range(2):
        before, *_ = vector.step(np.zeros(3, int))
    options = {"reset_mask": np.array([True, False, True])}
    after, _ = vector.reset(seed=[4, 9, 9], options=options)
    assert np.array_equal(after[0], first[0]) and after[2, 1] == 0 and after[2, 0] != first[2, 0]
    assert np.array_equal(after[1], before[1])
    assert list(options) == ["reset_mask"]  # the caller's
    later, *_ = vector.step(np.zeros(3, int))
    assert later[:, 1].tolist() == [1, 3, 1]
    if env is Optional:
        assert vector.get_attr("resets") == (2, 1, 2) and vector.get_attr("given") == (None, None, None)


def test_a_reset_mask_goes_with_other_options(make):
    env = make(Optional, 3)
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([False, True, False]), "level": 3})
    assert env.get_attr("given") == (None, {"level": 3}, None)


@pytest.mark.parametrize(
    ("mask", "kind", "words"),
    [
        ([True, False, True], TypeError, "must be a numpy array, got <class 'list'>"),
        (np.array([True]), ValueError, r"must have shape `\(3,\)`, got \(1,\)"),
        (np.array([1, 0, 1]), TypeError, "must have `dtype=np.bool_`, got int64"),
        (np.zeros(3, bool), ValueError, "at least one True value"),
    ],
)
def test_a_wrong_reset_mask_is_refused(make, mask, kind, words):
    env = make(Counter, 3)
    env.reset(seed=0)
    with pytest.raises(kind, match=words):
        env.reset(options={"reset_mask": mask})
    env.step(np.zeros(3, int))


def test_the_first_reset_is_of_every_env(make):
    with pytest.raises(ValueError, match=r"env 1 was never reset.*without reset_mask"):
        make(Counter, 2).reset(options={"reset_mask": np.array([True, False])})


def test_a_worker_that_dies_in_a_reset_of_some_envs_leaves_the_others_where_they_were(tmp_path):
    class Fatal(Optional):
        def reset(self, *, seed=None, options=None):
            if seed == 77 and not options["flag"].exists():
                options["flag"].touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().reset(seed=seed)

    flag = tmp_path / "flag"
    with pytest.warns(UserWarning, match="SIGKILL") as warned:
        env = make_parallel_env(Fatal, 3, num_workers=1)
        env.reset(seed=1)
        for _ in range(3):
            before, *_ = env.step(np.zeros(3, int))
        mask = np.array([True, False, True])
        after, _ = env.reset(seed=[5, 0, 77], options={"reset_mask": mask, "flag": flag})
        assert np.array_equal(after[1], before[1]) and after[[0, 2], 1].tolist() == [0, 0]
        later, *_ = env.step(np.zeros(3, int))
        assert later[:, 1].tolist() == [1, 4, 1]
        env.close()
    assert not [w for w in warned if "could not be restored" in str(w.message)]


@pytest.mark.parametrize("seeds", [(1, 2, 3), [1, 2, 3], np.array([1, 2, 3]), range(1, 4), 1, np.int64(1)])
def test_seeds_may_be_any_sequence_or_whole_number(make, seeds):
    env = make(Counter, 3)
    env.reset(seed=seeds)
    assert env.np_random_seed == (1, 2, 3)
    assert [generator.bit_generator.seed_seq.entropy for generator in env.np_random] == [1, 2, 3]


@pytest.mark.parametrize("seeds", ["abc", 1.5, {1: 2}, [1, 2.5, 3]])
def test_other_seeds_are_refused_by_name(make, seeds):
    with pytest.raises(TypeError, match=r"seed .* expected None, an integer or one for each of the 3 envs"):
        make(Counter, 3).reset(seed=seeds)


@pytest.mark.parametrize("seeds", [-5, -1, [1, -2, 3]])
def test_seeds_below_zero_are_the_callers_mistake(make, seeds):
    env = make(Counter, 3)
    with pytest.raises(ValueError, match=r"seed -\d, expected at least 0"):
        env.reset(seed=seeds)
    env.reset(seed=1)  # it can still be used


def test_seeds_of_a_vector_env_are_one_for_each_env():
    env = make_parallel_env(together, 3, backend="serial")
    env.reset(seed=4)
    assert env.np_random_seed == (4, 5, 6)
    env.close()


# ---- the order of calls --------------------------------------------------------------------------------------


def test_asynchronous_calls_give_what_the_others_give(make):
    one, two = make(Counter, 3), make(Counter, 3)
    one.reset_async(seed=3)
    assert repr(one.reset_wait()) == repr(two.reset(seed=3))
    one.step_async(np.zeros(3, int))
    assert repr(one.step_wait(timeout=60)) == repr(two.step(np.zeros(3, int)))
    one.call_async("double", 4)
    assert one.call_wait(timeout=60) == (8, 8, 8)


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_calls_out_of_order_are_gymnasiums_errors(make, pending):
    env = make(Counter, 2)
    env.reset(seed=0)
    begin = {
        "reset": env.reset_async,
        "step": lambda: env.step_async(np.zeros(2, int)),
        "call": lambda: env.call_async("double", 2),
    }
    finish = {"reset": env.reset_wait, "step": env.step_wait, "call": env.call_wait}
    for name, wait in finish.items():
        with pytest.raises(NoAsyncCallError, match=f"Calling `{name}_wait` without any prior call to `{name}_async`"):
            wait()
    begin[pending]()
    words = f"while waiting for a pending call to `{pending}` to complete"
    for other in (*begin.values(), lambda: env.get_attr("length"), lambda: env.set_attr("length", 3), env.reset):
        with pytest.raises(AlreadyPendingCallError, match=words) as caught:
            other()
        assert caught.value.name == pending and isinstance(caught.value, CorralError)
    finish[pending]()
    env.step(np.zeros(2, int))  # and all is in order
    begin[pending]()
    with pytest.warns(UserWarning, match=f"Calling `close` {words}"):
        env.close()
    env.close()
    for call in (env.reset, env.step_wait, lambda: env.step(np.zeros(2, int)), lambda: env.get_attr("length")):
        with pytest.raises(ClosedEnvironmentError, match=r"after a call to `close\(\)`"):
            call()


@pytest.mark.parametrize("call", ["reset", "step", "call"])
def test_a_wait_that_takes_too_long_can_be_taken_up_again(tmp_path, call):
    gate = tmp_path / "gate"
    env = make_parallel_env(lambda: Slow(gate, in_reset=call == "reset"), 2, num_workers=2)
    if call != "reset":
        env.reset(seed=0)
    begin = {
        "reset": env.reset_async,
        "step": lambda: env.step_async(np.zeros(2, int)),
        "call": lambda: env.call_async("wait"),
    }[call]
    wait = {"reset": env.reset_wait, "step": env.step_wait, "call": env.call_wait}[call]
    begin()
    for seconds in (0, 0.05):
        with pytest.raises(multiprocessing.TimeoutError, match=f"`{call}_wait` .* {seconds} s") as caught:
            wait(timeout=seconds)
        assert isinstance(caught.value, TimeoutError)
    with pytest.raises(AlreadyPendingCallError):
        env.reset()
    gate.touch()
    outcome = wait()
    assert outcome == (5, 5) if call == "call" else outcome[0].shape == (2, 2)
    env.reset(seed=0)
    env.close()


def test_what_one_worker_said_before_a_timeout_is_not_lost(tmp_path):
    """Infos go through the pipe: those that arrived before the time was up are there in the end."""

    class Talks(Slow):
        def step(self, action):
            if action:
                self.wait()
            return *Counter.step(self, action)[:4], {"big": np.full(50_000, int(action))}

    gate = tmp_path / "gate"
    env = make_parallel_env(lambda: Talks(gate), 2, num_workers=2)
    env.reset(seed=0)
    env.step_async(np.array([0, 1]))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            env.step_wait(timeout=0.3)
    gate.touch()
    infos = env.step_wait()[4]
    assert infos["big"][:, -1].tolist() == [0, 1]
    env.close()


def test_a_worker_that_died_while_idle_is_replaced_before_a_call():
    env = make_parallel_env(Counter, 2, num_workers=2, seed=1)
    env.reset()
    env.step(np.zeros(2, int))
    worker = next(process for process in multiprocessing.active_children() if process.pid == env.pids[0])
    worker.kill()
    worker.join()
    with pytest.warns(UserWarning, match="restarted, 1 restart"):
        assert env.get_attr("step_count") == (1, 1)
    assert env.step(np.zeros(2, int))[0][:, 1].tolist() == [2, 2]
    env.close()


# ---- infos ---------------------------------------------------------------------------------------------------


class ReusesInfo(Counter):
    """Returns the same dict and the same array each time, changed."""

    def __init__(self):
        super().__init__(3)
        self.info = {"score": 0, "board": np.zeros(1, np.int8)}

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, self.now()

    def step(self, action):
        return *super().step(action)[:4], self.now()

    def now(self):
        self.info["score"] = self.info["board"][0] = self.step_count
        return self.info


def test_the_last_info_of_an_episode_is_read_before_the_next_begins(make):
    env = make(ReusesInfo, 2)
    env.reset(seed=0)
    final = [env.step(np.zeros(2, int))[4].get("final_info") for _ in range(3)]
    assert final[:2] == [None, None]
    assert final[2]["score"].tolist() == [3, 3] and final[2]["board"].tolist() == [[3], [3]]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_numbers_in_infos_are_added_up_for_steps_alone(backend):
    env = make_vector_env(resolve_env(ReusesInfo), 1, backend=backend, infos="summed")
    env.reset_arrays()
    for _ in range(4):
        env.send()
        env.recv()
    sums = env.drain().infos[0]["score"]
    assert (sums.total, sums.count) == (1 + 2 + 3 + 1, 4)
    env.close()


# ---- actions -------------------------------------------------------------------------------------------------


class Counts(Spaces):
    """Counts the steps of all copies in this process."""

    made = 0

    def __init__(self, *args):
        super().__init__(*args)
        type(self).made += 1


@pytest.mark.parametrize(
    ("space", "actions", "words"),
    [
        (spaces.Discrete(2), [0, 7], r"action 7 of env 1 is not in Discrete\(2\)"),
        (spaces.Discrete(3, start=2), [1, 2], r"action 1 of env 0 is not in Discrete\(3, start=2\)"),
        (spaces.MultiDiscrete([2, 3]), [[0, 2], [1, 3]], r"action \[1, 3\] of env 1 is not in MultiDiscrete"),
        (spaces.MultiBinary(2), [[0, 2], [1, 0]], r"action \[0, 2\] of env 0 is not in MultiBinary\(2\)"),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": np.array([0, -1])}, r"action -1 of env 1 at 'a' is not in"),
        (spaces.Box(-100, 100, (1,), np.int8), [[0], [300]], r"action \[300\] of env 1 is not in Box"),
        (spaces.Box(0, 255, (1,), np.uint8), [[-1], [0]], r"action \[-1\] of env 0 is not in Box"),
    ],
)
def test_an_action_outside_a_space_of_choices_is_refused_before_any_env_steps(make, space, actions, words):
    env = make(lambda: Spaces(spaces.Box(-1, 1, (2,)), space), 2)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=words) as caught:
        env.step(actions if isinstance(actions, dict) else np.array(actions))
    assert isinstance(caught.value, ValueError) and not isinstance(caught.value, EnvFault)
    assert env.get_attr("count") == (0, 0)
    env.action_space.seed(0)
    env.step(env.action_space.sample())  # nothing was lost


def test_continuous_actions_outside_their_space_are_the_envs_to_judge(make):
    env = make("Pendulum-v1", 2)
    env.reset(seed=0)
    env.step(np.array([[50.0], [-50.0]], np.float32))


@pytest.mark.parametrize("vector", [False, True])
def test_an_env_that_refuses_an_action_outside_its_space_is_not_at_fault(make, vector):
    def one():
        return Counts(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))

    def several(num_envs):
        return SyncVectorEnv([one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    env = make(several if vector else one, 2)
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros((2, 1), np.float32))
    made = env.get_attr("made") if not vector else None
    with pytest.raises(InvalidAction, match=r"env 1 raised AssertionError.* for action .*5.* which is not in Box") as c:
        env.step(np.array([[0.0], [5.0]], np.float32))
    assert not isinstance(c.value, EnvFault)
    if isinstance(env, SerialVectorEnv) and not vector:  # in this process: nothing was made again
        assert (Counts.made, Counts.made) == made
    with pytest.raises(CorralError, match="an earlier call failed"):
        env.reset()


def test_a_single_number_is_no_batch_of_actions(make):
    env = make("CartPole-v1", 2)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="expected a batch"):
        env.step(0)


# ---- masks in infos ------------------------------------------------------------------------------------------


def masked_together(num_envs):
    return SyncVectorEnv([lambda: Masked("info")] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("env", [lambda: Masked("info"), masked_together])
def test_masks_in_infos_are_what_gymnasium_gives(make, env):
    ours, theirs = make(env, 2), masked_together(2)
    (obs, infos), (_, expected) = ours.reset(seed=3), theirs.reset(seed=3)
    for _ in range(12):
        assert infos["action_mask"].dtype == expected["action_mask"].dtype == np.int8
        assert np.array_equal(infos["action_mask"], expected["action_mask"])
        assert infos.keys() == expected.keys()
        if "final_info" in expected:
            mine, other = infos["final_info"]["action_mask"], expected["final_info"]["action_mask"]
            assert np.array_equal(mine, other) and mine.dtype == other.dtype
        (obs, _, _, _, infos), (_, _, _, _, expected) = ours.step(obs), theirs.step(obs)
    theirs.close()


# ---- a list of factories -------------------------------------------------------------------------------------


def test_each_env_may_have_its_own_factory(make):
    env = make([lambda n=n: Counter(n) for n in (3, 4, 5)])
    assert env.num_envs == 3 and env.get_attr("length") == (3, 4, 5)
    env.reset(seed=0)
    ends = [env.step(np.zeros(3, int))[2].tolist() for _ in range(5)]
    assert np.argmax(ends, axis=0).tolist() == [2, 3, 4]


def test_an_env_that_is_made_again_is_made_by_its_own_factory(tmp_path):
    class Once(Counter):
        def step(self, action):
            if self.length == 9 and not (tmp_path / "flag").exists() and self.step_count == 2:
                (tmp_path / "flag").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    env = make_parallel_env([lambda n=n: Once(n) for n in (7, 8, 9)], num_workers=2)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="SIGKILL"):
        for _ in range(4):
            env.step(np.zeros(3, int))
    assert env.get_attr("length") == (7, 8, 9)
    env.close()


@pytest.mark.parametrize("env", [None, 5])
def test_what_is_neither_an_env_nor_a_list_is_refused_by_name(make, env):
    with pytest.raises(UsageError, match=f"env {env}: should be the name of an env"):
        make(env, 2)


@pytest.mark.parametrize("n", [2.5, "2", 0, True])
def test_a_number_of_envs_is_a_whole_number(make, n):
    with pytest.raises(UsageError, match=r"n_envs .* should be a whole number, at least 1"):
        make(Counter, n)


def test_a_list_and_a_number_must_agree(make):
    with pytest.raises(UsageError, match=r"n_envs 3.* list of 2 factories"):
        make([Counter, Counter], 3)
    with pytest.raises(UsageError, match="list of env factories is empty"):
        make([])
    assert make([Counter, Counter], 2).num_envs == 2


def test_envs_of_a_list_must_have_the_same_spaces(make):
    with pytest.raises(UsageError, match="spaces differ"):
        make([Counter, "CartPole-v1"])


def test_a_factory_that_gives_the_same_env_twice_is_refused(make):
    env = Counter()
    with pytest.raises(UsageError, match="returned the same env object again"):
        make(lambda: env, 4)


def test_is_still_a_gymnasium_vector_env(make):
    assert isinstance(make([Counter] * 2), gym.vector.VectorEnv)
