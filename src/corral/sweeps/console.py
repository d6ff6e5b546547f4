"""Console output of a sweep: progress bars on a terminal, lines elsewhere, and a table of results at the end."""

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
from corral.sweeps.presets import TrialEntry
from corral.sweeps.request import SweepRequest
from corral.sweeps.results import Result, format_settings, ranked
from corral.sweeps.trial import run_dirs

__all__ = ["SweepConsole"]

_LINE_SECONDS = 10.0
"""Seconds between two lines about a trial where there are no bars."""
_LINE_WIDTH = 140
_MAX_ROWS = 30


class SweepConsole:
    """Prints the progress and the results of a sweep; if it is quiet, only warnings."""

    def __init__(self, quiet: bool, total: int) -> None:
        self._console = Console(highlight=False, emoji=False, soft_wrap=True, quiet=quiet)
        if not self._console.is_terminal:
            self._console.width = _LINE_WIDTH
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
        """Start the progress bars; ``done`` trials have ended before."""
        self._done = done
        if self._bar is not None:
            self._bar.update(self._all, completed=done, news=f"{done} of {self._total}")
            self._bar.start()

    def stop(self) -> None:
        """Remove the progress bars."""
        if self._bar is not None:
            for task in self._tasks.values():
                self._bar.remove_task(task)
            self._bar.stop()
            self._bar, self._tasks = None, {}

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Print a warning to standard error, even if the console is quiet."""
        print(f"WARNING: {text}", file=sys.stderr)

    def begin(self, entry: TrialEntry, resumed: bool) -> None:
        """Show that a trial begins."""
        settings = _settings_or_base(entry.varied)
        if self._bar is not None:
            self._tasks[entry.label] = self._bar.add_task(f"{entry.label}: {settings}", total=1.0, news="starting")
        self.note(f"trial {entry.label} {'resumed' if resumed else 'started'}: {settings}")

    def update(self, label: str, share: float, reward: float | None) -> None:
        """Show the progress of a trial: the share of its budget that is used, and its mean reward."""
        news = f"{min(share, 1):.0%}" + ("" if reward is None else f", reward {reward:,.2f} of last 100")
        if self._bar is not None:
            self._bar.update(self._tasks[label], completed=min(share, 1.0), news=news)
        elif time.monotonic() - self._last_line.setdefault(label, time.monotonic()) > _LINE_SECONDS:
            self._last_line[label] = time.monotonic()
            self.note(f"trial {label}: {news}")

    def end(self, result: Result, best: Result | None, objective_name: str) -> None:
        """Show how a trial ended, and the best trial so far."""
        self._done += 1
        outcome = {
            "complete": f"{objective_name} {result.objective or 0:,.2f}",
            "pruned": f"pruned at mean reward {result.mean_reward or 0:,.2f}",
        }.get(result.state, "failed")
        so_far = "" if best is None else f"; best so far {best.objective:,.2f} (trial {best.label})"
        self.note(f"trial {result.label} ended: {outcome}{so_far}")
        if result.error:
            self.warn(f"trial {result.label} failed: {result.error}")
        if self._bar is not None:
            self._bar.remove_task(self._tasks.pop(result.label))
            self._bar.update(self._all, completed=self._done, news=f"{self._done} of {self._total}{so_far}")

    def table(self, request: SweepRequest, results: list[Result], best: Result | None, directory: Path) -> None:
        """Print all trials, best first, and commands to use the best; ``directory`` is the path that the user gave."""
        self.stop()
        title = f"{request.env}, judged by {request.objective_name}"
        settings = Column("settings", overflow="fold", min_width=24)
        columns = ["mean\nreward", "evaluation\nreward", "steps/s", "seconds", ""]
        table = Table("trial", settings, *columns, title=title, title_justify="left")
        for result in ranked(results)[:_MAX_ROWS]:
            remark = "best" if result is best else "" if result.state == "complete" else result.state
            numbers = ((result.mean_reward, 2), (result.eval_reward, 2), (result.fps, 0), (result.seconds, 1))
            cells = ["" if value is None else f"{value:,.{decimals}f}" for value, decimals in numbers]
            row = [result.label, _settings_or_base(result.varied), *cells, remark]
            table.add_row(*(Text(cell) for cell in row), style="bold" if result is best else None)
        self._console.print(table)
        if len(results) > _MAX_ROWS:
            self.note(f"and {len(results) - _MAX_ROWS} more in {directory / 'results.md'}")
        if best is not None:
            self._print_commands(request, best, directory)

    def _print_commands(self, request: SweepRequest, best: Result, directory: Path) -> None:
        """Print where the results are, and the commands that use the best trial."""
        config = request.config_of(best.varied)
        self.note(f"results in {shlex.quote(str(directory))}")
        if needs_python(config):
            return
        best_settings = shlex.quote(str(directory / "best.yaml"))
        best_run = shlex.quote(str(run_dirs(directory / "trials" / best.label, request.all_seeds)[0]))
        self.note(f"  train with the best settings: {command()} train --config {best_settings}")
        self.note(f"  watch the best policy: {command()} play {best_run} {code_flags(config)}".rstrip())


def _settings_or_base(varied: Mapping[str, Any]) -> str:
    return format_settings(varied) or "base settings"
