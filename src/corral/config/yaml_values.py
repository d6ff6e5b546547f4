"""The YAML loader of config files and of ``key=value`` words."""

from __future__ import annotations

import re
from typing import Any

import yaml

from corral.core.suggestions import short_repr

__all__ = ["UNREADABLE", "PlainLoader"]

UNREADABLE = (yaml.YAMLError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""Exceptions that loading YAML can raise. PyYAML raises others than its own for ``"\\U00110000"`` and ``!!int ''``."""
MAX_NODES = 100_000
"""Most values in a YAML text."""

_MAX_DEPTH = 100
"""Most levels of nested lists and mappings; PyYAML recurses, and Python allows about a thousand nested calls."""
_INTEGER = re.compile(r"[-+]?(?:0b_*[01][01_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_REPLACED = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


class PlainLoader(yaml.SafeLoader):
    """A safe loader of YAML 1.1, except that dates (``2024-02-30``) and base-60 numbers (``1:30``) are text.

    It raises only exceptions of ``UNREADABLE``.
    """

    _depth = _count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Parse a node and everything nested in it; raise a YAML error if there is too much of it."""
        self._depth += 1
        self._count += 1
        if self._depth > _MAX_DEPTH or self._count > MAX_NODES:
            too_deep = f"values are nested more than {_MAX_DEPTH} deep"
            problem = too_deep if self._depth > _MAX_DEPTH else f"there are more than {MAX_NODES:,} values"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node; raise a YAML error with its line if PyYAML cannot convert it."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
            type_name = node.tag.rpartition(":")[2]
            problem = f"{short_repr(node.value)} cannot be read as {type_name}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
PlainLoader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
