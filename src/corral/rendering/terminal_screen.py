"""Animation of frames in a terminal: two pixels per character, in 24-bit colours."""

from __future__ import annotations

import shutil
import sys
import time

import numpy as np
import numpy.typing as npt

__all__ = ["Screen", "half_blocks"]

# ANSI escape sequences: cursor to the top left, erase everything, erase to the end of the line or of the screen, and
# default colours.
_HOME, _CLEAR, _CLEAR_LINE, _CLEAR_REST, _RESET = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J", "\x1b[0m"


def half_blocks(frame: npt.NDArray[np.uint8], columns: int, lines: int) -> str:
    """Return an RGB frame [H, W, 3] as text of at most ``columns`` and ``lines``, with its proportions kept.

    Each character is an upper half block, whose foreground and background colours are those of two pixels.
    """
    from PIL import Image

    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * lines / height, 1.0)
    size = max(1, round(width * scale)), max(2, 2 * round(height * scale / 2))
    small = np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BOX), np.uint8)
    rows = []
    for upper, lower in zip(small[0::2].tolist(), small[1::2].tolist(), strict=True):
        line, previous = [], None
        for colours in zip(upper, lower, strict=True):
            if colours != previous:
                (r, g, b), (r2, g2, b2) = colours
                line.append(f"\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m")
                previous = colours
            line.append("▀")
        rows.append("".join(line) + _RESET)
    return "\n".join(rows)


class Screen:
    """Shows frames, as text or RGB arrays, in place and ``fps`` times per second.

    If the output is not a terminal, frames are printed one below the other without delay.
    """

    def __init__(self, fps: float) -> None:
        self._seconds_per_frame = 1 / fps
        self._is_terminal = sys.stdout.isatty()
        self._next_frame_time = 0.0
        if self._is_terminal:
            print(_CLEAR, end="")

    def show(self, frame: str | npt.NDArray[np.uint8], caption: str) -> None:
        """Show a frame with a line of text below it."""
        columns, lines = shutil.get_terminal_size()
        frame_lines = max(2, lines - 2)
        text = frame if isinstance(frame, str) else half_blocks(frame, columns, frame_lines)
        if not self._is_terminal:
            print(f"{text}\n{caption}\n", flush=True)
            return
        screen = [*text.splitlines()[:frame_lines], f"{_RESET}{caption}"]
        time.sleep(max(0.0, self._next_frame_time - time.monotonic()))
        self._next_frame_time = time.monotonic() + self._seconds_per_frame
        try:
            print(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in screen) + _CLEAR_REST, end="", flush=True)
        except KeyboardInterrupt:
            print(_RESET, flush=True)
            raise
