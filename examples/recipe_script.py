"""The functions that the other scripts call: each script has the flags of one verb of the command line.

A script runs its verb, or a function of its own.

``--env`` chooses another env than the default of the script. ``--save-path``, ``--checkpoint-dir``, ``--log-path`` and
``--output-dir`` all name the run directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

from corral.cli.main import main
from corral.cli.verbs import Script

CONFIG = Path(__file__).resolve().parents[1] / "config" / "ppo_parallel.yaml"


def run(verb: str, *preset: str, env: str = "card-battle") -> int:
    """Run ``corral verb ENV preset... arguments...``, with the arguments that the user gave to the script."""
    return main([verb, *preset, *sys.argv[1:]], Script(Path(sys.argv[0]).name, _about(), env))


def run_timed(sequential: bool) -> int:
    """Train for a given duration, in one process or with workers, with the settings of ``CONFIG`` and of the flags."""
    defaults = {"config": str(CONFIG) if CONFIG.is_file() else None, "eval_games": 0, "sequential": sequential}
    function = "corral.cli.timed:train_timed"
    script = Script(Path(sys.argv[0]).name, _about(), "envpool:CoinrunEasy-v0", function, defaults)
    return main(["train", *sys.argv[1:]], script)


def _about() -> str:
    return getattr(sys.modules["__main__"], "__doc__", None) or ""
