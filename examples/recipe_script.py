"""The function that the other scripts call: each script runs one verb of the command line, with all of its flags.

``--env`` chooses another env than the default of the script. ``--save-path``, ``--checkpoint-dir``, ``--log-path`` and
``--output-dir`` all name the run directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from corral.cli.main import main
from corral.cli.verbs import Script


def run(verb: str, *preset: str, env: str = "card-battle") -> int:
    """Run ``corral verb ENV preset... arguments...``, with the arguments that the user gave to the script."""
    about = getattr(sys.modules["__main__"], "__doc__", None) or ""
    return main([verb, *preset, *sys.argv[1:]], Script(Path(sys.argv[0]).name, about, env))
