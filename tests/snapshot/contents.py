"""What a run directory holds, as one flat dictionary without times, so that two runs can be compared."""

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
"""Envs with ``get_state`` are asked for it as often as there is time: when, and so what was played since, varies."""
_TEXTS = {".json", ".yaml", ".jsonl", ".csv", ".safetensors"}


def contents_of(run: Path) -> dict[str, Any]:
    """Return everything that a run wrote, by file and name. Files that hold nothing but text count by name."""
    contents: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        if path.is_dir():
            continue
        file = re.sub(r"events\.out\..*", "events", path.relative_to(run).as_posix())
        contents[file] = "is there"
        if path.suffix in _TEXTS and path.name != "manifest.json":  # which has hashes of files with times
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
                yield from _flat(json.loads(line), f"row {number} ")
        case ".csv":
            with path.open(newline="") as file:
                for number, row in enumerate(csv.DictReader(file)):
                    yield from _flat(row, f"row {number} ")
        case ".json":
            yield from _flat(json.loads(path.read_text()))
        case ".yaml":
            yield from _flat(yaml.safe_load(path.read_text().replace(str(run), "RUN")))


def _flat(data: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of JSON data by path, and the order of the keys of each dictionary."""

    def walk(data: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(data, dict):
            names = [name for name in data if not name.startswith("system/")]  # measured once a second
            yield f"{before}{path} keys", names
            for name in names:
                yield from walk(data[name], f"{path}/{name}" if path else name)
        elif isinstance(data, list):
            yield f"{before}{path} length", len(data)
            for index, value in enumerate(data):
                yield from walk(value, f"{path}/{index}")
        elif not _TIMES.search(path):
            yield f"{before}{path}", data

    return walk(data, "")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line for each entry that is not the same, NaN counted as equal to itself."""
    lines, names = [], {*old, *new}
    if any(_STATE.search(name) for name in names):
        names = {name for name in names if not _SINCE_STATE.search(name)}
    for name in sorted(names):
        pair = [repr(contents.get(name, "missing")) for contents in (old, new)]
        if pair[0] != pair[1]:
            lines.append(f"{name}: {pair[0]:.160} before, {pair[1]:.160} now")
    return lines
