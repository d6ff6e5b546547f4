"""What a person sees of a sweep: a bar for the whole and one for each trial under way, lines elsewhere, a table."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from corral.core.stdio import command
from corral.storage.named_code import code_flags, needs_python
from corral.sweeps.presets import Entry
from corral.sweeps.request import SweepRequest
from corral.sweeps.results import Result, format_setting, ranked
from corral.sweeps.trial import run_dirs

__all__ = ["SweepConsole"]

_PLAIN_SECONDS = 10.0
_PLAIN_WIDTH = 140
_MOST_ROWS = 30


class SweepConsole:
    """Shows a sweep; says nothing if it is quiet, except for warnings."""

    def __init__(self, quiet: bool, total: int) -> None:
        self._console = Console(highlight=False, emoji=False, soft_wrap=True, quiet=quiet)
        if not self._console.is_terminal:
            self._console.width = _PLAIN_WIDTH
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_line: dict[str, float] = {}
        self._total, self._done = total, 0
        if self._console.is_terminal and not quiet:
            name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
            news = TextColumn("{task.fields[news]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
            self._bar = Progress(name, BarColumn(bar_width=20), news, console=self._console)
            self._all = self._bar.add_task("trials", total=total, news="")

    def start(self, done: int) -> None:
        """Begin, with ``done`` trials done before."""
        self._done = done
        if self._bar is not None:
            self._bar.update(self._all, completed=done, news=f"{done} of {self._total}")
            self._bar.start()

    def stop(self) -> None:
        """Take the bars away."""
        if self._bar is not None:
            for task in self._tasks.values():
                self._bar.remove_task(task)
            self._bar.stop()
            self._bar, self._tasks = None, {}

    def note(self, text: str) -> None:
        """A line of news."""
        self._console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Something went wrong that does not end the sweep."""
        print(f"WARNING: {text}", file=sys.stderr)

    def begin(self, entry: Entry, again: bool) -> None:
        """A trial is under way."""
        settings = _settings(entry.varied)
        if self._bar is not None:
            self._tasks[entry.label] = self._bar.add_task(f"{entry.label}: {settings}", total=1.0, news="starting")
        self.note(f"trial {entry.label} {'goes on' if again else 'begins'}: {settings}")

    def update(self, label: str, share: float, reward: float | None) -> None:
        """A trial got further."""
        news = f"{min(share, 1):.0%}" + ("" if reward is None else f", reward {reward:,.2f} of last 100")
        if self._bar is not None:
            self._bar.update(self._tasks[label], completed=min(share, 1.0), news=news)
        elif time.monotonic() - self._last_line.setdefault(label, time.monotonic()) > _PLAIN_SECONDS:
            self._last_line[label] = time.monotonic()
            self.note(f"trial {label}: {news}")

    def end(self, result: Result, best: Result | None, objective_name: str) -> None:
        """A trial ended."""
        self._done += 1
        told = {
            "complete": f"{objective_name} {result.objective or 0:,.2f}",
            "pruned": f"given up early at mean reward {result.mean_reward or 0:,.2f}",
        }.get(result.state, "failed")
        so_far = "" if best is None else f"; best so far {best.objective:,.2f} (trial {best.label})"
        self.note(f"trial {result.label} ended: {told}{so_far}")
        if result.error:
            self.warn(f"trial {result.label} failed: {result.error}")
        if self._bar is not None:
            self._bar.remove_task(self._tasks.pop(result.label))
            self._bar.update(self._all, completed=self._done, news=f"{self._done} of {self._total}{so_far}")

    def table(self, request: SweepRequest, results: list[Result], best: Result | None, directory: Path) -> None:
        """All trials, the best first, and what to do next; ``directory`` is the sweep's, as the user knows it."""
        self.stop()
        title = f"{request.env}, judged by {request.objective_name}"
        settings = Column("settings", overflow="fold", min_width=24)
        columns = ["mean\nreward", "evaluation\nreward", "steps/s", "seconds", ""]
        table = Table("trial", settings, *columns, title=title, title_justify="left")
        for result in ranked(results)[:_MOST_ROWS]:
            remark = "best" if result is best else "" if result.state == "complete" else result.state
            numbers = ((result.mean_reward, 2), (result.eval_reward, 2), (result.fps, 0), (result.seconds, 1))
            cells = ["" if value is None else f"{value:,.{decimals}f}" for value, decimals in numbers]
            row = [result.label, _settings(result.varied), *cells, remark]
            table.add_row(*(Text(cell) for cell in row), style="bold" if result is best else None)
        self._console.print(table)
        if len(results) > _MOST_ROWS:
            self.note(f"and {len(results) - _MOST_ROWS} more in {directory / 'results.md'}")
        if best is not None:
            config = request.config_of(best.varied)
            run = run_dirs(directory / "trials" / best.label, request.all_seeds)[0]
            self.note(f"results in {shlex.quote(str(directory))}")
            if not needs_python(config):
                self.note(f"  train so: {command()} train --config {shlex.quote(str(directory / 'best.yaml'))}")
                self.note(f"  watch it: {command()} play {shlex.quote(str(run))} {code_flags(config)}".rstrip())


def _settings(varied: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {format_setting(value)}" for name, value in varied.items()) or "as they are"
