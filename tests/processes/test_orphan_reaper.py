"""The orphan reaper: processes that envs started end when the trainer is killed, a pool is closed or a worker dies."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from corral.core.errors import WorkerDied
from corral.envs.factory import resolve_env
from corral.vec import ProcessVectorEnv
from tests.toy_envs import Counter, Parent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])


def living(pids):
    """Return those of the processes that exist and are no zombies."""
    living_pids = []
    for pid in pids:
        try:
            living_pids += [pid] if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            continue
    return living_pids


def wait_for_end(pids, seconds=30.0):
    """Wait until the processes have ended; return those that still live after so many seconds."""
    deadline = time.monotonic() + seconds
    while living(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return living(pids)


def reaper_pids(pid=None):
    """Return the pids of the reapers (shells) that a process has started, by default this one."""
    return [child.pid for child in psutil.Process(pid).children() if "corral-orphan-reaper" in child.cmdline()]


def all_pids(env):
    """Return the pids of a pool's workers and of the processes that their envs started."""
    return [*env.pids, *(pid for pids in env.get_attr("pids") for pid in pids)]


def make_pool(factory=lambda: Parent(daemon=True), n=1, method="auto"):
    """Return a vector env with one worker for each of ``n`` envs."""
    return ProcessVectorEnv(resolve_env(factory), n, num_workers=n, start_method=method, seed=0)


@METHODS
def test_processes_started_by_envs_do_not_outlive_a_killed_trainer(tmp_path, method):
    """There are two pools. A process that the trainer forked itself, with copies of all open files, lives on."""
    script = tmp_path / "trainer.py"
    script.write_text(
        "import os, time\nfrom corral.vec.make_vec import make_parallel_env\nfrom tests.toy_envs import Parent\n"
        f"envs = [make_parallel_env(Parent, 1, num_workers=1, start_method={method!r}) for _ in range(2)]\n"
        "forked = os.fork()\n"
        "if not forked: time.sleep(60)\n"
        "pids = [pid for env in envs for pid in (*env.pids, *env.get_attr('pids')[0])]\n"
        "print(forked, *pids, flush=True)\ntime.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    trainer = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    forked, *pids = [int(word) for word in trainer.stdout.readline().split()]
    try:
        reapers = reaper_pids(trainer.pid)
        assert len(pids) == 8 and len(reapers) == 1 and living([forked, *pids]) == [forked, *pids]
        trainer.kill()
        trainer.wait()
        assert not wait_for_end(pids + reapers)
        assert living([forked])
    finally:
        for pid in living([forked, *pids]):
            os.kill(pid, signal.SIGKILL)


@METHODS
def test_close_ends_workers_their_children_and_the_reaper(method):
    env = make_pool(method=method)
    pids = all_pids(env)
    reapers = reaper_pids()
    assert len(reapers) == 1 and len(living(pids)) == 4
    env.close()
    assert not wait_for_end(pids, 1) and not living(reapers)


@METHODS
def test_processes_started_by_a_killed_workers_envs_are_ended(method):
    env = make_pool(n=2, method=method)
    env.reset()
    workers, (first_children, second_children) = env.pids, env.get_attr("pids")
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        env.step(np.zeros(2, int))
    assert not wait_for_end(first_children, 1)
    assert living(second_children) == second_children and len(reaper_pids()) == 1
    env.close()
    assert not wait_for_end([*workers, *second_children], 1) and not reaper_pids()


def test_pools_share_a_reaper_and_close_ends_only_the_pools_own_processes():
    first, second = make_pool(), make_pool()
    first_pids, second_pids = all_pids(first), all_pids(second)
    reapers = reaper_pids()
    assert len(reapers) == 1
    first.close()
    assert not wait_for_end(first_pids, 1)
    assert living(second_pids) == second_pids and reaper_pids() == reapers
    second.close()
    assert not wait_for_end(second_pids, 1) and not reaper_pids()


def test_a_killed_reaper_is_replaced_when_the_next_pool_starts():
    first = make_pool(Counter)
    (reaper,) = reaper_pids()
    os.kill(reaper, signal.SIGKILL)
    assert not wait_for_end([reaper])
    second = make_pool(Counter)
    assert len(reaper_pids()) == 1
    first.close()
    second.close()
    assert not reaper_pids()


def test_the_reaper_ignores_sigint_sighup_and_sigterm():
    env = make_pool(Counter)
    (reaper,) = reaper_pids()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(reaper, number)
    time.sleep(0.1)
    assert reaper_pids() == [reaper]
    env.close()


def test_a_forked_process_cannot_end_its_parents_workers():
    env = make_pool()
    env.reset()
    pids, reapers = all_pids(env), reaper_pids()
    forked = os.fork()
    if not forked:
        try:
            from corral.processes import orphan_reaper

            orphan_reaper.end(env.pids)
            env.close()
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    assert living(pids) == pids and reaper_pids() == reapers
    env.step(np.zeros(1, int))
    env.close()
    assert not wait_for_end(pids, 1)


def test_end_kills_no_process_that_is_not_a_current_worker():
    from corral.processes import orphan_reaper

    env = make_pool(Counter)
    env.close()
    unrelated = subprocess.Popen(["sleep", "60"], start_new_session=True)
    orphan_reaper.end([*env.pids, unrelated.pid])
    time.sleep(0.1)
    assert unrelated.poll() is None
    unrelated.kill()
    unrelated.wait()


def test_envs_work_without_a_shell_for_the_reaper(monkeypatch):
    def fail(*_, **__):
        raise FileNotFoundError("/bin/sh")

    monkeypatch.setattr("corral.processes.orphan_reaper.subprocess.Popen", fail)
    gc.collect()  # closes envs of other tests, so that none of them is closed during this test
    open_files = psutil.Process().num_fds()
    env = make_pool(Counter, method="fork")
    env.reset()
    env.step(np.zeros(1, int))
    env.close()
    del env
    assert psutil.Process().num_fds() == open_files


@pytest.mark.skipif(sys.platform != "linux", reason="a process can set its name only on Linux")
@METHODS
def test_worker_processes_have_names(method):
    env = make_pool(Counter, n=2, method=method)
    assert [psutil.Process(pid).name() for pid in env.pids] == ["corral-w0", "corral-w1"]
    env.close()
