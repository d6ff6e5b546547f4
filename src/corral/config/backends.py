"""The backends: which processes step envs and choose actions."""

from __future__ import annotations

__all__ = ["BACKENDS"]

BACKENDS: dict[str, str] = {
    "serial": "corral.rollout.source_local:LocalEnvs",
    "process": "corral.rollout.source_local:LocalEnvs",
    "worker": "corral.rollout.source_workers:WorkerSource",
    "ray": "corral.rollout.source_ray:RaySource",
}
"""By ``--backend``, the ``module:callable`` that starts the envs; it is called with a ``SourceSpec``."""
