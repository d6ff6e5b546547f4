"""``phases/<name>/``: the metrics of each stage of a run by themselves, and the policy with which it ended."""

from __future__ import annotations

import contextlib

from corral.core.errors import CheckpointError
from corral.monitor.writers import CsvWriter, read_metrics
from corral.training.checkpoint import prune, save_checkpoint
from corral.training.opponents import Opponents
from corral.training.run import Run
from corral.training.run_directory import RunDirectory

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
        lines = directory.metrics_file.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [
            (line, row)
            for line, row in zip(lines, read_metrics(directory.metrics_file), strict=False)
            if row.get("opponents/stage") == stage
        ]
        (path / "metrics.jsonl").write_text("".join(line for line, _ in kept), encoding="utf-8")
        CsvWriter(path / "progress.csv", [row for _, row in kept]).close()
        save_checkpoint(path / "checkpoints", run.safe)
    except (OSError, CheckpointError) as error:
        return f"the files of stage {opponents.stages[stage].name} cannot be written: {error}"
    with contextlib.suppress(OSError):
        prune(path / "checkpoints", keep=1)
    return None
