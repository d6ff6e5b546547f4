"""``phases/<name>/``: the metrics of each stage of a run by themselves, and the policy with which it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from corral.core.errors import CheckpointError
from corral.reporting.writers import CsvWriter
from corral.storage.checkpoint import prune, save_checkpoint
from corral.storage.metrics_file import iterate_metrics
from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration
from corral.training.metrics_row import progress_columns
from corral.training.run import Run

__all__ = ["StageFiles", "write_stage_files"]


class StageFiles(Hook):
    """Writes the files of a stage when it or the run ends, after the row of metrics is on disk."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Write them, if it is time."""
        if iteration.stage_ended is not None or iteration.stop_reason is not None:
            write_stage_files(iteration.run)


def write_stage_files(run: Run) -> None:
    """Write the files of the stage that was played last, from the run's own; what goes wrong is a warning.

    It may be done again: after a resume, or when more steps were taken.
    """
    run.reporter.flush()
    if run.opponents is None or len(run.opponents.stages) < 2 or run.recovery_point is None:
        return
    directory, stage = run.directory, run.opponents.played
    name = run.opponents.stages[stage].name
    path = directory.path / "phases" / name
    try:
        path.mkdir(parents=True, exist_ok=True)
        _write_rows(directory.metrics_file, path, stage, progress_columns(run))
        save_checkpoint(path / "checkpoints", run.recovery_point)
    except (OSError, CheckpointError) as error:
        run.reporter.console.warn(f"the files of stage {name} cannot be written: {error}")
        return
    with contextlib.suppress(OSError):
        prune(path / "checkpoints", keep=1)


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
