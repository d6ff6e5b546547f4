"""Writing of frames to a GIF or MP4 file. Only this module imports ``imageio_ffmpeg``, which contains an encoder."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import MissingPackage, UsageError
from corral.core.files import is_directory

__all__ = ["check_video", "save_video"]

Frame = npt.NDArray[np.uint8]


def check_video(path: Path) -> None:
    """Raise a UsageError if a video or image cannot be written to ``path``."""
    if path.suffix not in (".gif", ".mp4", ".png"):
        raise UsageError(f"--save {str(path)!r}: should end in .gif, .mp4 or .png")
    if not is_directory(path.parent):
        raise UsageError(f"--save {str(path)!r}: there is no directory {str(path.parent)!r}")
    if path.suffix == ".mp4":
        _ffmpeg()


def save_video(path: Path, frames: Iterable[Frame], fps: float) -> None:
    """Write RGB frames [H, W, 3] to a file one by one, so that they need not fit in memory."""
    remaining = iter(frames)
    first = next(remaining)
    if path.suffix == ".gif":
        _save_gif(path, first, remaining, fps)
        return
    # H.264 with chroma subsampling needs an even width and height.
    height, width = first.shape[0] + first.shape[0] % 2, first.shape[1] + first.shape[1] % 2
    writer = _ffmpeg().write_frames(str(path), (width, height), fps=fps, macro_block_size=1)
    writer.send(None)
    for frame in itertools.chain([first], remaining):
        padded = np.pad(frame, ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0)), mode="edge")
        writer.send(np.ascontiguousarray(padded))
    writer.close()


def _save_gif(path: Path, first: Frame, remaining: Iterator[Frame], fps: float) -> None:
    """Write a GIF in which each frame has its own palette, and only changes between frames are stored."""
    from PIL import Image

    frames = itertools.chain([first], remaining)
    images = (Image.fromarray(frame).quantize(dither=Image.Dither.NONE) for frame in frames)
    next(images).save(path, save_all=True, append_images=images, duration=round(1000 / fps), loop=0, optimize=True)


def _ffmpeg() -> Any:
    """Return the module ``imageio_ffmpeg``; raise a MissingPackage if it is not installed."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingPackage("saving .mp4 needs an encoder: pip install imageio-ffmpeg; .gif does not") from None
    return imageio_ffmpeg
