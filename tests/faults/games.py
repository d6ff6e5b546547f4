"""A small deterministic env, and variants with faults that real simulators have: once, at random, or always."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env):
    """A random walk on a line. Observations depend on the seed and on every action since the reset."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.speed, self.position = 0, 0.0, float(self.np_random.normal())
        return self._observe(), {}

    def step(self, action):
        time.sleep(self.pause)
        self.steps += 1
        self.speed = 0.5 * self.speed + 0.3 * (int(action) - 1) + 0.2 * float(self.np_random.normal())
        self.position += self.speed
        out_of_bounds = abs(self.position) > 4
        return self._observe(), 1.0 - abs(self.position), out_of_bounds, not out_of_bounds and self.steps >= 40, {}

    def _observe(self):
        return np.array([self.position, self.speed, self.steps / 40], np.float32)


class FailsOnce(Walk):
    """Causes a fault once in the whole run, in the env that creates the ``marker`` file first.

    ``how`` names the fault (see ``cause_fault``). It happens in ``where``, which is ``constructor``, ``reset`` or
    ``step``, after ``after`` steps of the env.
    """

    def __init__(self, how: str, marker: str, where: str = "step", after: int = 50, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.how, self.marker, self.where, self.after, self.total = how, marker, where, after, 0
        self._fail_if_due("constructor")

    def reset(self, *, seed=None, options=None):
        observation = super().reset(seed=seed)
        self._fail_if_due("reset")
        return observation

    def step(self, action):
        self.total += 1
        outcome = super().step(action)
        self._fail_if_due("step")
        return outcome

    def _fail_if_due(self, where):
        if where == self.where and self.total >= self.after and is_first(self.marker):
            cause_fault(self.how)


class AlwaysFails(Walk):
    """Causes a fault in every ``constructor``, ``reset`` or ``step``."""

    def __init__(self, how: str, where: str) -> None:
        super().__init__()
        self.how, self.where = how, where
        self._fail_if_due("constructor")

    def reset(self, *, seed=None, options=None):
        self._fail_if_due("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self._fail_if_due("step")
        return super().step(action)

    def _fail_if_due(self, where):
        if where == self.where:
            cause_fault(self.how)


class FailsInSomeEpisodes(Walk):
    """Causes a fault at step ``at`` of one episode in ``one_in``. The seed decides which, so a replay has the fault, too."""

    def __init__(self, how: str = "raise", one_in: int = 1, at: int = 7, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.how, self.one_in, self.fault_step = how, one_in, at

    def reset(self, *, seed=None, options=None):
        outcome = super().reset(seed=seed)
        self.has_fault = int(self.np_random.integers(self.one_in)) == 0
        return outcome

    def step(self, action):
        if self.has_fault and self.steps + 1 == self.fault_step:
            cause_fault(self.how)
        return super().step(action)


class RaisesAtRandom(Walk):
    """Raises in one step of ``one_in`` at random, independently of the seed.

    It does not raise again within 100 steps of the envs in its process, so that a repeated step succeeds.
    """

    steps_since_raise = 0

    def __init__(self, one_in: int = 250, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.one_in = one_in

    def step(self, action):
        outcome = super().step(action)
        RaisesAtRandom.steps_since_raise += 1
        if RaisesAtRandom.steps_since_raise > 100 and random.SystemRandom().randrange(self.one_in) == 0:
            RaisesAtRandom.steps_since_raise = 0
            raise ConnectionError("the emulator did not answer")
        return outcome


class SlowSteps(Walk):
    """Takes ``seconds`` for one step in five; ``in_c`` holds the GIL meanwhile."""

    def __init__(self, seconds: float, in_c: bool = False) -> None:
        super().__init__()
        self.seconds, self.in_c = seconds, in_c

    def step(self, action):
        if self.steps % 5 == 4:
            (_sleep_in_c if self.in_c else time.sleep)(self.seconds)
        return super().step(action)


class HangsAtStart(Walk):
    """Hangs in its constructor or in its reset."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        if where == "constructor":
            time.sleep(3600)

    def reset(self, *, seed=None, options=None):
        if self.where == "reset":
            _sleep_in_c(3600)
        return super().reset(seed=seed)


def vector_env_that_fails_at_its_start(how: str, num_envs: int):
    """Exit the process or hang, where a vector env should be made."""
    if how == "exits":
        os._exit(7)
    time.sleep(3600)


class LeaksMemory(Walk):
    """Leaks ``kb`` kilobytes of memory in every step."""

    def __init__(self, kb: int = 256, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.kb, self.leaked = kb, []

    def step(self, action):
        self.leaked.append(b"x" * (self.kb * 1024 + self.steps))
        return super().step(action)


class PrintsMuch(Walk):
    """Prints a line in every step, and in the first ``mb`` steps also a megabyte."""

    def __init__(self, mb: int = 0, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.megabytes_left = mb

    def step(self, action):
        if self.megabytes_left:
            self.megabytes_left -= 1
            sys.stdout.write(("x" * 1023 + "\n") * 1024)
        print("a step", flush=True)
        return super().step(action)


class HasChildProcess(Walk):
    """Starts a child process, as emulators behind a socket do. Step number ``after`` of the env never ends."""

    def __init__(self, marks: str, after: int = 10) -> None:
        super().__init__()
        self.marks, self.after, self.total = Path(marks), after, 0
        self.child = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL)

    def step(self, action):
        self.total += 1
        if self.total == self.after:
            (self.marks / str(os.getpid())).touch()
            _sleep_in_c(3600)
        return super().step(action)


def cause_fault(how: str) -> None:
    """Raise, end or stop the process, or hang, as ``how`` says."""
    match how:
        case "raise":
            raise ValueError("the floor gave way")
        case "sys_exit":
            sys.exit(3)
        case "os_exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "segfault":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # do not write a core file
            ctypes.string_at(0)
        case "loop":
            while True:
                pass
        case "sleep":
            _sleep_in_c(3600)
        case _:
            raise AssertionError(how)


def _sleep_in_c(seconds: float) -> None:
    """Sleep in C code that holds the GIL, so that no other thread runs."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(min(int(seconds * 1e6), 2**32 - 1)))


def is_first(marker: str) -> bool:
    """Return whether this process is the first to create the file ``marker``."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
