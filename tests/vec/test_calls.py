"""Calls of a vector env: their arguments, their order, and the errors for wrong ones."""

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
    """Return a function that makes vector envs with one backend; close them after the test."""
    vector_envs = []

    def build(env, n=None, **kwargs):
        if request.param == "process":
            kwargs.setdefault(
                "num_workers", 1 if env in (make_same_step_vector, make_disabled_vector, make_masked_vector) else 2
            )
        vector_envs.append(make_parallel_env(env, n, backend=request.param, **kwargs))
        return vector_envs[-1]

    yield build
    for env in vector_envs:
        env.close()


class RecordsResets(Counter):
    """Keeps the options of its last reset, and counts its resets."""

    resets, last_options = 0, "never reset"

    def reset(self, *, seed=None, options=None):
        self.resets, self.last_options = self.resets + 1, options
        return super().reset(seed=seed)


class Slow(Counter):
    """Waits for a file (``gate``) before it steps or resets, so that a test decides how long that takes."""

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


def make_same_step_vector(num_envs):
    return SyncVectorEnv([RecordsResets] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def make_disabled_vector(num_envs):
    return SyncVectorEnv([RecordsResets] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


# ---- reset ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [RecordsResets, make_same_step_vector, make_disabled_vector])
def test_a_reset_mask_resets_those_envs_and_no_others(make, env):
    vector = make(env, 3)
    first, _ = vector.reset(seed=[4, 5, 6])
    for _ in range(2):
        before, *_ = vector.step(np.zeros(3, int))
    options = {"reset_mask": np.array([True, False, True])}
    after, _ = vector.reset(seed=[4, 9, 9], options=options)
    assert np.array_equal(after[0], first[0]) and after[2, 1] == 0 and after[2, 0] != first[2, 0]
    assert np.array_equal(after[1], before[1])
    assert list(options) == ["reset_mask"]  # the caller's dict is not changed
    later, *_ = vector.step(np.zeros(3, int))
    assert later[:, 1].tolist() == [1, 3, 1]
    if env is RecordsResets:
        assert vector.get_attr("resets") == (2, 1, 2) and vector.get_attr("last_options") == (None, None, None)


def test_a_reset_mask_is_not_passed_on_with_the_other_options(make):
    env = make(RecordsResets, 3)
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([False, True, False]), "level": 3})
    assert env.get_attr("last_options") == (None, {"level": 3}, None)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([True, False, True], TypeError, "must be a numpy array, got <class 'list'>"),
        (np.array([True]), ValueError, r"must have shape `\(3,\)`, got \(1,\)"),
        (np.array([1, 0, 1]), TypeError, "must have `dtype=np.bool_`, got int64"),
        (np.zeros(3, bool), ValueError, "at least one True value"),
    ],
)
def test_an_invalid_reset_mask_is_refused(make, mask, error, message):
    env = make(Counter, 3)
    env.reset(seed=0)
    with pytest.raises(error, match=message):
        env.reset(options={"reset_mask": mask})
    env.step(np.zeros(3, int))


def test_the_first_reset_must_be_of_every_env(make):
    with pytest.raises(ValueError, match=r"env 1 was never reset.*without reset_mask"):
        make(Counter, 2).reset(options={"reset_mask": np.array([True, False])})


def test_a_worker_death_in_a_partial_reset_keeps_the_positions_of_the_other_envs(tmp_path):
    class DiesInReset(RecordsResets):
        def reset(self, *, seed=None, options=None):
            if seed == 77 and not options["flag"].exists():
                options["flag"].touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().reset(seed=seed)

    flag = tmp_path / "flag"
    with pytest.warns(UserWarning, match="SIGKILL") as warnings:
        env = make_parallel_env(DiesInReset, 3, num_workers=1)
        env.reset(seed=1)
        for _ in range(3):
            before, *_ = env.step(np.zeros(3, int))
        mask = np.array([True, False, True])
        after, _ = env.reset(seed=[5, 0, 77], options={"reset_mask": mask, "flag": flag})
        assert np.array_equal(after[1], before[1]) and after[[0, 2], 1].tolist() == [0, 0]
        later, *_ = env.step(np.zeros(3, int))
        assert later[:, 1].tolist() == [1, 4, 1]
        env.close()
    assert not [warning for warning in warnings if "could not be restored" in str(warning.message)]


@pytest.mark.parametrize("seeds", [(1, 2, 3), [1, 2, 3], np.array([1, 2, 3]), range(1, 4), 1, np.int64(1)])
def test_seeds_may_be_an_integer_or_any_sequence_of_integers(make, seeds):
    env = make(Counter, 3)
    env.reset(seed=seeds)
    assert env.np_random_seed == (1, 2, 3)
    assert [generator.bit_generator.seed_seq.entropy for generator in env.np_random] == [1, 2, 3]


@pytest.mark.parametrize("seeds", ["abc", 1.5, {1: 2}, [1, 2.5, 3]])
def test_seeds_of_other_types_are_refused(make, seeds):
    with pytest.raises(TypeError, match=r"seed .* expected None, an integer or one for each of the 3 envs"):
        make(Counter, 3).reset(seed=seeds)


@pytest.mark.parametrize("seeds", [-5, -1, [1, -2, 3]])
def test_negative_seeds_are_refused_and_the_vector_env_stays_usable(make, seeds):
    env = make(Counter, 3)
    with pytest.raises(ValueError, match=r"seed -\d, expected at least 0"):
        env.reset(seed=seeds)
    env.reset(seed=1)  # the vector env can still be used


def test_an_integer_seed_gives_each_env_of_a_users_vector_env_its_own_seed():
    env = make_parallel_env(make_same_step_vector, 3, backend="serial")
    env.reset(seed=4)
    assert env.np_random_seed == (4, 5, 6)
    env.close()


# ---- the order of calls --------------------------------------------------------------------------------------


def test_asynchronous_calls_return_the_same_as_synchronous_ones(make):
    env, synchronous_env = make(Counter, 3), make(Counter, 3)
    env.reset_async(seed=3)
    assert repr(env.reset_wait()) == repr(synchronous_env.reset(seed=3))
    env.step_async(np.zeros(3, int))
    assert repr(env.step_wait(timeout=60)) == repr(synchronous_env.step(np.zeros(3, int)))
    env.call_async("double", 4)
    assert env.call_wait(timeout=60) == (8, 8, 8)


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_calls_out_of_order_raise_gymnasiums_errors(make, pending):
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
    message = f"while waiting for a pending call to `{pending}` to complete"
    for other_call in (*begin.values(), lambda: env.get_attr("length"), lambda: env.set_attr("length", 3), env.reset):
        with pytest.raises(AlreadyPendingCallError, match=message) as caught:
            other_call()
        assert caught.value.name == pending and isinstance(caught.value, CorralError)
    finish[pending]()
    env.step(np.zeros(2, int))  # the errors did not break the vector env
    begin[pending]()
    with pytest.warns(UserWarning, match=f"Calling `close` {message}"):
        env.close()
    env.close()
    for call in (env.reset, env.step_wait, lambda: env.step(np.zeros(2, int)), lambda: env.get_attr("length")):
        with pytest.raises(ClosedEnvironmentError, match=r"after a call to `close\(\)`"):
            call()


@pytest.mark.parametrize("call", ["reset", "step", "call"])
def test_a_wait_that_timed_out_can_be_repeated(tmp_path, call):
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


def test_a_workers_infos_that_arrived_before_a_timeout_are_kept(tmp_path):
    """Infos are sent through a pipe; those that arrived before the time-out are part of the result."""

    class SendsLargeInfos(Slow):
        def step(self, action):
            if action:
                self.wait()
            return *Counter.step(self, action)[:4], {"big": np.full(50_000, int(action))}

    gate = tmp_path / "gate"
    env = make_parallel_env(lambda: SendsLargeInfos(gate), 2, num_workers=2)
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
    """Returns the same info dict with the same array in every step, and changes both in place."""

    def __init__(self):
        super().__init__(3)
        self.info = {"score": 0, "board": np.zeros(1, np.int8)}

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, self.update_info()

    def step(self, action):
        return *super().step(action)[:4], self.update_info()

    def update_info(self):
        self.info["score"] = self.info["board"][0] = self.step_count
        return self.info


def test_final_info_is_copied_before_the_env_is_reset(make):
    env = make(ReusesInfo, 2)
    env.reset(seed=0)
    final_infos = [env.step(np.zeros(2, int))[4].get("final_info") for _ in range(3)]
    assert final_infos[:2] == [None, None]
    assert final_infos[2]["score"].tolist() == [3, 3] and final_infos[2]["board"].tolist() == [[3], [3]]


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_info_sums_count_steps_and_no_resets(backend):
    env = make_vector_env(resolve_env(ReusesInfo), 1, backend=backend, infos="summed")
    env.reset_arrays()
    for _ in range(4):
        env.send()
        env.recv()
    sums = env.take_report().infos[0]["score"]
    assert (sums.total, sums.count) == (1 + 2 + 3 + 1, 4)
    env.close()


# ---- actions -------------------------------------------------------------------------------------------------


class CountsInstances(Spaces):
    """Counts how many instances were made in this process."""

    instances = 0

    def __init__(self, *args):
        super().__init__(*args)
        type(self).instances += 1


@pytest.mark.parametrize(
    ("space", "actions", "message"),
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
def test_an_integer_action_outside_its_space_is_refused_before_any_env_steps(make, space, actions, message):
    env = make(lambda: Spaces(spaces.Box(-1, 1, (2,)), space), 2)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=message) as caught:
        env.step(actions if isinstance(actions, dict) else np.array(actions))
    assert isinstance(caught.value, ValueError) and not isinstance(caught.value, EnvFault)
    assert env.get_attr("count") == (0, 0)
    env.action_space.seed(0)
    env.step(env.action_space.sample())  # the error did not break the vector env


def test_continuous_actions_outside_their_space_are_passed_to_the_env(make):
    env = make("Pendulum-v1", 2)
    env.reset(seed=0)
    env.step(np.array([[50.0], [-50.0]], np.float32))


@pytest.mark.parametrize("vector", [False, True])
def test_an_exception_for_an_action_outside_its_space_is_invalid_action_and_no_env_fault(make, vector):
    def single_env():
        return CountsInstances(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))

    def vector_env(num_envs):
        return SyncVectorEnv([single_env] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)

    env = make(vector_env if vector else single_env, 2)
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros((2, 1), np.float32))
    instances = env.get_attr("instances") if not vector else None
    message = r"env 1 raised AssertionError.* for action .*5.* which is not in Box"
    with pytest.raises(InvalidAction, match=message) as caught:
        env.step(np.array([[0.0], [5.0]], np.float32))
    assert not isinstance(caught.value, EnvFault)
    if isinstance(env, SerialVectorEnv) and not vector:  # the envs are in this process: none was remade
        assert (CountsInstances.instances, CountsInstances.instances) == instances
    with pytest.raises(CorralError, match="an earlier call failed"):
        env.reset()


def test_a_scalar_instead_of_a_batch_of_actions_is_refused(make):
    env = make("CartPole-v1", 2)
    env.reset(seed=0)
    with pytest.raises(TypeError, match="expected a batch"):
        env.step(0)


# ---- masks in infos ------------------------------------------------------------------------------------------


def make_masked_vector(num_envs):
    return SyncVectorEnv([lambda: Masked("info")] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("env", [lambda: Masked("info"), make_masked_vector])
def test_masks_in_infos_equal_those_of_gymnasiums_sync_vector_env(make, env):
    corral_env, gymnasium_env = make(env, 2), make_masked_vector(2)
    (obs, infos), (_, expected) = corral_env.reset(seed=3), gymnasium_env.reset(seed=3)
    for _ in range(12):
        assert infos["action_mask"].dtype == expected["action_mask"].dtype == np.int8
        assert np.array_equal(infos["action_mask"], expected["action_mask"])
        assert infos.keys() == expected.keys()
        if "final_info" in expected:
            mask, expected_mask = infos["final_info"]["action_mask"], expected["final_info"]["action_mask"]
            assert np.array_equal(mask, expected_mask) and mask.dtype == expected_mask.dtype
        (obs, _, _, _, infos), (_, _, _, _, expected) = corral_env.step(obs), gymnasium_env.step(obs)
    gymnasium_env.close()


# ---- a list of factories -------------------------------------------------------------------------------------


def test_each_env_may_have_its_own_factory(make):
    env = make([lambda n=n: Counter(n) for n in (3, 4, 5)])
    assert env.num_envs == 3 and env.get_attr("length") == (3, 4, 5)
    env.reset(seed=0)
    ends = [env.step(np.zeros(3, int))[2].tolist() for _ in range(5)]
    assert np.argmax(ends, axis=0).tolist() == [2, 3, 4]


def test_a_restarted_worker_makes_each_env_with_its_own_factory(tmp_path):
    class DiesOnce(Counter):
        def step(self, action):
            if self.length == 9 and not (tmp_path / "flag").exists() and self.step_count == 2:
                (tmp_path / "flag").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(action)

    env = make_parallel_env([lambda n=n: DiesOnce(n) for n in (7, 8, 9)], num_workers=2)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="SIGKILL"):
        for _ in range(4):
            env.step(np.zeros(3, int))
    assert env.get_attr("length") == (7, 8, 9)
    env.close()


@pytest.mark.parametrize("env", [None, 5])
def test_an_env_of_a_wrong_type_is_refused(make, env):
    with pytest.raises(UsageError, match=f"env {env}: should be the name of an env"):
        make(env, 2)


@pytest.mark.parametrize("n", [2.5, "2", 0, True])
def test_n_envs_must_be_a_positive_integer(make, n):
    with pytest.raises(UsageError, match=r"n_envs .* should be a whole number, at least 1"):
        make(Counter, n)


def test_n_envs_must_equal_the_length_of_a_list_of_factories(make):
    with pytest.raises(UsageError, match=r"n_envs 3.* list of 2 factories"):
        make([Counter, Counter], 3)
    with pytest.raises(UsageError, match="list of env factories is empty"):
        make([])
    assert make([Counter, Counter], 2).num_envs == 2


def test_envs_of_a_list_of_factories_must_have_the_same_spaces(make):
    with pytest.raises(UsageError, match="spaces differ"):
        make([Counter, "CartPole-v1"])


def test_a_factory_that_returns_the_same_env_object_twice_is_refused(make):
    env = Counter()
    with pytest.raises(UsageError, match="returned the same env object again"):
        make(lambda: env, 4)


def test_a_vector_env_of_a_list_of_factories_is_a_gymnasium_vector_env(make):
    assert isinstance(make([Counter] * 2), gym.vector.VectorEnv)
