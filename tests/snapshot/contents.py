"""The contents of a run directory as one flat dictionary without times, so that two runs can be compared."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.numpy
import yaml

__all__ = ["contents_of", "differences"]

_TIMES = re.compile(
    r"(^|/)(seconds|eval_seconds|discarded_seconds|fps)$"  # state.json, summary.json
    r"|^time/(fps|time_elapsed|collect_s|update_s|act_s|step_s)$|^system/|^rollout/collectors$"  # metrics
)
"""Names of numbers that depend on the clock, on the machine's load or on when a worker was moved."""
_STATE = re.compile(r"envs\.safetensors state/\d+$")
_SINCE_STATE = re.compile(r"envs\.safetensors (state|actions)/\d+$")
"""States of envs are saved when there is time, so that the state and the actions since then differ from run to run."""
_DATA_SUFFIXES = {".json", ".yaml", ".jsonl", ".csv", ".safetensors"}


def contents_of(run: Path) -> dict[str, Any]:
    """Return everything that a run wrote, by file and name. Of other files than data files, only the name counts."""
    contents: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        if path.is_dir():
            continue
        file = re.sub(r"events\.out\..*", "events", path.relative_to(run).as_posix())
        contents[file] = "is there"
        if path.suffix in _DATA_SUFFIXES and path.name != "manifest.json":  # it has hashes of files that hold times
            contents |= {f"{file} {name}": value for name, value in _read(path, run)}
    return contents


def _read(path: Path, run: Path) -> Iterator[tuple[str, Any]]:
    match path.suffix:
        case ".safetensors":
            tensors = safetensors.numpy.load_file(path)
            for name, array in tensors.items():
                digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
                yield name, f"{array.dtype}{[*array.shape]} {digest} {array.reshape(-1)[:3].tolist()}"
        case ".jsonl":
            for number, line in enumerate(path.read_text().splitlines()):
                yield from _flatten(json.loads(line), f"row {number} ")
        case ".csv":
            with path.open(newline="") as file:
                for number, row in enumerate(csv.DictReader(file)):
                    yield from _flatten(row, f"row {number} ")
        case ".json":
            yield from _flatten(json.loads(path.read_text()))
        case ".yaml":
            yield from _flatten(yaml.safe_load(path.read_text().replace(str(run), "RUN")))


def _flatten(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of JSON data by path, and the order of the keys of each dictionary."""

    def walk(data: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(data, dict):
            names = [name for name in data if not name.startswith("system/")]  # rows have these once a second
            yield f"{prefix}{path} keys", names
            for name in names:
                yield from walk(data[name], f"{path}/{name}" if path else name)
        elif isinstance(data, list):
            yield f"{prefix}{path} length", len(data)
            for index, value in enumerate(data):
                yield from walk(value, f"{path}/{index}")
        elif not _TIMES.search(path):
            yield f"{prefix}{path}", data

    return walk(data, "")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line for each entry that differs; NaN is equal to NaN."""
    lines, names = [], {*old, *new}
    if any(_STATE.search(name) for name in names):
        names = {name for name in names if not _SINCE_STATE.search(name)}
    for name in sorted(names):
        pair = [repr(contents.get(name, "missing")) for contents in (old, new)]
        if pair[0] != pair[1]:
            lines.append(f"{name}: {pair[0]:.160} before, {pair[1]:.160} now")
    return lines
