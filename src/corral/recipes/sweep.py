"""The former place of ``corral.sweeps``, which documents and scripts name."""

from corral.sweeps.api import REQUEST, resume_sweep, sweep
from corral.sweeps.results import Result, SweepResult

__all__ = ["REQUEST", "Result", "SweepResult", "resume_sweep", "sweep"]
