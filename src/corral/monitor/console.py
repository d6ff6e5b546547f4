"""What a person sees: a progress bar while training, plain lines where there is no terminal, a table at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

__all__ = ["Board", "QuietBoard", "print_table"]

_PLAIN_SECONDS = 5.0


class QuietBoard:
    """Says nothing."""

    def start(self, unit: str, total: float, done: float) -> None:
        """Begin."""

    def note(self, text: str) -> None:
        """A line of news."""

    def update(self, done: float, row: Mapping[str, float]) -> None:
        """Show how far it is."""

    def stop(self) -> None:
        """End."""

    def table(self, title: str, rows: Sequence[tuple[str, str]], advice: Sequence[str]) -> None:
        """The closing table and what to do next."""


class Board(QuietBoard):
    """Progress on a terminal, or a line every few seconds elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._unit, self._total, self._last_line = "steps", 1.0, -math.inf

    def start(self, unit: str, total: float, done: float) -> None:
        """Begin at ``done`` of ``total`` units."""
        self._unit, self._total = unit, total
        if not self._console.is_terminal:
            return
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn() if unit != "hours" else TextColumn("{task.percentage:.0f}%"),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        ]
        self._progress = Progress(*columns, console=self._console, speed_estimate_period=120)
        self._task = self._progress.add_task(unit, total=total, completed=int(done), news="starting")
        self._progress.start()

    def note(self, text: str) -> None:
        """A line of news, above the bar."""
        self._console.print(text, markup=False)

    def update(self, done: float, row: Mapping[str, float]) -> None:
        """Show how far it is, how fast, and how well."""
        news = _news(row)
        if self._progress is not None:
            self._progress.update(self._task, completed=min(done, self._total), news=news)
        elif time.monotonic() - self._last_line > _PLAIN_SECONDS or done >= self._total:
            self._last_line = time.monotonic()
            self._console.print(f"{done:,.6g} of {self._total:,.6g} {self._unit} | {news}", markup=False)

    def stop(self) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def table(self, title: str, rows: Sequence[tuple[str, str]], advice: Sequence[str]) -> None:
        """The closing table and what to do next."""
        print_table(self._console, title, rows)
        for line in advice:
            self._console.print(line, markup=False)


def print_table(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns: a name and what it was."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _news(row: Mapping[str, float]) -> str:
    parts = [f"{row['time/fps']:,.0f} fps"]
    if "rollout/ep_rew_mean" in row:
        parts.append(f"reward {row['rollout/ep_rew_mean']:.2f} (mean of 100)")
        parts.append(f"length {row['rollout/ep_len_mean']:.0f}")
    parts.append(f"episodes {row['rollout/episodes']:,.0f} (+{row['rollout/episodes_in_rollout']:,.0f})")
    return " | ".join(parts)
