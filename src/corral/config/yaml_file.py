"""Config files in YAML. Reading one never runs code."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from corral.config.schema import SECTIONS, TrainConfig
from corral.config.yaml_values import MAX_NODES, UNREADABLE, PlainLoader
from corral.core.errors import UsageError, one_line
from corral.core.files import read_regular
from corral.core.suggestions import did_you_mean, short_repr

__all__ = ["dump_yaml", "load_yaml", "read_mapping"]

_WRITTEN_IF_SET = ("hooks",)
"""Keys that are left out if they are empty, so that earlier versions can read the file."""
_MAX_BYTES = 1 << 20
"""Largest size of a YAML file that is read."""


class _UniqueKeyLoader(PlainLoader):
    """A loader that raises an error if a mapping has a key twice, where PyYAML uses the last value silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        counts = Counter(key for key in keys if isinstance(key, Hashable))
        repeated = [key for key, count in counts.items() if count > 1]
        if repeated:
            raise yaml.MarkedYAMLError(problem=f"{short_repr(repeated[0])} is set twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def read_mapping(path: str | os.PathLike[str], what: str = "config", untrusted: bool = False) -> dict[str, Any]:
    """Return the keys and values of a YAML file; raise a UsageError, in which ``what`` names the file, if it is wrong.

    An ``untrusted`` file, which the user did not name, must be a regular file.
    """
    try:
        text = _read_text(Path(path), untrusted)
    except OSError as error:
        raise UsageError(f"cannot read {what} {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {what} {str(path)!r}: it is not UTF-8 text") from None
    except ValueError as error:  # there is a null character in the name
        raise UsageError(f"cannot read {what} {str(path)!r}: {error}") from None
    data = _parse(text, f"{what} {str(path)!r}")
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{what} {str(path)!r} should hold `key: value` lines, not a {type(data).__name__}")
    return data


def _parse(text: str, file_name: str) -> Any:
    """Return the value of a YAML text; raise a UsageError with the name of its file if it cannot be parsed."""
    try:
        loader = _UniqueKeyLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _count_nodes(node, {})
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UsageError(f"cannot read {file_name}{line}: {one_line(problem)}") from None
    except RecursionError:  # aliases can nest values deeper than the text is nested
        raise UsageError(f"cannot read {file_name}: its values are nested too deeply") from None
    except UNREADABLE as error:
        raise UsageError(f"cannot read {file_name}: it is not YAML ({one_line(error)})") from None


def _read_text(path: Path, untrusted: bool) -> str:
    """Return the text of a file; raise an OSError if it cannot be read or is too large."""
    if untrusted:
        return read_regular(path, _MAX_BYTES).decode("utf-8")
    with path.open("rb") as file:  # a user may name a pipe
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_BYTES:,} bytes")
    return data.decode("utf-8")


def _count_nodes(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of values that a node has once its aliases are expanded.

    Raise a YAML error, before a value is constructed, if there are more than ``MAX_NODES`` or a value contains itself.
    ``counts`` has the counts of the nodes that were visited, by ``id``; 0 for a node that is being counted.
    """
    if id(node) in counts:
        if counts[id(node)]:
            return counts[id(node)]
        raise yaml.MarkedYAMLError(problem="a value contains itself", problem_mark=node.start_mark)
    counts[id(node)], count = 0, 1
    if isinstance(node, yaml.CollectionNode):
        for item in node.value:
            for child in item if isinstance(node, yaml.MappingNode) else (item,):
                count += _count_nodes(child, counts)
    if count > MAX_NODES:
        problem = f"its aliases stand for more than {MAX_NODES:,} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    counts[id(node)] = count
    return count


def load_yaml(path: str | os.PathLike[str], untrusted: bool = False) -> dict[str, Any]:
    """Return the settings in a YAML file; those under the headings ``parallel`` and ``training`` are not nested.

    Raise a UsageError if the file cannot be read, or has a key twice or one that is not a setting.
    """
    settings: dict[str, Any] = {}
    for key, value in read_mapping(path, untrusted=untrusted).items():
        is_heading = key in SECTIONS and (value is None or isinstance(value, dict))
        items = (value or {}).items() if is_heading else [(key, value)]
        for name, setting in items:
            if name in settings:
                raise UsageError(f"config {str(path)!r} sets {short_repr(name)} twice")
            if name not in TrainConfig.model_fields:
                suggestion = did_you_mean(name, TrainConfig.model_fields) if isinstance(name, str) else ""
                raise UsageError(f"unknown key {short_repr(name)} in {str(path)!r}{suggestion}")
            settings[str(name)] = setting
    return settings


def dump_yaml(config: TrainConfig, notes: Mapping[str, str] | None = None) -> str:
    """Return the config as YAML that ``load_yaml`` can read; ``notes`` become comments above their keys."""
    notes = notes or {}
    lines = []
    for key, value in config.model_dump(mode="json").items():
        if key in _WRITTEN_IF_SET and not value:
            continue
        if key in notes:
            lines.append(f"# {notes[key]}")
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        lines.append(f"{key}: {text.removesuffix('...' + chr(10)).strip()}")
    return "\n".join(lines) + "\n"
