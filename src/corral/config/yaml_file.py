"""The config as YAML: data in, data out, and never code."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from corral.config.schema import SECTIONS, TrainConfig
from corral.config.yaml_values import MOST_NODES, UNREADABLE, PlainLoader
from corral.core.errors import UsageError, one_line
from corral.core.files import read_regular
from corral.core.suggestions import did_you_mean, short_repr

__all__ = ["dump_yaml", "load_yaml", "read_mapping"]

_WRITTEN_IF_SET = ("hooks",)
"""Keys that are left out where they say nothing, so that earlier versions can read the file."""
MOST_BYTES = 1 << 20
"""Size of a YAML file that is read."""


class _OneValuePerKey(PlainLoader):
    """YAML's last value of a repeated key would win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        counts = Counter(key for key in keys if isinstance(key, Hashable))
        twice = [key for key, count in counts.items() if count > 1]
        if twice:
            raise yaml.MarkedYAMLError(problem=f"{short_repr(twice[0])} is set twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def read_mapping(path: str | os.PathLike[str], what: str = "config", untrusted: bool = False) -> dict[str, Any]:
    """The keys and values of a YAML file; ``what`` names it in complaints. Never runs code.

    An ``untrusted`` file, one that the user did not name, must be a regular file.
    """
    try:
        text = _read_text(Path(path), untrusted)
    except OSError as error:
        raise UsageError(f"cannot read {what} {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {what} {str(path)!r}: it is not UTF-8 text") from None
    except ValueError as error:  # a null character in the name
        raise UsageError(f"cannot read {what} {str(path)!r}: {error}") from None
    try:
        loader = _OneValuePerKey(text)
        node = loader.get_single_node()
        if node is not None:
            _count_nodes(node, {})
        data = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UsageError(f"cannot read {what} {str(path)!r}{line}: {one_line(problem)}") from None
    except RecursionError:  # aliases can nest values deeper than the text does
        raise UsageError(f"cannot read {what} {str(path)!r}: its values are nested too deeply") from None
    except UNREADABLE as error:
        raise UsageError(f"cannot read {what} {str(path)!r}: it is not YAML ({one_line(error)})") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{what} {str(path)!r} should hold `key: value` lines, not a {type(data).__name__}")
    return data


def _read_text(path: Path, untrusted: bool) -> str:
    if untrusted:
        return read_regular(path, MOST_BYTES).decode("utf-8")
    with path.open("rb") as file:  # which may be a pipe, if the user says so
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES:,} bytes")
    return data.decode("utf-8")


def _count_nodes(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values a node stands for once its aliases are written out; too many are refused, before they are made.

    ``known`` has the counts of the nodes below, by identity; 0 for one that is being counted.
    """
    if id(node) in known:
        if known[id(node)]:
            return known[id(node)]
        raise yaml.MarkedYAMLError(problem="a value contains itself", problem_mark=node.start_mark)
    known[id(node)], count = 0, 1
    if isinstance(node, yaml.CollectionNode):
        for part in node.value:
            for child in part if isinstance(node, yaml.MappingNode) else (part,):
                count += _count_nodes(child, known)
    if count > MOST_NODES:
        problem = f"its aliases stand for more than {MOST_NODES:,} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    known[id(node)] = count
    return count


def load_yaml(path: str | os.PathLike[str], untrusted: bool = False) -> dict[str, Any]:
    """The settings in a YAML file, flat, with the headings ``parallel`` and ``training`` dissolved. Never runs code."""
    flat: dict[str, Any] = {}
    for key, value in read_mapping(path, untrusted=untrusted).items():
        section = key in SECTIONS and (value is None or isinstance(value, dict))
        items = (value or {}).items() if section else [(key, value)]
        for name, setting in items:
            if name in flat:
                raise UsageError(f"config {str(path)!r} sets {short_repr(name)} twice")
            if name not in TrainConfig.model_fields:
                near = did_you_mean(name, TrainConfig.model_fields) if isinstance(name, str) else ""
                raise UsageError(f"unknown key {short_repr(name)} in {str(path)!r}{near}")
            flat[str(name)] = setting
    return flat


def dump_yaml(config: TrainConfig, notes: Mapping[str, str] | None = None) -> str:
    """The config as YAML that ``load_yaml`` reads back; ``notes`` become comments above their key."""
    notes = notes or {}
    lines = []
    for key, value in config.model_dump(mode="json").items():
        if key in _WRITTEN_IF_SET and not value:
            continue
        if key in notes:
            lines.append(f"# {notes[key]}")
        short_repr = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        lines.append(f"{key}: {short_repr.removesuffix('...' + chr(10)).strip()}")
    return "\n".join(lines) + "\n"
