"""``corral compare``."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from corral.bench.compare import Row, compare_runs

__all__ = ["run_compare"]


def run_compare(options: argparse.Namespace) -> int:
    """Compare two runs, and say where the picture and the report are."""
    comparison = compare_runs(options.a, options.b, options.output)
    console = Console(highlight=False)
    _print_rows(console, "", comparison.names, comparison.rows)
    if comparison.differences:
        _print_rows(console, "settings that differ", comparison.names, comparison.differences)
    for line in (*comparison.notes, comparison.conclusion):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"picture: {comparison.picture}\nreport:  {comparison.report}", markup=False, soft_wrap=True)
    return 0


def _print_rows(console: Console, title: str, names: tuple[str, str], rows: list[Row]) -> None:
    columns = (Column(overflow="fold", header=Text(name)) for name in names)
    table = Table("", *columns, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
