"""Named errors: each says what was given, what was expected and what to do, and knows its exit code."""

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
    "cut_words",
    "one_line",
]


class CorralError(Exception):
    """Root of everything Corral raises on purpose. ``exit_code`` is what the command line returns."""

    exit_code: int = 1


class UsageError(CorralError, ValueError):
    """A wrong flag, config key, env name or setting: nothing was started and nothing was written.

    It is a ``ValueError`` too, as Gymnasium and Stable-Baselines3 raise for wrong arguments.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(cut_words(message))


class CodeNotConfirmed(UsageError):
    """A run directory names code to import, and the user did not say that it may be; ``flags`` says so."""

    def __init__(self, flags: str) -> None:
        super().__init__(f"the run names code to import; if you trust it, repeat it: {flags}")
        self.flags = flags


class MissingPackage(UsageError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""


class RunInUse(CorralError):
    """Another process is writing to the run directory."""

    exit_code = 3


class CheckpointError(CorralError):
    """A checkpoint is missing, damaged, or could not be written."""


class DeadlinePassed(CorralError):
    """The time for a run is over before its rollout is complete."""


class WorkerDied(CorralError):
    """A worker process ended without being asked to, or hung and was killed."""

    by_signal: bool = False
    """Whether a signal ended it. Any process may have sent it, so the env need not be at fault."""


@dataclass(frozen=True, slots=True)
class EnvLocation:
    """Where in training an env was: enough to go back there and see the same thing again."""

    env: int
    """Index of the env in the run, 0 to n_envs - 1."""
    episode: int
    """How many episodes this env had begun before this one; -1 while it was being made."""
    seed: int | None
    """The seed that this episode was reset with."""
    step: int
    """Which step of the episode it was, from 1; 0 while resetting."""
    action: str | None = None
    """The action that was being played, or None during a reset."""

    def __str__(self) -> str:
        if self.episode < 0:
            return f"env {self.env}"
        doing = "while resetting" if self.action is None else f"on action {self.action}"
        return f"env {self.env}, seed {self.seed}, episode {self.episode}, step {self.step}, {doing}"


class EnvFault(CorralError):
    """An env raised. Carries the env's own traceback as text, so that any exception can cross a process boundary."""

    def __init__(
        self,
        summary: str,
        location: EnvLocation,
        env_traceback: str = "",
        at_start: bool = False,
        reproduction: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            summary, location, env_traceback, at_start, reproduction
        )  # all of it, so that it survives pickling
        self.summary = summary
        self.reproduction = reproduction
        """The episode until here as plain data: enough to play it again; None if that cannot be done."""
        self.location = location
        self.env_traceback = env_traceback
        self.at_start = at_start
        # A fault before the first completed step is a wrong set-up, not an accident of training.
        self.exit_code = 2 if at_start else 1
        self.advice: str | None = None
        """What to do about it."""

    def __str__(self) -> str:
        text = f"{self.summary} ({self.location})"
        if self.env_traceback:
            text += f"\n\nThe env's own traceback:\n{self.env_traceback.rstrip()}"
        return text if self.advice is None else f"{text}\n\n{self.advice}"


def cut_words(message: str) -> str:
    """A message in which no word, such as a path or a number that was typed, fills the screen."""
    return re.sub(r"\S{300,}", lambda word: f"{word[0][:100]}...{word[0][-50:]}", message)


def one_line(text: object, most: int = 200) -> str:
    """What others wrote, fit for one line of a message: control characters escaped, and cut off where it is long."""
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    return line if len(line) <= most else f"{line[:most]}..."


class InvalidEnvData(EnvFault):
    """An env returned something its spaces or the learner cannot take."""
