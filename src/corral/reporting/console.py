"""The console output of a run: a progress bar, or plain lines if there is no terminal, and a table at the end."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

__all__ = ["RunConsole", "SilentConsole", "print_table"]

_LINE_INTERVAL = 5.0
"""Seconds between lines of progress if there is no terminal."""


class SilentConsole:
    """A console that prints only warnings; the interface of ``RunConsole``."""

    def start(self, name: str, total: float, done: float) -> None:
        """Start showing progress."""

    def note(self, text: str) -> None:
        """Print a line."""

    def warn(self, text: str) -> None:
        """Print a warning to stderr."""
        with contextlib.suppress(OSError, ValueError):
            print(f"WARNING: {text}", file=sys.stderr)

    def update(self, done: float, row: Mapping[str, float]) -> None:
        """Show the progress and the newest row of metrics."""

    def stop(self) -> None:
        """Stop showing progress."""

    def table(self, title: str, rows: Sequence[tuple[str, str]], advice: Sequence[str]) -> None:
        """Print the closing table, and lines of advice below it."""


class RunConsole(SilentConsole):
    """A console with a progress bar, or with a line every few seconds if there is no terminal.

    Output that fails never stops a run.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, emoji=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._unit, self._total, self._last_line = "", 1.0, -math.inf
        self._is_closed = False

    def start(self, name: str, total: float, done: float) -> None:
        """Start showing progress: ``done`` of ``total`` of the budget, which is the setting ``name``."""
        self._unit, self._total = {"timesteps": "steps", "num_episodes": "episodes", "duration": "hours"}[name], total
        if not self._console.is_terminal:
            return
        columns: list[ProgressColumn] = [
            MofNCompleteColumn() if name != "duration" else TextColumn("{task.percentage:.0f}% of the time"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[status]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        ]
        self._progress = Progress(*columns, console=self._console, speed_estimate_period=120)
        self._task = self._progress.add_task(self._unit, total=total, completed=int(done), status="starting")
        self._print_safely(self._progress.start)

    def note(self, text: str) -> None:
        """Print a line, above the progress bar."""
        self._print_safely(lambda: self._console.print(text, markup=False))

    def update(self, done: float, row: Mapping[str, float]) -> None:
        """Show the progress, and speed, reward and episodes from the newest row of metrics."""
        status = _status(row)
        progress = self._progress
        if progress is not None:
            self._print_safely(lambda: progress.update(self._task, completed=min(done, self._total), status=status))
        elif time.monotonic() - self._last_line > _LINE_INTERVAL or done >= self._total:
            self._last_line = time.monotonic()
            number = "{:,.3f}" if self._unit == "hours" else "{:,.0f}"
            self.note(f"{number.format(done)} of {number.format(self._total)} {self._unit} | {status}")

    def stop(self) -> None:
        """Stop the progress bar. It stays on the screen."""
        if self._progress is not None:
            self._print_safely(self._progress.stop)
            self._progress = None

    def table(self, title: str, rows: Sequence[tuple[str, str]], advice: Sequence[str]) -> None:
        """Print the closing table, and lines of advice below it."""
        self._print_safely(lambda: print_table(self._console, title, rows))
        for line in advice:
            self.note(line)

    def _print_safely(self, print_output: Callable[[], object]) -> None:
        """Call ``print_output``, and never again print after a failure: ``corral train … | head`` keeps training."""
        if self._is_closed:
            return
        try:
            print_output()
        except (OSError, ValueError, SystemExit):  # rich turns a broken pipe into SystemExit
            self._is_closed = True
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a table of names and values."""
    table = Table("", Column(overflow="fold"), title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console.print(table)


def _status(row: Mapping[str, float]) -> str:
    """Return the speed, the mean reward and the episodes of a row of metrics, in one line."""
    parts = [f"{row['time/fps']:,.0f} fps"]
    if "rollout/ep_rew_mean" in row:
        parts.append(f"reward {row['rollout/ep_rew_mean']:.2f} of last 100")
    parts.append(f"{row['rollout/episodes']:,.0f} episodes (+{row['rollout/episodes_in_rollout']:,.0f})")
    if "rollout/ep_len_mean" in row:
        parts.append(f"length {row['rollout/ep_len_mean']:.0f}")
    return " | ".join(parts)
