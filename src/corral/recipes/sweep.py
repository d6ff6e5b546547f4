"""Names of ``corral.sweeps`` under their former module, which documents and scripts still import."""

from corral.sweeps.api import REQUEST, resume_sweep, sweep
from corral.sweeps.results import Result, SweepResult

__all__ = ["REQUEST", "Result", "SweepResult", "resume_sweep", "sweep"]
