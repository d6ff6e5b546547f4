"""Frames to a GIF or an MP4. The only importer of ``imageio_ffmpeg``, which brings its own encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import MissingPackage, UsageError

__all__ = ["check_video", "save_video"]

Frame = npt.NDArray[np.uint8]


def check_video(path: Path) -> None:
    """Refuse early what ``save_video`` could not write."""
    if path.suffix not in (".gif", ".mp4"):
        raise UsageError(f"--save {str(path)!r}: should end in .gif or .mp4")
    if not path.parent.is_dir():
        raise UsageError(f"--save {str(path)!r}: there is no directory {str(path.parent)!r}")
    if path.suffix == ".mp4":
        _ffmpeg()


def save_video(path: Path, frames: Sequence[Frame], fps: float) -> None:
    """Write RGB frames [H, W, 3]."""
    if path.suffix == ".gif":
        from PIL import Image

        images = [Image.fromarray(frame) for frame in frames]
        images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0, optimize=True)
        return
    # H.264 with chroma at half size needs even sides
    even = [np.pad(f, ((0, f.shape[0] % 2), (0, f.shape[1] % 2), (0, 0)), mode="edge") for f in frames]
    height, width = even[0].shape[:2]
    writer = _ffmpeg().write_frames(str(path), (width, height), fps=fps, macro_block_size=1)
    writer.send(None)
    for frame in even:
        writer.send(np.ascontiguousarray(frame))
    writer.close()


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise MissingPackage("saving .mp4 needs an encoder: pip install imageio-ffmpeg; .gif does not") from None
    return imageio_ffmpeg
