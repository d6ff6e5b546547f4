"""Numbers in infos, added up by env."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.types import LIFE_LOST, InfoSums
from corral.vec.validation import LARGEST, NUMBER

__all__ = ["VectorInfoSums", "add_numbers"]


def add_numbers(sums: dict[str, InfoSums], info: Mapping[str, Any]) -> None:
    """Add the numbers in the info of one env's step to its sums."""
    for key, value in info.items():
        if key != LIFE_LOST and isinstance(value, NUMBER) and abs(value) <= LARGEST:  # type: ignore[operator]
            sums.setdefault(key, InfoSums()).add(float(value))


class VectorInfoSums:
    """The sums of ``n`` envs, by name; names in ``left_out`` are not added up."""

    def __init__(self, n: int, left_out: Collection[str]) -> None:
        self._n, self._left_out = n, left_out
        self._sums: dict[str, _Sums] = {}

    def add(self, infos: Mapping[str, Any], where: npt.NDArray[np.bool_] | None = None) -> None:
        """Add up the numbers in infos, of some envs or of all."""
        for name, value in infos.items():
            if name in self._left_out or not isinstance(value, np.ndarray) or value.shape != (self._n,):
                continue
            if name[0] == "_" or value.dtype.kind not in "biuf":
                continue
            there = np.abs(value) <= LARGEST if value.dtype.kind == "f" else np.ones(self._n, np.bool_)
            if where is not None:
                there &= where
            if (said := infos.get(f"_{name}")) is not None:
                there &= said
            sums = self._sums.setdefault(name, _Sums(self._n))
            sums.total[there] += value[there]
            sums.count += there

    def drain(self) -> list[dict[str, InfoSums]]:
        """The sums since the last call, by env."""
        drained = [
            {
                name: InfoSums(float(found.total[i]), int(found.count[i]))
                for name, found in self._sums.items()
                if found.count[i]
            }
            for i in range(self._n)
        ]
        self._sums = {}
        return drained


class _Sums:
    """Of one number in the infos of N envs."""

    def __init__(self, n: int) -> None:
        self.total = np.zeros(n)
        self.count = np.zeros(n, np.int64)
