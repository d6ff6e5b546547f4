"""Names in files do not follow from names in code: for each class that is saved, a dictionary maps attributes to keys.

An attribute can be renamed without changing a file. ``tests/test_file_names.py`` holds every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["by_attribute", "to_data"]


def to_data(thing: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of ``thing`` by the names that they have in files."""
    return {key: getattr(thing, attribute) for attribute, key in keys.items()}


def by_attribute(data: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """Return what a file holds by the names of attributes; a key that is not known stays as it is."""
    attributes = {key: attribute for attribute, key in keys.items()}
    return {attributes.get(key, key): value for key, value in data.items()}
