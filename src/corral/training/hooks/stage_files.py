"""Writes ``phases/<stage>/``: the metrics of one stage of opponents, and a checkpoint of the policy at its end."""

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
    """Writes the files of a stage when the stage or the run ends, after the row of metrics is written."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Write the files if a stage or the run ends with this iteration."""
        if iteration.stage_end_message is not None or iteration.stop_reason is not None:
            write_stage_files(iteration.run)


def write_stage_files(run: Run) -> None:
    """Write the files of the stage that was played last, from the rows in the run's files; an error is a warning.

    Files that exist are replaced, so this may be called again for the same stage, for example after a resume.
    """
    run.reporter.flush()
    if run.opponents is None or len(run.opponents.stages) < 2 or run.recovery_point is None:
        return
    directory, stage = run.directory, run.opponents.last_counted_stage
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
    """Write ``metrics.jsonl`` and ``progress.csv`` of a stage from the rows of the run that belong to it."""
    jsonl, csv = path / "metrics.jsonl", path / "progress.csv"
    for file in (jsonl, csv):
        file.unlink(missing_ok=True)
    writer = CsvWriter(csv, columns)
    try:
        with jsonl.open("xb") as copy:
            for line in iterate_metrics(metrics):
                if line.row.get("opponents/stage") == stage:
                    copy.write(line.text)
                    writer.write(line.row)
    finally:
        writer.close()
