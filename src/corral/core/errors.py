"""The exceptions that Corral raises on purpose, each with an exit code.

Their messages say what was given, what was expected and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CheckpointError",
    "CodeNotConfirmed",
    "CorralError",
    "DeadlinePassed",
    "EnvFault",
    "EnvLocation",
    "InvalidEnvData",
    "MissingPackage",
    "RunInUse",
    "UsageError",
    "WorkerDied",
    "one_line",
    "shorten_long_words",
]


class CorralError(Exception):
    """Base class of all exceptions that Corral raises on purpose."""

    exit_code: int = 1
    """Exit code of the command line when this error ends it."""
    recorded_name: str | None = None
    """The name of this error in ``summary.json``; None: the name of its class."""


class UsageError(CorralError, ValueError):
    """A wrong flag, config key, env name or setting. It is raised before anything is started or written.

    It is also a ``ValueError``, which Gymnasium and Stable-Baselines3 raise for wrong arguments.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(shorten_long_words(message))


class CodeNotConfirmed(UsageError):
    """A run directory names code to import, or machines that run code, and the user has not confirmed that."""

    def __init__(self, flags: str, named: str = "code to import") -> None:
        self.reason = f"the run names {named}; if you trust it, repeat it"
        super().__init__(f"{self.reason}: {flags}")
        self.flags = flags
        """The command-line flags that confirm it."""


class MissingPackage(UsageError, ImportError):
    """An optional package is not installed; the message contains the command that installs it."""


class RunInUse(CorralError):
    """Another process writes to the run directory."""

    exit_code = 3


class CheckpointError(CorralError):
    """A checkpoint is missing, damaged, or could not be written."""


class DeadlinePassed(CorralError):
    """The time budget of a run ended before the current rollout was complete."""


class WorkerDied(CorralError):
    """A worker process ended unexpectedly, or hung and was killed."""

    by_signal: bool = False
    """Whether a signal ended the worker. Any process may have sent it, so the env is not necessarily the cause."""
    summary: str = ""
    """The message without its advice; empty if it has none."""


@dataclass(frozen=True, slots=True)
class EnvLocation:
    """The step of a run at which an env was: enough to reproduce that step."""

    env: int
    """Index of the env in the run, 0 to n_envs - 1."""
    episode: int
    """Number of the env's episode, from 0; -1 while the env was being constructed."""
    seed: int | None
    """Seed with which the episode was reset."""
    step: int
    """Step of the episode, from 1; 0 during the reset."""
    action: str | None = None
    """Action of the step, as text; None during the reset."""

    def __str__(self) -> str:
        if self.episode < 0:
            return f"env {self.env}"
        call = "while resetting" if self.action is None else f"on action {self.action}"
        return f"env {self.env}, seed {self.seed}, episode {self.episode}, step {self.step}, {call}"


class EnvFault(CorralError):
    """An env raised an exception. Its traceback is kept as text, because not every exception can be pickled."""

    def __init__(
        self,
        summary: str,
        location: EnvLocation,
        env_traceback: str = "",
        at_start: bool = False,
        reproduction: Mapping[str, Any] | None = None,
    ) -> None:
        # Exceptions are unpickled by passing ``args`` to the constructor, so the base class needs all arguments.
        super().__init__(summary, location, env_traceback, at_start, reproduction)
        self.summary = summary
        """One line: the env's exception, or what was wrong with the data that it returned."""
        self.location = location
        """The step at which the env raised."""
        self.env_traceback = env_traceback
        """Traceback of the env's exception as text; empty if it did not raise."""
        self.at_start = at_start
        """Whether the env raised before it completed its first step. Then the env is set up wrongly: exit code 2."""
        self.exit_code = 2 if at_start else 1
        self.reproduction = reproduction
        """The episode until this step as plain data, for a replay; None if it cannot be replayed."""
        self.advice: str | None = None
        """What the user can do about it; printed at the end of the message."""

    def __str__(self) -> str:
        text = f"{self.summary} ({self.location})"
        if self.env_traceback:
            text += f"\n\nThe env's own traceback:\n{self.env_traceback.rstrip()}"
        return text if self.advice is None else f"{text}\n\n{self.advice}"


class InvalidEnvData(EnvFault):
    """An env returned data that do not fit its spaces, or that the learner cannot use."""

    recorded_name = "BadEnvData"  # the name of this class in older versions


def shorten_long_words(message: str) -> str:
    """Return the message with every word of 300 or more characters (a path, a number) shortened to 153."""
    return re.sub(r"\S{300,}", lambda word: f"{word[0][:100]}...{word[0][-50:]}", message)


def one_line(text: object, max_length: int = 200) -> str:
    """Return ``text`` as one line: control characters escaped, cut off after ``max_length`` characters."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    return line if len(line) <= max_length else f"{line[:max_length]}..."
