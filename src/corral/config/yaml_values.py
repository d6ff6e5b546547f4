"""How text in YAML becomes values, in files and in ``key=value`` words alike."""

from __future__ import annotations

import re
from typing import Any

import yaml

from corral.core.suggestions import short_repr

__all__ = ["UNREADABLE", "PlainLoader"]

UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What loading YAML may raise: PyYAML itself stumbles over ``"\\U00110000"``, ``!!int ''`` and ``!!set [a]``."""
MOST_NODES = 100_000
"""Values in a text."""

_DEEPEST = 100
"""Levels of lists and mappings within each other; Python's own stack ends at a thousand calls."""
_INTEGER = re.compile(r"[-+]?(?:0b_*[01][01_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_REPLACED = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


class PlainLoader(yaml.SafeLoader):
    """YAML 1.1 without its surprises: ``2024-02-30`` and ``1:30`` are text. What cannot be read is UNREADABLE."""

    _depth = _count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a node and what is below it."""
        self._depth += 1
        self._count += 1
        if self._depth > _DEEPEST or self._count > MOST_NODES:
            deep = f"values are nested more than {_DEEPEST} deep"
            problem = deep if self._depth > _DEEPEST else f"there are more than {MOST_NODES:,} values"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
            kind = node.tag.rpartition(":")[2]
            problem = f"{short_repr(node.value)} cannot be read as {kind}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
