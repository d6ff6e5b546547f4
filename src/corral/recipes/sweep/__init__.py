"""Many runs of the same env with different settings: presets in turn, or a search that learns from its trials.

``request`` checks what is asked, ``plan`` and ``search`` decide what is tried, ``trial`` trains, ``jobs`` does so in
several processes, ``results`` writes tables and the picture, and ``run`` holds it together.
"""

from corral.recipes.sweep.results import Result, SweepResult
from corral.recipes.sweep.run import REQUEST, resume_sweep, sweep

__all__ = ["REQUEST", "Result", "SweepResult", "resume_sweep", "sweep"]
