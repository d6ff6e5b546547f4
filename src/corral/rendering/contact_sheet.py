"""A contact sheet: one image with frames of an episode side by side, and curves of its numbers below them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ContactSheet"]

Frame = npt.NDArray[np.uint8]
_MAX_FRAMES, _MAX_COLUMNS, _MAX_CURVES = 8, 4, 4
_COLOUR = "#3b6fb6"
_FRAME_INCHES, _TITLE_INCHES, _CURVES_INCHES, _MIN_WIDTH_INCHES = 3.2, 0.3, 2.2, 7.0


class _StepFrame(NamedTuple):
    step: int
    frame: Frame


class ContactSheet:
    """Collects the frames and numbers of an episode of any length, and draws them as one image.

    Only the last frame and those at multiples of an interval are kept; the interval doubles when there are too many.
    """

    def __init__(self) -> None:
        self._frames: list[_StepFrame] = []
        self._interval = 1
        self._steps: list[int] = []
        self._numbers: list[dict[str, float]] = []

    def add(self, step: int, frame: Frame, numbers: Mapping[str, float]) -> None:
        """Add the rendered frame of a step, and numbers of that step for the curves."""
        if numbers:
            self._steps.append(step)
            self._numbers.append(dict(numbers))
        if self._frames and self._frames[-1].step % self._interval:
            self._frames.pop()  # it was kept only because it was the last
        self._frames.append(_StepFrame(step, frame))
        if len(self._frames) > 4 * _MAX_FRAMES:
            self._interval *= 2
            last = self._frames[-1]
            self._frames = [kept for kept in self._frames if kept.step % self._interval == 0 or kept is last]

    def save(self, path: Path, title: str) -> None:
        """Draw the image and write it to ``path``."""
        from matplotlib.figure import Figure  # unlike pyplot, it needs no display and changes no global settings

        indices = np.unique(np.linspace(0, len(self._frames) - 1, _MAX_FRAMES).round().astype(int))
        frames = [self._frames[i] for i in indices]
        columns = min(_MAX_COLUMNS, len(frames))
        rows = math.ceil(len(frames) / columns)
        height, width = frames[0].frame.shape[:2]
        frame_width, frame_height = _FRAME_INCHES * min(1.0, width / height), _FRAME_INCHES * min(1.0, height / width)
        frames_height = rows * (frame_height + _TITLE_INCHES)
        names = self._curve_names()
        figure_height = frames_height + (_CURVES_INCHES if names else 0.0) + 0.4
        figure = Figure(figsize=(max(_MIN_WIDTH_INCHES, columns * frame_width), figure_height))
        figure.set_layout_engine("constrained")
        if names:
            subfigures: Any = figure.subfigures(2, 1, height_ratios=[frames_height, _CURVES_INCHES])
            frames_part, curves_part = subfigures
            self._draw_frames(frames, np.ravel(frames_part.subplots(rows, columns, squeeze=False)))
            for axes, name in zip(curves_part.subplots(1, len(names), squeeze=False)[0], names, strict=True):
                self._draw_curve(name, axes)
        else:
            self._draw_frames(frames, np.ravel(figure.subplots(rows, columns, squeeze=False)))
        figure.suptitle(title, fontsize=11)
        figure.savefig(path, dpi=110)

    def _draw_frames(self, frames: list[_StepFrame], all_axes: npt.NDArray[Any]) -> None:
        for axes in all_axes:
            axes.axis("off")
        for axes, (step, frame) in zip(all_axes, frames, strict=False):
            axes.imshow(frame, interpolation="lanczos")
            axes.set_title(f"step {step:,}", fontsize=9)

    def _draw_curve(self, name: str, axes: Axes) -> None:
        points = [
            (step, numbers[name]) for step, numbers in zip(self._steps, self._numbers, strict=True) if name in numbers
        ]
        axes.plot(*zip(*points, strict=True), color=_COLOUR)
        axes.set_title(name.replace("_", " "), loc="left", fontsize=9, fontweight="bold")
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if name == "rank":
            axes.invert_yaxis()  # rank 1 is at the top

    def _curve_names(self) -> list[str]:
        """Return the numbers to draw, in the order of ``add``: those that change and are in over half of the steps."""
        names = dict.fromkeys(name for numbers in self._numbers for name in numbers)
        values = {name: [numbers[name] for numbers in self._numbers if name in numbers] for name in names}
        half = len(self._numbers) / 2
        changing = [name for name, seen in values.items() if len(seen) > max(1, half) and len({*seen}) > 1]
        return changing[:_MAX_CURVES]
