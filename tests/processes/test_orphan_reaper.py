"""Nothing that an env starts is left: not after a kill -9 of the trainer, not after a close, not after a crash."""

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

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no process groups")
METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])


def alive(pids):
    found = []
    for pid in pids:
        try:
            found += [pid] if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            continue
    return found


def left(pids, seconds=30.0):
    """Which of them live on."""
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive(pids)


def guardians(pid=None):
    return [child.pid for child in psutil.Process(pid).children() if "corral-guardian" in child.cmdline()]


def family(env):
    """A pool's workers, and all that their envs started."""
    return [*env.pids, *(pid for pids in env.get_attr("pids") for pid in pids)]


def make(factory=lambda: Parent(daemon=True), n=1, method="auto"):
    return ProcessVectorEnv(resolve_env(factory), n, num_workers=n, start_method=method, seed=0)


@METHODS
def test_nothing_an_env_started_outlives_a_killed_trainer(tmp_path, method):
    """Two pools; and a process that the trainer forked for itself lives on, with copies of all that was open."""
    script = tmp_path / "trainer.py"
    script.write_text(
        "import os, time\nfrom corral.vec.make_vec import make_parallel_env\nfrom tests.toy_envs import Parent\n"
        f"envs = [make_parallel_env(Parent, 1, num_workers=1, start_method={method!r}) for _ in range(2)]\n"
        "other = os.fork()\n"
        "if not other: time.sleep(60)\n"
        "family = [pid for env in envs for pid in (*env.pids, *env.get_attr('pids')[0])]\n"
        "print(other, *family, flush=True)\ntime.sleep(60)\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    trainer = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    other, *pids = [int(word) for word in trainer.stdout.readline().split()]
    try:
        shell = guardians(trainer.pid)
        assert len(pids) == 8 and len(shell) == 1 and alive([other, *pids]) == [other, *pids]
        trainer.kill()
        trainer.wait()
        assert not left(pids + shell)
        assert alive([other])
    finally:
        for pid in alive([other, *pids]):
            os.kill(pid, signal.SIGKILL)


@METHODS
def test_closing_leaves_nothing(method):
    env = make(method=method)
    pids = family(env)
    shell = guardians()
    assert len(shell) == 1 and len(alive(pids)) == 4
    env.close()
    assert not left(pids, 1) and not alive(shell)


@METHODS
def test_what_a_killed_worker_leaves_behind_is_ended(method):
    env = make(n=2, method=method)
    env.reset()
    workers, (first, second) = env.pids, env.get_attr("pids")
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        env.step(np.zeros(2, int))
    assert not left(first, 1)
    assert alive(second) == second and len(guardians()) == 1
    env.close()
    assert not left([*workers, *second], 1) and not guardians()


def test_pools_share_a_guardian_and_end_only_their_own():
    a, b = make(), make()
    pids_a, pids_b = family(a), family(b)
    shell = guardians()
    assert len(shell) == 1
    a.close()
    assert not left(pids_a, 1)
    assert alive(pids_b) == pids_b and guardians() == shell
    b.close()
    assert not left(pids_b, 1) and not guardians()


def test_a_guardian_that_was_killed_is_replaced():
    a = make(Counter)
    (shell,) = guardians()
    os.kill(shell, signal.SIGKILL)
    assert not left([shell])
    b = make(Counter)
    assert len(guardians()) == 1
    a.close()
    b.close()
    assert not guardians()


def test_signals_that_end_a_trainer_gently_do_not_end_its_guardian():
    env = make(Counter)
    (shell,) = guardians()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(shell, number)
    time.sleep(0.1)
    assert guardians() == [shell]
    env.close()


def test_a_forked_process_leaves_its_parents_pool_alone():
    env = make()
    env.reset()
    pids, shell = family(env), guardians()
    forked = os.fork()
    if not forked:
        try:
            from corral.processes import orphan_reaper

            orphan_reaper.end(env.pids)
            env.close()
        finally:
            os._exit(0)
    os.waitpid(forked, 0)
    assert alive(pids) == pids and guardians() == shell
    env.step(np.zeros(1, int))
    env.close()
    assert not left(pids, 1)


def test_numbers_of_workers_that_are_gone_are_not_killed_again():
    from corral.processes import orphan_reaper

    env = make(Counter)
    env.close()
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    orphan_reaper.end([*env.pids, stranger.pid])
    time.sleep(0.1)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_there_need_be_no_shell(monkeypatch):
    def fail(*_, **__):
        raise FileNotFoundError("/bin/sh")

    monkeypatch.setattr("corral.processes.orphan_reaper.subprocess.Popen", fail)
    gc.collect()  # of envs of other tests, which might be closed meanwhile
    files = psutil.Process().num_fds()
    env = make(Counter, method="fork")
    env.reset()
    env.step(np.zeros(1, int))
    env.close()
    del env
    assert psutil.Process().num_fds() == files


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process give itself a name")
@METHODS
def test_workers_have_names(method):
    env = make(Counter, n=2, method=method)
    assert [psutil.Process(pid).name() for pid in env.pids] == ["corral-w0", "corral-w1"]
    env.close()
