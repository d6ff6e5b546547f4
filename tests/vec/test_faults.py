"""Faults of envs and deaths of workers raise errors that say where and why; processes, memory and files are freed."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces

from corral.core.errors import CorralError, EnvFault, InvalidEnvData, UsageError, WorkerDied
from corral.envs.factory import resolve_env
from corral.processes import shared_memory
from corral.processes.pool import split_envs
from corral.vec import ProcessVectorEnv, make_vector_env
from tests.toy_envs import Broken, Counter, Masked, Shuffled

BACKENDS = pytest.mark.parametrize("backend", ["serial", "process"])


def wait_until(condition, seconds=30.0):
    """Wait until the condition holds, for ``seconds`` at most; the caller asserts it afterwards."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def step_envs(factory, backend, steps=10):
    """Step 3 envs with random actions, which raises the first error of an env."""
    env = make_vector_env(resolve_env(factory), 3, backend=backend, num_workers=2, seed=5)
    try:
        env.reset_arrays()
        for _ in range(steps):
            rows = env.codec.random(env.masks, 3, np.random.default_rng(0))
            env.codec.decode(rows, env.arrays.actions)
            env.send()
            env.recv()
    finally:
        env.close()


@BACKENDS
@pytest.mark.parametrize("how", ["raise", "unpicklable", "sys_exit"])
def test_an_env_exception_names_env_episode_step_and_has_the_envs_traceback(backend, how):
    with pytest.raises(EnvFault) as caught:
        step_envs(lambda: Broken(how), backend)
    fault = caught.value
    messages = {
        "raise": "ValueError: the dragon won",
        "unpicklable": "Local: cannot travel",
        "sys_exit": "SystemExit: 3",
    }
    assert messages[how] in str(fault)
    assert fault.location.env in (0, 2) and (fault.location.step, fault.location.episode) == (3, 0)
    assert fault.location.seed is not None and fault.location.action is not None
    assert "in _go_wrong" in fault.env_traceback and "stepper.py" not in fault.env_traceback
    assert fault.exit_code == 1


@BACKENDS
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nan", "observation is not finite"),
        ("inf_reward", "reward is not finite"),
        ("none_reward", "reward is NoneType None, expected a number"),
        ("shape", r"shape \(2, 1\), expected \(2,\)"),
        ("long", r"shape \(3,\)"),
        ("four", "a tuple of 4 .the old gym API"),
        ("text", "observation has shape"),
        ("info", "info is NoneType, expected a dict"),
        ("huge_reward", "reward is too large for single precision"),
        ("flags", "expected booleans"),
    ],
)
@pytest.mark.parametrize("at", [3, 10])  # in the middle of an episode, and in its last step
def test_invalid_step_data_is_refused_with_env_step_and_action(backend, how, message, at):
    with pytest.raises(InvalidEnvData, match=message) as caught:
        step_envs(lambda: Broken(how, at), backend)
    location = caught.value.location
    assert location.env in (0, 2) and location.step == at and location.action is not None


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_float16_observations_that_are_not_finite_are_refused(number):
    class Float16Features(Shuffled):
        def step(self, action):
            observation, *rest = super().step(action)
            observation["action_features"][...] = 60000  # finite, though their sum is too large for float16
            if self.count == 3:
                observation["action_features"][1, 2] = number
            return observation, *rest

    with pytest.raises(InvalidEnvData, match="observation is not finite") as caught:
        step_envs(Float16Features, "serial")
    assert caught.value.location.step == 3


@BACKENDS
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("empty", "forbids every action"),
        ("float", "dtype float32"),
        ("length", r"shape \(3,\), expected \(4,\)"),
        ("two", "expected booleans or 0 and 1"),
        ("missing", "no 'action_mask', though the first reset had one"),
    ],
)
def test_invalid_masks_are_refused(backend, wrong, message):
    with pytest.raises(InvalidEnvData, match=message):
        step_envs(lambda: Masked("info", wrong), backend)


@BACKENDS
def test_float64_observations_are_converted_and_no_fault(backend):
    step_envs(lambda: Broken("float64"), backend)


@BACKENDS
@pytest.mark.parametrize(("how", "at"), [("constructor", 1), ("raise", 0), ("raise", 1), ("nan", 0)])
def test_a_fault_before_the_first_completed_step_has_the_exit_code_of_a_wrong_setup(backend, how, at):
    with pytest.raises(EnvFault) as caught:
        step_envs(lambda: Broken(how, at), backend)
    assert caught.value.exit_code == 2
    assert str(caught.value).count("Traceback") == (how != "nan")


@BACKENDS
def test_masks_for_a_continuous_action_space_are_refused(backend):
    class MasksBoxActions(Counter):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,))

        def action_masks(self):
            return np.ones(2, bool)

    with pytest.raises(InvalidEnvData, match="no choices to mask"):
        step_envs(MasksBoxActions, backend)


@pytest.mark.parametrize(("how", "cause"), [("os_exit", "exited with code 7"), ("kill", "killed by SIGKILL")])
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_dead_worker_raises_an_error_with_its_envs_and_cause(how, cause, method):
    env = ProcessVectorEnv(resolve_env(lambda: Broken(how, 2)), 3, num_workers=2, start_method=method, seed=0)
    try:
        env.reset()
        env.step(np.zeros(3, int))
        started = time.monotonic()
        with pytest.raises(WorkerDied, match=f"worker of env.*{cause}"):
            env.step(np.zeros(3, int))
        assert time.monotonic() - started < 50
        with pytest.raises(CorralError, match="an earlier call failed"):
            env.step(np.zeros(3, int))
    finally:
        env.close()


def test_close_ends_stopped_and_hanging_workers():
    env = ProcessVectorEnv(resolve_env(lambda: Broken("hang", 2)), 3, num_workers=3, seed=0)
    env.reset()
    env.step(np.zeros(3, int))
    env.step_async(np.zeros(3, int))
    pids = env.pids
    os.kill(pids[0], signal.SIGSTOP)
    started = time.monotonic()
    env.close()
    assert time.monotonic() - started < 60
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_do_not_outlive_a_killed_parent(tmp_path, method):
    """Workers end even if they hang in C code that holds the GIL."""
    parent_script = tmp_path / "parent.py"  # without a __main__ guard, because it needs none
    parent_script.write_text(
        "import ctypes, sys, time\nimport numpy as np\nfrom corral.vec.make_vec import make_parallel_env\n"
        "from tests.toy_envs import Counter\n"
        "class Hangs(Counter):\n"
        "    def step(self, action):\n"
        "        ctypes.PyDLL(None).sleep(600)\n"
        f"env = make_parallel_env(Hangs, 2, num_workers=2, start_method={method!r})\n"
        "env.reset()\nenv.step_async(np.zeros(2, int))\nprint(*env.pids, flush=True)\ntime.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, parent_script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_waiting_for_workers_uses_no_cpu_time():
    class Slow(Counter):
        def step(self, action):
            time.sleep(0.5)
            return super().step(action)

    env = ProcessVectorEnv(resolve_env(Slow), 2, num_workers=2, seed=0)
    env.reset()
    cpu_before = time.process_time()
    env.step(np.zeros(2, int))
    cpu_seconds = time.process_time() - cpu_before
    env.close()
    assert cpu_seconds < 0.1


def test_close_leaves_no_shared_memory_and_no_open_files():
    shm = Path("/dev/shm")
    before = set(shm.iterdir()) if shm.exists() else set()
    ProcessVectorEnv(resolve_env(Counter), 2, num_workers=2, seed=0).close()  # starts the fork server, which stays open
    gc.collect()  # closes what other tests left open
    open_files = psutil.Process().num_fds()
    for _ in range(3):
        env = ProcessVectorEnv(resolve_env(Counter), 2, num_workers=2, seed=0)
        env.reset()
        env.close()
    del env
    assert psutil.Process().num_fds() == open_files
    new_paths = (set(shm.iterdir()) if shm.exists() else set()) - before
    wait_until(lambda: not any(path.exists() for path in new_paths))  # other processes remove theirs themselves
    assert not [path for path in new_paths if path.exists()]


def test_shared_memory_works_without_memfd(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    env = ProcessVectorEnv(resolve_env(Counter), 2, num_workers=2, seed=0)
    env.reset()
    env.step(np.zeros(2, int))
    assert env.arrays.rewards.tolist() == [1, 1]
    env.close()


def test_too_much_shared_memory_is_refused_with_its_size():
    with pytest.raises(UsageError, match="MB of shared memory"):
        shared_memory.create([shared_memory.ArraySpec("x", (2**62,), "|u1")])


def test_too_few_file_descriptors_are_refused_with_need_and_limit():
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "from corral.vec.make_vec import make_parallel_env\n"
        "make_parallel_env('CartPole-v1', 40, num_workers=40)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "num_workers 40 needs about 384 open files, but the limit is 100" in process.stderr
    assert "--num-workers 4" in process.stderr and resource.getrlimit(resource.RLIMIT_NOFILE) == limits


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("wrap", [lambda env: env, gym.Wrapper], ids=["same object", "in a new wrapper"])
def test_a_factory_that_returns_an_env_object_in_use_is_refused(backend, wrap):
    env = Counter()
    with pytest.raises(UsageError, match="returned the same env object again"):
        make_vector_env(
            resolve_env(lambda: wrap(env)), 2, backend=backend, **({} if backend == "serial" else {"num_workers": 1})
        )
    first = make_vector_env(resolve_env(lambda: wrap(env)), 1, backend="serial")
    with pytest.raises(UsageError, match=r"lambda: MyEnv\(\)"):  # as for training and for evaluation
        make_vector_env(resolve_env(lambda: wrap(env)), 1, backend="serial")
    first.close()
    make_vector_env(resolve_env(lambda: wrap(env)), 1, backend="serial").close()  # no other vector env uses it now


def test_envs_with_different_action_spaces_are_refused():
    class SpaceDependsOnPid(Counter):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(2 + os.getpid())

    with pytest.raises(UsageError, match="action_spaces differ"):
        ProcessVectorEnv(resolve_env(SpaceDependsOnPid), 2, num_workers=2)


def test_workers_outlive_the_thread_that_started_them():
    vector_envs = []

    def make_and_reset():
        env = ProcessVectorEnv(resolve_env(Counter), 2, num_workers=2, seed=0)
        env.reset()
        vector_envs.append(env)

    thread = threading.Thread(target=make_and_reset)
    thread.start()
    thread.join()
    time.sleep(0.2)  # the workers must not end with the thread that started them
    vector_envs[0].step(np.zeros(2, int))
    vector_envs[0].close()


@pytest.mark.parametrize(("n", "workers"), [(8, 3), (2, 2), (7, 7), (5, 1), (10, 4)])
def test_envs_are_split_evenly_among_workers(n, workers):
    shares = split_envs(n, workers)
    assert [i for share in shares for i in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@BACKENDS
def test_masks_that_appear_after_reset_or_raise_are_refused(backend):
    class MasksOnlyInSteps(Counter):
        def step(self, action):
            return *super().step(action)[:4], {"action_mask": np.ones(2, bool)}

    class Raising(Counter):
        def action_masks(self):
            if self.step_count == 2:
                raise RuntimeError("no mask today")
            return np.ones(2, bool)

    class Exiting(Counter):
        def action_masks(self):
            if self.step_count == 2:
                raise SystemExit(0)
            return np.ones(2, bool)

    with pytest.raises(EnvFault, match="SystemExit"):
        step_envs(Exiting, backend)
    with pytest.raises(InvalidEnvData, match="though the first reset had none"):
        step_envs(MasksOnlyInSteps, backend)
    with pytest.raises(EnvFault, match=r"the env raised RuntimeError: no mask today .*step 2"):
        step_envs(Raising, backend)


def test_global_random_generators_differ_between_workers():
    class GlobalRandom(Counter):
        def _observe(self):
            return np.random.random(2).astype(np.float32)  # noqa: NPY002

    env = ProcessVectorEnv(resolve_env(GlobalRandom), 3, num_workers=3)
    observations, _ = env.reset()
    env.close()
    assert len(np.unique(observations)) == 6


def test_a_worker_that_dies_after_its_reply_is_noticed_while_others_still_step():
    class Slow(Counter):
        def step(self, action):
            time.sleep(0.0 if self.length == 1 else 60)
            return super().step(action)

    env = ProcessVectorEnv(resolve_env(Slow), 2, num_workers=2, seed=0)
    env.reset()
    env.set_attr("length", [1, 100])
    env.step_async(np.zeros(2, int))
    time.sleep(0.3)
    os.kill(env.pids[0], signal.SIGKILL)
    started, cpu_before = time.monotonic(), time.process_time()
    with pytest.raises(WorkerDied):
        env.step_wait()
    assert time.monotonic() - started < 30 and time.process_time() - cpu_before < 5
    env.close()


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_dead_worker_is_noticed_even_if_its_child_process_lives_on(method):
    class ForksAndDies(Counter):
        def step(self, action):
            if os.fork() == 0:
                time.sleep(90)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    env = ProcessVectorEnv(resolve_env(ForksAndDies), 1, num_workers=1, start_method=method, seed=0)
    env.reset()
    started = time.monotonic()
    with pytest.raises(WorkerDied):
        env.step(np.zeros(1, int))
    assert time.monotonic() - started < 60
    env.close()


def test_calls_after_an_interrupted_call_are_refused():
    env = ProcessVectorEnv(resolve_env(Counter), 2, num_workers=2, seed=0)
    env.reset()
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(KeyboardInterrupt):
        env.apply(lambda env: __import__("time").sleep(1))
    with pytest.raises(CorralError, match="an earlier call failed"):
        env.get_attr("length")
    env.close()


def test_a_value_that_cannot_be_pickled_does_not_break_the_vector_env():
    env = ProcessVectorEnv(resolve_env(Counter), 2, num_workers=2, seed=0)
    env.reset()
    with pytest.raises(TypeError):
        env.set_attr("value", [threading.Lock(), threading.Lock()])
    env.step(np.zeros(2, int))
    env.close()


def test_infos_may_hold_objects_of_local_classes(tmp_path):
    class Local:
        pass

    class LocalObjectInInfo(Counter):
        def step(self, action):
            return *super().step(action)[:4], {"thing": Local()}

    env = ProcessVectorEnv(resolve_env(LocalObjectInInfo), 2, num_workers=2, seed=0)
    env.reset()
    assert len(env.step(np.zeros(2, int))[4]["thing"]) == 2
    env.close()


@BACKENDS
@pytest.mark.parametrize("actions", [np.array(1), [0.5, 1.0, 1.0], [0, 1], [[0], [1], [0]]])
def test_actions_of_the_wrong_shape_or_dtype_are_refused(backend, actions):
    env = make_vector_env(resolve_env(Counter), 3, backend=backend, num_workers=2, seed=5)
    env.reset()
    with pytest.raises(ValueError, match=r"expected \(3,\) int64"):
        env.step(actions)
    env.step(np.zeros(3, int))
    env.close()
