"""Pictures in a terminal: two pixels to a character, in 24-bit colours, each picture in the place of the last."""

from __future__ import annotations

import shutil
import sys
import time

import numpy as np
import numpy.typing as npt

__all__ = ["Screen", "half_blocks"]

_HOME, _CLEAR, _CLEAR_LINE, _CLEAR_REST, _PLAIN = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J", "\x1b[0m"


def half_blocks(frame: npt.NDArray[np.uint8], columns: int, lines: int) -> str:
    """An RGB frame [H, W, 3] as text of at most so many columns and lines, its proportions kept."""
    from PIL import Image

    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * lines / height, 1.0)
    size = max(1, round(width * scale)), max(2, 2 * round(height * scale / 2))
    small = np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BOX), np.uint8)
    rows = []
    for upper, lower in zip(small[0::2].tolist(), small[1::2].tolist(), strict=True):
        line, before = [], None
        for colours in zip(upper, lower, strict=True):
            if colours != before:
                (r, g, b), (r2, g2, b2) = colours
                line.append(f"\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m")
                before = colours
            line.append("▀")
        rows.append("".join(line) + _PLAIN)
    return "\n".join(rows)


class Screen:
    """Shows frames, text or RGB, at so many a second. What is not a terminal gets them one below the other, at once."""

    def __init__(self, fps: float) -> None:
        self._pause = 1 / fps
        self._live = sys.stdout.isatty()
        self._next = 0.0
        if self._live:
            print(_CLEAR, end="")

    def show(self, frame: str | npt.NDArray[np.uint8], caption: str) -> None:
        """Show a frame, and a line below it."""
        columns, lines = shutil.get_terminal_size()
        room = max(2, lines - 2)
        text = frame if isinstance(frame, str) else half_blocks(frame, columns, room)
        if not self._live:
            print(f"{text}\n{caption}\n", flush=True)
            return
        fitting = [*text.splitlines()[:room], f"{_PLAIN}{caption}"]
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self._pause
        try:
            print(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in fitting) + _CLEAR_REST, end="", flush=True)
        except KeyboardInterrupt:
            print(_PLAIN, flush=True)
            raise
