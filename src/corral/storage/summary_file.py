"""``summary.json``: how a run ended, as data."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from corral.core.files import to_data

__all__ = ["SUMMARY_KEYS", "Summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended; ``summary.json`` holds the same."""

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
    recycled: int
    retries: int
    env_faults: int
    inexact: int
    seed: int
    weights_sha256: str
    exit_reason: str
    win_rates: dict[str, float] = field(default_factory=dict)
    """Over the last games of training against each kind of opponent."""
    stages: list[dict[str, Any]] = field(default_factory=list)
    """How each stage went."""

    def to_data(self) -> dict[str, Any]:
        """Return it as ``summary.json`` holds it."""
        return to_data(self, SUMMARY_KEYS)

    def to_json(self) -> str:
        """The text of ``summary.json``. What is not a finite number becomes null: JSON has no infinity."""
        return f"{json.dumps(_finite(self.to_data()), indent=1, allow_nan=False)}\n"


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
}
"""Names in ``summary.json``."""


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
