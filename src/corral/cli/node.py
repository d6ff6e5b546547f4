"""``corral node``: a machine of a Ray cluster."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from rich.console import Console

from corral.core.errors import UsageError
from corral.rollout.ray_node import NodeRequest, run_node

__all__ = ["run_node_verb"]


def run_node_verb(options: argparse.Namespace) -> int:
    """Run a node of a Ray cluster until it is told to end."""
    if options.head == (options.join is not None):
        raise UsageError("give either --head, to start a cluster, or --join HOST:PORT, to join one")
    if options.join is not None and not re.fullmatch(r".+:\d+", options.join):
        raise UsageError(f"--join {options.join}: should be HOST:PORT, as the head printed it")
    if (options.num_cpus is not None and options.num_cpus < 0) or options.drain_seconds < 0:
        raise UsageError("--num-cpus and --drain-seconds should be at least 0")
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    request = NodeRequest(
        join=options.join,
        port=options.port,
        address=options.address,
        num_cpus=options.num_cpus,
        token=None if options.token is None else Path(options.token),
        drain_seconds=options.drain_seconds,
    )
    return run_node(request, lambda text: console.print(text, markup=False))
