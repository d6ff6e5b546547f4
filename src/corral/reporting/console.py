"""What a person sees: a progress bar while training, plain lines where there is no terminal, a table at the end."""

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

_PLAIN_SECONDS = 5.0


class SilentConsole:
    """Says nothing."""

    def start(self, name: str, total: float, done: float) -> None:
        """Begin."""

    def note(self, text: str) -> None:
        """A line of news."""

    def warn(self, text: str) -> None:
        """Something went wrong that does not end the run: said even by a board that says nothing else."""
        with contextlib.suppress(OSError, ValueError):
            print(f"WARNING: {text}", file=sys.stderr)

    def update(self, done: float, row: Mapping[str, float]) -> None:
        """Show how far it is."""

    def stop(self) -> None:
        """End."""

    def table(self, title: str, rows: Sequence[tuple[str, str]], advice: Sequence[str]) -> None:
        """The closing table and what to do next."""


class RunConsole(SilentConsole):
    """Progress on a terminal, or a line every few seconds elsewhere. Output that fails never stops a run."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, emoji=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._unit, self._total, self._last_line = "", 1.0, -math.inf
        self._gone = False

    def start(self, name: str, total: float, done: float) -> None:
        """Begin at ``done`` of ``total`` of the budget called ``name``."""
        self._unit, self._total = {"timesteps": "steps", "num_episodes": "episodes", "duration": "hours"}[name], total
        if not self._console.is_terminal:
            return
        columns: list[ProgressColumn] = [
            MofNCompleteColumn() if name != "duration" else TextColumn("{task.percentage:.0f}% of the time"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[news]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
        ]
        self._progress = Progress(*columns, console=self._console, speed_estimate_period=120)
        self._task = self._progress.add_task(self._unit, total=total, completed=int(done), news="starting")
        self._try(self._progress.start)

    def note(self, text: str) -> None:
        """A line of news, above the bar."""
        self._try(lambda: self._console.print(text, markup=False))

    def update(self, done: float, row: Mapping[str, float]) -> None:
        """Show how far it is, how fast, and how well."""
        news = _news(row)
        progress = self._progress
        if progress is not None:
            self._try(lambda: progress.update(self._task, completed=min(done, self._total), news=news))
        elif time.monotonic() - self._last_line > _PLAIN_SECONDS or done >= self._total:
            self._last_line = time.monotonic()
            show = "{:,.3f}" if self._unit == "hours" else "{:,.0f}"
            self.note(f"{show.format(done)} of {show.format(self._total)} {self._unit} | {news}")

    def stop(self) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._try(self._progress.stop)
            self._progress = None

    def table(self, title: str, rows: Sequence[tuple[str, str]], advice: Sequence[str]) -> None:
        """The closing table and what to do next."""
        self._try(lambda: print_table(self._console, title, rows))
        for line in advice:
            self.note(line)

    def _try(self, action: Callable[[], object]) -> None:
        """Print, unless nobody is there any more: `corral train … | head` goes on training."""
        if self._gone:
            return
        try:
            action()
        except (OSError, ValueError, SystemExit):  # rich turns a broken pipe into an exit
            self._gone = True
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns: a name and what it was."""
    table = Table("", Column(overflow="fold"), title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    console.print(table)


def _news(row: Mapping[str, float]) -> str:
    parts = [f"{row['time/fps']:,.0f} fps"]
    if "rollout/ep_rew_mean" in row:
        parts.append(f"reward {row['rollout/ep_rew_mean']:.2f} of last 100")
    parts.append(f"{row['rollout/episodes']:,.0f} episodes (+{row['rollout/episodes_in_rollout']:,.0f})")
    if "rollout/ep_len_mean" in row:
        parts.append(f"length {row['rollout/ep_len_mean']:.0f}")
    return " | ".join(parts)
