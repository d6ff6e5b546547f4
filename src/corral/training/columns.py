"""The columns of ``progress.csv``: what is known of a run's metrics before its first step."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.metrics import METRICS
from corral.training.run import Run

__all__ = ["progress_columns"]

_OPTIONAL = ("train/rho", "train/kl_ref", "train/kl_ref_coef", "train/std")
_OF_EVERY_RUN = ("time/", "rollout/", "faults/", "train/", "eval/", "system/trainer")


def progress_columns(run: Run) -> Sequence[str]:
    """The names of all metrics that the run can have, but for numbers in ``info`` and those of a callback."""
    config = run.config
    columns = [name for name in METRICS if name.startswith(_OF_EVERY_RUN) and name not in _OPTIONAL]
    present = {
        "train/rho": config.overlap,
        "train/kl_ref": bool(config.kl_ref_coef),
        "train/kl_ref_coef": bool(config.kl_ref_coef),
        "train/std": bool(run.learner.policy.log_std.numel()),
    }
    columns += [name for name, is_present in present.items() if is_present]
    if run.opponents is not None:
        columns += run.opponents.metric_names()
    workers = len(run.source.pids())
    return columns + [f"system/worker_{i}_{what}" for i in range(workers) for what in ("cpu", "mb")]
