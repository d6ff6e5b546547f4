"""An episode in one picture: moments of it side by side, and how its numbers went below them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ContactSheet"]

Frame = npt.NDArray[np.uint8]
_MOMENTS, _ACROSS, _CURVES = 8, 4, 4
_COLOUR = "#3b6fb6"


class ContactSheet:
    """Takes in moments, of which there may be any number, and keeps as many frames as a picture can show."""

    def __init__(self) -> None:
        self._frames: list[tuple[int, Frame]] = []
        self._every = 1
        self._steps: list[int] = []
        self._numbers: list[dict[str, float]] = []

    def add(self, step: int, frame: Frame, numbers: Mapping[str, float]) -> None:
        """A moment: what it looked like, and numbers to draw over time."""
        if numbers:
            self._steps.append(step)
            self._numbers.append(dict(numbers))
        if self._frames and self._frames[-1][0] % self._every:
            self._frames.pop()  # it was only kept as the last
        self._frames.append((step, frame))
        if len(self._frames) > 4 * _MOMENTS:
            self._every *= 2
            self._frames = [kept for kept in self._frames if kept[0] % self._every == 0 or kept is self._frames[-1]]

    def save(self, path: Path, title: str) -> None:
        """Draw it."""
        from matplotlib.figure import Figure  # a Figure of its own needs no screen and changes nobody's settings

        chosen = np.unique(np.linspace(0, len(self._frames) - 1, _MOMENTS).round().astype(int))
        shown = [self._frames[i] for i in chosen]
        across = min(_ACROSS, len(shown))
        down = math.ceil(len(shown) / across)
        height, width = shown[0][1].shape[:2]
        size = 3.2 * min(1.0, width / height), 3.2 * min(1.0, height / width)
        names = self._curves()
        figure = Figure(figsize=(max(7.0, across * size[0]), down * (size[1] + 0.3) + (2.2 if names else 0.0) + 0.4))
        figure.set_layout_engine("constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=[down * (size[1] + 0.3), 2.2]) if names else [figure]
        for axes in (panels := np.ravel(parts[0].subplots(down, across, squeeze=False))):
            axes.axis("off")
        for axes, (step, frame) in zip(panels, shown, strict=False):
            axes.imshow(frame, interpolation="lanczos")
            axes.set_title(f"step {step:,}", fontsize=9)
        for axes, name in zip(parts[-1].subplots(1, len(names), squeeze=False)[0] if names else (), names, strict=True):
            points = [(s, told[name]) for s, told in zip(self._steps, self._numbers, strict=True) if name in told]
            axes.plot(*zip(*points, strict=True), color=_COLOUR)
            axes.set_title(name.replace("_", " "), loc="left", fontsize=9, fontweight="bold")
            axes.set_xlabel("step", fontsize=8)
            axes.tick_params(labelsize=8)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            if name == "rank":
                axes.invert_yaxis()  # the first place on top
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=110)

    def _curves(self) -> list[str]:
        """The numbers worth a curve: those that change and are there most of the time; the reward first."""
        names = dict.fromkeys(name for told in self._numbers for name in told)
        values = {name: [told[name] for told in self._numbers if name in told] for name in names}
        half = len(self._numbers) / 2
        return [name for name, seen in values.items() if len(seen) > max(1, half) and len({*seen}) > 1][:_CURVES]
