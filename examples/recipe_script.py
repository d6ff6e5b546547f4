"""What the scripts of the recipes have in common: a verb of the command line, with the flags such scripts usually have.

``--env`` names another env than the script's own; ``--save-path``, ``--checkpoint-dir`` and ``--log-path`` name the run
directory. Everything else is the verb's own: `python examples/train_selfplay.py --help` shows it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from corral.cli.main import main


def run(verb: str, *preset: str, env: str = "card-battle", words: Sequence[str] | None = None) -> int:
    """Carry out ``corral verb ENV preset... words...``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", default=env)
    for flag in ("--save-path", "--checkpoint-dir", "--log-path"):
        parser.add_argument(flag, dest="directories", action="append", default=[])
    options, rest = parser.parse_known_args(sys.argv[1:] if words is None else words)
    if len(set(options.directories)) > 1:
        print(f"a run has one directory, but several were named: {sorted(set(options.directories))}", file=sys.stderr)
        return 2
    output = ["--output-dir", options.directories[0]] if options.directories else []
    return main([verb, options.env, *preset, *output, *rest])
