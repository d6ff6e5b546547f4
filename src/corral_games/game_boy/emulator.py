"""A Game Boy with a cartridge in it. The only module that knows PyBoy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.errors import MissingPackage, UsageError

__all__ = ["BUTTONS", "Emulator", "Rom", "read_file", "read_rom"]

BUTTONS = ("up", "down", "left", "right", "a", "b", "start", "select")
HEADER, BANK, LARGEST = 0x150, 0x4000, 8 << 20
BOOT_FRAMES = 1000
"""No boot ROM takes as long."""
_SILENT = 5
"""PyBoy's levels end with INFO, which is 4."""
_LCD, _STATUS, _COMPARE, _ON = 0xFF40, 0xFF41, 0xFF45, 0x80


@dataclass(frozen=True)
class Rom:
    """What is on a cartridge."""

    digest: str
    data: bytes = field(compare=False, repr=False)
    path: str = field(compare=False)

    @property
    def title(self) -> str:
        """What the header calls the game."""
        end = 0x143 if self.in_colour else 0x144
        return self.data[0x134:end].split(b"\0")[0].decode("ascii", "replace").strip()

    @property
    def in_colour(self) -> bool:
        """Whether it is made for the Game Boy Color."""
        return bool(self.data[0x143] & 0x80)


def read_rom(path: str | os.PathLike[str]) -> Rom:
    """The ROM in a file; a UsageError if it is none, or not all of it is there."""
    name = str(path)
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"ROM {path!r:.80} should be the path of a file")
    try:
        if Path(path).is_dir():
            raise UsageError(f"ROM {name!r} is a directory; name the .gb file in it")
        data = read_file(path, LARGEST)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read ROM {name!r}: {getattr(error, 'strerror', None) or error}") from None
    if not data:
        raise UsageError(f"ROM {name!r} is empty")
    if len(data) < HEADER:
        raise UsageError(f"{name!r} is no Game Boy ROM: {len(data)} bytes are too few, the header alone has {HEADER}")
    if data[0x14D] != _checksum(data):
        raise UsageError(f"{name!r} is no Game Boy ROM, or is damaged: the checksum of its header is wrong")
    whole = 2 * BANK << data[0x148] if data[0x148] <= 8 else 0
    if whole and len(data) < whole:
        raise UsageError(f"ROM {name!r} is cut off: it has {len(data):,} bytes, its header says {whole:,}")
    return Rom(hashlib.sha256(data).hexdigest(), data, name)


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """What is in a file; a ValueError if that is more than so many bytes, or if it is no file."""
    size = Path(path).stat().st_size
    if not Path(path).is_file():  # a device may have no end
        raise ValueError("it is no file")
    if size > most:
        raise ValueError(f"it has {size:,} bytes, expected {most:,} at most")
    return Path(path).read_bytes()


class Emulator:
    """Runs a ROM frame by frame, from where the boot ROM hands over. It reads and writes no files.

    PyBoy's save-states lack the row at which the window's picture goes on: every instance draws the frames of the boot
    ROM, so that it is the same in all of them whenever a frame ends. They lack two flags of the LCD too: ``_settle``
    makes them the same after a frame as after loading a state.
    """

    def __init__(self, rom: Rom) -> None:
        make, self.version = _pyboy(), importlib.metadata.version("pyboy")
        file = io.BytesIO(rom.data)  # which has no neighbours: no .ram, .rtc or .state is looked for
        self._boy: Any = None
        self._kept: list[BaseException] = []
        try:
            boy = make(file, window="null", sound_emulated=False, no_input=True, log_level=_SILENT)
        except Exception as error:  # whatever a strange cartridge makes it raise
            raise UsageError(f"PyBoy cannot run ROM {rom.path!r}: {type(error).__name__}: {error}") from None
        self._boy = boy
        self.memory = boy.memory
        """Bytes by address, or slices of them: what the game sees."""
        self.screen: npt.NDArray[np.uint8] = boy.screen.ndarray
        """The latest frame that was drawn [144, 160, RGBA]; a view that changes."""
        self._tick, self._press, self._release = boy.tick, boy.button_press, boy.button_release
        boy.set_emulation_speed(0)
        if _has_clock(rom.data):
            boy.rtc_lock_experimental(True)  # else the time of day would decide how a game goes on
        self._boot(rom)

    def press(self, button: str) -> None:
        """Hold a button down from the next frame on."""
        self._press(button)

    def release(self, button: str) -> None:
        """Let a button go from the next frame on."""
        self._release(button)

    def run(self, frames: int, draw: bool = False) -> None:
        """Let frames pass; ``draw`` the last of them."""
        before = sys.unraisablehook, sys.excepthook
        sys.unraisablehook, sys.excepthook = self._keep, _hush
        try:
            self._tick(frames, draw, False)
        finally:
            sys.unraisablehook, sys.excepthook = before
        self._settle()
        if self._kept:
            raise self._kept.pop()

    def save(self) -> bytes:
        """The whole state, at the end of a frame."""
        target = io.BytesIO()
        self._boy.save_state(target)
        return target.getvalue()

    def load(self, state: bytes) -> None:
        """Go to a state that an emulator with the same ROM has saved. Other bytes may crash the process."""
        memory = self.memory
        memory[_LCD] = memory[_LCD] | _ON
        memory[_STATUS]
        self._boy.load_state(io.BytesIO(state))
        self._settle()

    def close(self) -> None:
        """Switch it off; nothing is saved."""
        if self._boy is not None:
            self._boy.stop(save=False)

    def _keep(self, lost: Any) -> None:
        """PyBoy prints and drops what a signal handler raises while it is at work, as at Ctrl-C; we raise it again."""
        if isinstance(lost.exc_value, KeyboardInterrupt):
            self._kept.append(lost.exc_value)
        else:
            sys.__unraisablehook__(lost)

    def _settle(self) -> None:
        """Bring what a state does not hold to what it always is: compared anew while the LCD is off, and read."""
        memory = self.memory
        if not memory[_LCD] & _ON:
            memory[_COMPARE] = memory[_COMPARE]
        memory[_STATUS]

    def _boot(self, rom: Rom) -> None:
        for _ in range(BOOT_FRAMES):
            self.run(1, draw=True)
            if bytes(self.memory[0:0x100]) == rom.data[:0x100]:  # the boot ROM lies no longer above it
                return
        raise UsageError(f"ROM {rom.path!r} does not start: the boot ROM has not ended after {BOOT_FRAMES} frames")


def _hush(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _pyboy() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySDL2 tells which binaries it uses
        try:
            from pyboy import PyBoy
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name in (None, "pyboy")
            why = "" if missing else f", and the one that is installed fails ({error})"
            raise MissingPackage(f"Game Boy games need PyBoy{why}: pip install 'corral[gameboy]'") from None
    return PyBoy


def _checksum(data: bytes) -> int:
    return -sum(byte + 1 for byte in data[0x134:0x14D]) & 0xFF


def _has_clock(data: bytes) -> bool:
    return data[0x147] in (0x0F, 0x10)
