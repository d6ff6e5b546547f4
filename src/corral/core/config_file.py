"""The config as YAML: data in, data out, and never code."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from corral.core.config import SECTIONS, TrainConfig
from corral.core.errors import UsageError, one_line
from corral.core.spelling import did_you_mean, shown
from corral.core.yaml_values import PlainLoader

__all__ = ["dump_yaml", "load_yaml", "read_mapping"]


class _OneValuePerKey(PlainLoader):
    """YAML's last value of a repeated key would win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        counts = Counter(key for key in keys if isinstance(key, Hashable))
        twice = [key for key, count in counts.items() if count > 1]
        if twice:
            raise yaml.MarkedYAMLError(problem=f"{shown(twice[0])} is set twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


def read_mapping(path: str | os.PathLike[str], what: str = "config") -> dict[str, Any]:
    """The keys and values of a YAML file; ``what`` names it in complaints. Never runs code."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {what} {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {what} {str(path)!r}: it is not UTF-8 text") from None
    except ValueError as error:  # a null character in the name
        raise UsageError(f"cannot read {what} {str(path)!r}: {error}") from None
    try:
        data = _OneValuePerKey(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise UsageError(f"cannot read {what} {str(path)!r}{line}: {one_line(problem)}") from None
    except RecursionError:  # aliases can nest values deeper than the text does
        raise UsageError(f"cannot read {what} {str(path)!r}: its values are nested too deeply") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(f"{what} {str(path)!r} should hold `key: value` lines, not a {type(data).__name__}")
    return data


def load_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a YAML file, flat, with the headings ``parallel`` and ``training`` dissolved. Never runs code."""
    flat: dict[str, Any] = {}
    for key, value in read_mapping(path).items():
        section = key in SECTIONS and (value is None or isinstance(value, dict))
        items = (value or {}).items() if section else [(key, value)]
        for name, setting in items:
            if name in flat:
                raise UsageError(f"config {str(path)!r} sets {shown(name)} twice")
            if name not in TrainConfig.model_fields:
                raise UsageError(
                    f"unknown key {shown(name)} in {str(path)!r}{did_you_mean(str(name), TrainConfig.model_fields)}"
                )
            flat[str(name)] = setting
    return flat


def dump_yaml(config: TrainConfig, notes: Mapping[str, str] | None = None) -> str:
    """The config as YAML that ``load_yaml`` reads back; ``notes`` become comments above their key."""
    notes = notes or {}
    lines = []
    for key, value in config.model_dump(mode="json").items():
        if key in notes:
            lines.append(f"# {notes[key]}")
        shown = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        lines.append(f"{key}: {shown.removesuffix('...' + chr(10)).strip()}")
    return "\n".join(lines) + "\n"
