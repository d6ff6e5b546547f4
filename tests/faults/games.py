"""One small deterministic game, and variations that go wrong as real simulators do: once, now and then, or always."""

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
    """A walk on a line in the wind. What it shows depends on the seed and on every action since the reset."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.speed, self.at = 0, 0.0, float(self.np_random.normal())
        return self._observe(), {}

    def step(self, action):
        time.sleep(self.pause)
        self.steps += 1
        self.speed = 0.5 * self.speed + 0.3 * (int(action) - 1) + 0.2 * float(self.np_random.normal())
        self.at += self.speed
        lost = abs(self.at) > 4
        return self._observe(), 1.0 - abs(self.at), lost, not lost and self.steps >= 40, {}

    def _observe(self):
        return np.array([self.at, self.speed, self.steps / 40], np.float32)


class Once(Walk):
    """Goes wrong once in the whole run, whoever hosts it: the env that makes the ``marker`` file does it.

    ``where`` is ``constructor``, ``reset`` or ``step``; it happens after ``after`` steps.
    """

    def __init__(self, how: str, marker: str, where: str = "step", after: int = 50, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.how, self.marker, self.where, self.after, self.total = how, marker, where, after, 0
        self._perhaps("constructor")

    def reset(self, *, seed=None, options=None):
        observation = super().reset(seed=seed)
        self._perhaps("reset")
        return observation

    def step(self, action):
        self.total += 1
        outcome = super().step(action)
        self._perhaps("step")
        return outcome

    def _perhaps(self, where):
        if where == self.where and self.total >= self.after and _is_first(self.marker):
            go_wrong(self.how)


class Always(Walk):
    """Goes wrong whenever it is made (``constructor``), reset or stepped."""

    def __init__(self, how: str, where: str) -> None:
        super().__init__()
        self.how, self.where = how, where
        self._perhaps("constructor")

    def reset(self, *, seed=None, options=None):
        self._perhaps("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self._perhaps("step")
        return super().step(action)

    def _perhaps(self, where):
        if where == self.where:
            go_wrong(self.how)


class Cursed(Walk):
    """Goes wrong at step ``at`` of one episode in ``one_in``: the same ones, however often they are played."""

    def __init__(self, how: str = "raise", one_in: int = 1, at: int = 7, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.how, self.one_in, self.fatal = how, one_in, at

    def reset(self, *, seed=None, options=None):
        outcome = super().reset(seed=seed)
        self.cursed = int(self.np_random.integers(self.one_in)) == 0
        return outcome

    def step(self, action):
        if self.cursed and self.steps + 1 == self.fatal:
            go_wrong(self.how)
        return super().step(action)


class Flaky(Walk):
    """Raises in one step of ``one_in``, by chance that no seed decides; never before it has made a few steps."""

    total = 0

    def __init__(self, one_in: int = 250, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.one_in = one_in

    def step(self, action):
        outcome = super().step(action)
        self.total += 1
        if self.total > 5 and random.SystemRandom().randrange(self.one_in) == 0:
            raise ConnectionError("the emulator did not answer")
        return outcome


class Hesitant(Walk):
    """Takes ``seconds`` for one step in five, holding the GIL or not; never for ever."""

    def __init__(self, seconds: float, in_c: bool = False) -> None:
        super().__init__()
        self.seconds, self.in_c = seconds, in_c

    def step(self, action):
        if self.steps % 5 == 4:
            (_sleep_in_c if self.in_c else time.sleep)(self.seconds)
        return super().step(action)


class PeerStalled(Walk):
    """Never comes up."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        if where == "constructor":
            time.sleep(3600)

    def reset(self, *, seed=None, options=None):
        if self.where == "reset":
            _sleep_in_c(3600)
        return super().reset(seed=seed)


class Hoarding(Walk):
    """Loses ``kb`` of memory with every step."""

    def __init__(self, kb: int = 256, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.kb, self.hoard = kb, []

    def step(self, action):
        self.hoard.append(b"x" * (self.kb * 1024 + self.steps))
        return super().step(action)


class Chatty(Walk):
    """Prints ``mb`` in its first episode, and a line with every step after that."""

    def __init__(self, mb: int = 0, pause: float = 0.0) -> None:
        super().__init__(pause)
        self.left = mb

    def step(self, action):
        if self.left:
            self.left -= 1
            sys.stdout.write(("x" * 1023 + "\n") * 1024)
        print("a step", flush=True)
        return super().step(action)


class Family(Walk):
    """Has child processes, as emulators behind a socket do, and after ``after`` steps a step that never ends."""

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


def go_wrong(how: str) -> None:
    """Do what environments should not."""
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
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash, but no core file
            ctypes.string_at(0)
        case "loop":
            while True:
                pass
        case "sleep":
            _sleep_in_c(3600)
        case _:
            raise AssertionError(how)


def _sleep_in_c(seconds: float) -> None:
    """Sleep as C code does that never lets another thread run."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(min(int(seconds * 1e6), 2**32 - 1)))


def _is_first(marker: str) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
