"""The table of ``corral doctor --cluster``: a row for each node of a cluster."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from corral.doctor.cluster import ClusterReport, NodeReport
from corral.rollout.fingerprint import Fingerprint

__all__ = ["print_nodes"]

_SHOWN_VERSIONS = ("python", "corral", "numpy", "torch")
_UNKNOWN = "-"


def print_nodes(console: Console, address: str, report: ClusterReport) -> None:
    """Print a row for each node; below, the versions of this machine, and what differs on a node."""
    where = "of a Ray that was started here" if address == "local" else f"of the Ray cluster at {address}"
    title = Text(f"{len(report.nodes)} node{'' if len(report.nodes) == 1 else 's'} {where}", style="italic")
    headers = ["cores\nfree/total", "memory (GB)\nfree/total", "latency", "bandwidth"]
    table = Table(Column("node", overflow="fold"), *headers, title=title, title_justify="left")
    for node in report.nodes:
        table.add_row(*(Text(cell) for cell in _cells(node)))
    console.print(table, soft_wrap=False)

    versions = _versions(report.here)
    shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN_VERSIONS if name in versions)
    differences = [_differences(report.here, node.fingerprint) for node in report.nodes]
    are_same = not any(differences) and all(node.fingerprint is not None for node in report.nodes)
    console.print(f"{'all nodes' if are_same else 'this machine'}: {shown}", markup=False)
    for node, differing in zip(report.nodes, differences, strict=True):
        if differing:
            console.print(f"{node.node.address} differs: {'; '.join(differing)}", markup=False)


def _cells(report: NodeReport) -> list[str]:
    """Return what the table says about a node."""
    node, description = report.node, report.description
    memory = _UNKNOWN
    if description is not None:
        memory = f"{description.free_memory / 2**30:.1f}/{description.total_memory / 2**30:.1f}"
    return [
        f"{node.address} (here)" if report.is_here else node.address,
        f"{node.free_cores:g}/{node.cores:g}",
        memory,
        _UNKNOWN if report.latency is None else f"{report.latency * 1000:.1f} ms",
        _UNKNOWN if report.bandwidth is None else f"{report.bandwidth / 1e6:,.0f} MB/s",
    ]


def _differences(here: Fingerprint, there: Fingerprint | None) -> list[str]:
    """Return the versions of a node that differ from those here, and the processor features that it has or lacks."""
    if there is None:
        return []
    ours, theirs = _versions(here), _versions(there)
    lines = [f"{name} {theirs.get(name, 'missing')}" for name in ours | theirs if ours.get(name) != theirs.get(name)]
    (machine, features), (their_machine, their_features) = _processor(here), _processor(there)
    if their_machine != machine:
        lines.append(f"processor {their_machine}")
    for verb, names in (("lacks", features - their_features), ("has", their_features - features)):
        if names and their_machine == machine:
            lines.append(f"the processor {verb} {', '.join(sorted(names))}")
    return lines


def _versions(fingerprint: Fingerprint) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in fingerprint.versions)


def _processor(fingerprint: Fingerprint) -> tuple[str, set[str]]:
    """Return the architecture and the features of a processor."""
    machine, _, features = fingerprint.processor.partition(" (")
    return machine, set(features.removesuffix(")").split(", "))
