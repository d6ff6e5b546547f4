"""What the scripts have in common: each stands for a verb of the command line and has all of its flags.

``--env`` names another env than the script's own; ``--save-path``, ``--checkpoint-dir``, ``--log-path`` and
``--output-dir`` name the run directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from corral.cli.main import main
from corral.cli.verbs import Script


def run(verb: str, *preset: str, env: str = "card-battle") -> int:
    """Carry out ``corral verb ENV preset... words...`` with the words that were typed after the script's name."""
    about = getattr(sys.modules["__main__"], "__doc__", None) or ""
    return main([verb, *preset, *sys.argv[1:]], Script(Path(sys.argv[0]).name, about, env))
