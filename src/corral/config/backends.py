"""Who steps and acts in a run, by the name that ``--backend`` has for it."""

from __future__ import annotations

__all__ = ["BACKENDS"]

BACKENDS: dict[str, str] = {
    "serial": "corral.rollout.source_local:start_local",
    "process": "corral.rollout.source_local:start_local",
    "worker": "corral.rollout.source_workers:start_workers",
}
"""What starts the envs of each: ``module:function``, called with a ``SourceSpec``. A new backend is one more entry."""
