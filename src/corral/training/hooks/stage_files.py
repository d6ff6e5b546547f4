"""``phases/<name>/``: the metrics of each stage of a run by themselves, and the policy with which it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from corral.core.errors import CheckpointError
from corral.opponents.league import Opponents
from corral.reporting.writers import CsvWriter
from corral.storage.checkpoint import prune, save_checkpoint
from corral.storage.metrics_file import iterate_metrics
from corral.storage.run_dir import RunDirectory
from corral.training.metrics_row import progress_columns
from corral.training.run import Run

__all__ = ["write_phase"]


def write_phase(run: Run, directory: RunDirectory, opponents: Opponents, stage: int) -> str | None:
    """Write the files of a stage that ended, from the run's own; what went wrong, if anything did.

    It may be done again: after a resume, or when more steps were taken.
    """
    if len(opponents.stages) < 2 or run.safe is None:
        return None
    path = directory.path / "phases" / opponents.stages[stage].name
    try:
        path.mkdir(parents=True, exist_ok=True)
        _write_rows(directory.metrics_file, path, stage, progress_columns(run))
        save_checkpoint(path / "checkpoints", run.safe)
    except (OSError, CheckpointError) as error:
        return f"the files of stage {opponents.stages[stage].name} cannot be written: {error}"
    with contextlib.suppress(OSError):
        prune(path / "checkpoints", keep=1)
    return None


def _write_rows(metrics: Path, path: Path, stage: int, columns: Sequence[str]) -> None:
    """Write a stage's ``metrics.jsonl`` and ``progress.csv`` anew, from the rows of the run that belong to it."""
    lines, table = path / "metrics.jsonl", path / "progress.csv"
    for file in (lines, table):
        file.unlink(missing_ok=True)
    writer = CsvWriter(table, columns)
    try:
        with lines.open("xb") as copy:
            for line in iterate_metrics(metrics):
                if line.row.get("opponents/stage") == stage:
                    copy.write(line.text)
                    writer.write(line.row)
    finally:
        writer.close()
