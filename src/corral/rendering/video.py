"""Frames to a GIF or an MP4, one by one. The only importer of ``imageio_ffmpeg``, which brings its own encoder."""

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
    """Refuse early what could not be written."""
    if path.suffix not in (".gif", ".mp4", ".png"):
        raise UsageError(f"--save {str(path)!r}: should end in .gif, .mp4 or .png")
    if not is_directory(path.parent):
        raise UsageError(f"--save {str(path)!r}: there is no directory {str(path.parent)!r}")
    if path.suffix == ".mp4":
        _ffmpeg()


def save_video(path: Path, frames: Iterable[Frame], fps: float) -> None:
    """Write RGB frames [H, W, 3], as they come."""
    coming = iter(frames)
    first = next(coming)
    if path.suffix == ".gif":
        _save_gif(path, first, coming, fps)
        return
    # H.264 with chroma at half size needs even sides
    height, width = first.shape[0] + first.shape[0] % 2, first.shape[1] + first.shape[1] % 2
    writer = _ffmpeg().write_frames(str(path), (width, height), fps=fps, macro_block_size=1)
    writer.send(None)
    for frame in itertools.chain([first], coming):
        even = np.pad(frame, ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0)), mode="edge")
        writer.send(np.ascontiguousarray(even))
    writer.close()


def _save_gif(path: Path, first: Frame, rest: Iterator[Frame], fps: float) -> None:
    """With the colours of each frame its own, and only what changes written."""
    from PIL import Image

    images = (Image.fromarray(frame).quantize(dither=Image.Dither.NONE) for frame in itertools.chain([first], rest))
    next(images).save(path, save_all=True, append_images=images, duration=round(1000 / fps), loop=0, optimize=True)


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingPackage("saving .mp4 needs an encoder: pip install imageio-ffmpeg; .gif does not") from None
    return imageio_ffmpeg
