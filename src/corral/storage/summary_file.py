"""``summary.json``: the result of a run, as data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from corral.core.files import to_data

__all__ = ["SUMMARY_KEYS", "Summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run, which ``summary.json`` holds."""

    steps: int
    episodes: int
    seconds: float
    fps: float
    mean_reward: float | None
    eval_reward: float | None
    best_eval_reward: float | None
    n_envs: int
    backend: str
    num_workers: int
    restarts: int
    """Workers that died or hung and were replaced."""
    recycled: int
    """Workers that were replaced because they used too much memory."""
    retries: int
    """Steps and resets that raised, then succeeded in a new env."""
    env_faults: int
    """Episodes truncated because the env raised at the same step again."""
    inexact: int
    """Episodes truncated because the env could not be restored to its position."""
    seed: int
    weights_sha256: str
    exit_reason: str
    """The budget, signal or failure that ended the run."""
    win_rates: dict[str, float] = field(default_factory=dict)
    """By opponent, the fraction of the last training games that the policy won."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """The results of the stages."""
    nodes: dict[str, dict[str, int]] = field(default_factory=dict)
    """What happened on each machine of the cluster, by its address."""

    def to_data(self) -> dict[str, Any]:
        """Return the summary with the keys of ``summary.json``."""
        return to_data(self, SUMMARY_KEYS)

    def to_json(self) -> str:
        """Return the text of ``summary.json``. NaN and infinities become null, because JSON does not have them."""
        return f"{json.dumps(_without_nonfinite(self.to_data()), indent=1, allow_nan=False)}\n"


SUMMARY_KEYS = {
    "steps": "steps",
    "episodes": "episodes",
    "seconds": "seconds",
    "fps": "fps",
    "mean_reward": "mean_reward",
    "eval_reward": "eval_reward",
    "best_eval_reward": "best_eval_reward",
    "n_envs": "n_envs",
    "backend": "backend",
    "num_workers": "num_workers",
    "restarts": "restarts",
    "recycled": "recycled",
    "retries": "retries",
    "env_faults": "env_faults",
    "inexact": "inexact",
    "seed": "seed",
    "weights_sha256": "weights_sha256",
    "exit_reason": "exit_reason",
    "win_rates": "win_rates",
    "stages": "stages",
    "nodes": "nodes",
}
"""The key in ``summary.json`` of each attribute of ``Summary``."""


def _without_nonfinite(data: Any) -> Any:
    """Return nested data with None instead of NaN and infinities."""
    if isinstance(data, dict):
        return {name: _without_nonfinite(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_without_nonfinite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
