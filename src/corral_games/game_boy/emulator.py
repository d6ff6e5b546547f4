"""A Game Boy with a ROM, emulated by PyBoy. No other module imports PyBoy."""

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

__all__ = ["BUTTONS", "Emulator", "Rom", "read_limited", "read_rom"]

BUTTONS = ("up", "down", "left", "right", "a", "b", "start", "select")
HEADER_END, BANK_BYTES, MAX_ROM_BYTES = 0x150, 0x4000, 8 << 20
MAX_BOOT_FRAMES = 1000
"""More frames than any boot ROM takes."""
_SILENT = 5
"""A log level above all of PyBoy's, of which INFO (4) is the highest."""
_LCDC, _STAT, _LYC = 0xFF40, 0xFF41, 0xFF45
"""Registers of the LCD: control, status, and the row with which the current row is compared."""
_LCD_ENABLED = 0x80
"""The bit of the LCDC register that is set while the LCD is on."""


@dataclass(frozen=True)
class Rom:
    """The content of a cartridge."""

    digest: str
    """SHA-256 of the data."""
    data: bytes = field(compare=False, repr=False)
    path: str = field(compare=False)

    @property
    def title(self) -> str:
        """The title of the game in the header."""
        end = 0x143 if self.is_color else 0x144
        return self.data[0x134:end].split(b"\0")[0].decode("ascii", "replace").strip()

    @property
    def is_color(self) -> bool:
        """Whether the game is made for the Game Boy Color."""
        return bool(self.data[0x143] & 0x80)


def read_rom(path: str | os.PathLike[str]) -> Rom:
    """Read a ROM from a file; raise a UsageError if it is not a Game Boy ROM, or is damaged or incomplete."""
    name = str(path)
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"ROM {path!r:.80} should be the path of a file")
    try:
        if Path(path).is_dir():
            raise UsageError(f"ROM {name!r} is a directory; name the .gb file in it")
        data = read_limited(path, MAX_ROM_BYTES)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read ROM {name!r}: {getattr(error, 'strerror', None) or error}") from None
    if not data:
        raise UsageError(f"ROM {name!r} is empty")
    if len(data) < HEADER_END:
        raise UsageError(f"{name!r} is not a Game Boy ROM: it has {len(data)} bytes, the header alone {HEADER_END}")
    if data[0x14D] != _header_checksum(data):
        raise UsageError(f"{name!r} is not a Game Boy ROM, or is damaged: the checksum of its header is wrong")
    expected_bytes = 2 * BANK_BYTES << data[0x148] if data[0x148] <= 8 else 0
    if expected_bytes and len(data) < expected_bytes:
        raise UsageError(f"ROM {name!r} is incomplete: it has {len(data):,} bytes, its header says {expected_bytes:,}")
    return Rom(digest=hashlib.sha256(data).hexdigest(), data=data, path=name)


def read_limited(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the content of a file; raise a ValueError if it is not a regular file or has more than ``max_bytes``."""
    size = Path(path).stat().st_size
    if not Path(path).is_file():  # reading a device may never end
        raise ValueError("it is not a regular file")
    if size > max_bytes:
        raise ValueError(f"it has {size:,} bytes, expected {max_bytes:,} at most")
    return Path(path).read_bytes()


class Emulator:
    """Runs a ROM frame by frame, from the end of the boot ROM on. It reads and writes no files.

    A game must continue from a loaded state exactly as it would have continued, but PyBoy's states lack three things:
    the line counter of the window (``ly_window``), and two flags of the LCD (``lyc_changed_while_disabled`` and
    ``stat_mode_override``). The counter has the same value at the end of every frame once a frame has been drawn, so
    every instance draws the frames of the boot ROM. ``_reset_lcd_flags`` gives the flags the same values after every
    frame and every load.
    """

    def __init__(self, rom: Rom) -> None:
        make, self.version = _import_pyboy(), importlib.metadata.version("pyboy")
        file = io.BytesIO(rom.data)  # not a path, so that PyBoy looks for no .ram, .rtc or .state file beside the ROM
        self._pyboy: Any = None
        self._interrupts: list[BaseException] = []
        try:
            pyboy = make(file, window="null", sound_emulated=False, no_input=True, log_level=_SILENT)
        except Exception as error:  # PyBoy raises many kinds of exceptions for cartridges that it does not support
            raise UsageError(f"PyBoy cannot run ROM {rom.path!r}: {type(error).__name__}: {error}") from None
        self._pyboy = pyboy
        self.memory = pyboy.memory
        """The memory as the game sees it: a byte by address, or a list of bytes by slice."""
        self.screen: npt.NDArray[np.uint8] = pyboy.screen.ndarray
        """The latest frame that was drawn [144, 160, RGBA]; a view that changes."""
        self._tick, self._press, self._release = pyboy.tick, pyboy.button_press, pyboy.button_release
        pyboy.set_emulation_speed(0)  # no limit
        if _has_clock(rom.data):
            pyboy.rtc_lock_experimental(True)  # otherwise the game would depend on the time of day
        self._boot(rom)

    def press(self, button: str) -> None:
        """Press a button and hold it, from the next frame on."""
        self._press(button)

    def release(self, button: str) -> None:
        """Release a button, from the next frame on."""
        self._release(button)

    def run(self, frames: int, draw: bool = False) -> None:
        """Emulate frames; with ``draw``, draw the last of them on ``screen``."""
        hooks_before = sys.unraisablehook, sys.excepthook
        sys.unraisablehook, sys.excepthook = self._keep_interrupt, _print_unless_interrupt
        try:
            self._tick(frames, draw, False)
        finally:
            sys.unraisablehook, sys.excepthook = hooks_before
        self._reset_lcd_flags()
        if self._interrupts:
            raise self._interrupts.pop()

    def save(self) -> bytes:
        """Return the state of the machine at the end of a frame."""
        target = io.BytesIO()
        self._pyboy.save_state(target)
        return target.getvalue()

    def load(self, state: bytes) -> None:
        """Restore a state that an emulator with the same ROM has saved. Other bytes can crash the process."""
        memory = self.memory
        memory[_LCDC] = memory[_LCDC] | _LCD_ENABLED  # clears the first of the two flags, and may set the second
        memory[_STAT]  # clears the second
        self._pyboy.load_state(io.BytesIO(state))
        self._reset_lcd_flags()

    def close(self) -> None:
        """Stop the emulator without saving anything."""
        if self._pyboy is not None:
            self._pyboy.stop(save=False)

    def _keep_interrupt(self, unraisable: Any) -> None:
        """Keep a KeyboardInterrupt, so that ``run`` can raise it.

        PyBoy prints and drops exceptions that a signal handler raises while it emulates, such as the one of Ctrl-C.
        """
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._interrupts.append(unraisable.exc_value)
        else:
            sys.__unraisablehook__(unraisable)

    def _reset_lcd_flags(self) -> None:
        """Give the flags that a state does not contain the same values in every instance."""
        memory = self.memory
        if not memory[_LCDC] & _LCD_ENABLED:
            memory[_LYC] = memory[_LYC]  # sets lyc_changed_while_disabled
        memory[_STAT]  # reading this register clears stat_mode_override

    def _boot(self, rom: Rom) -> None:
        for _ in range(MAX_BOOT_FRAMES):
            self.run(1, draw=True)
            if bytes(self.memory[0:0x100]) == rom.data[:0x100]:  # the boot ROM no longer covers the start of the game
                return
        raise UsageError(f"ROM {rom.path!r} does not start: the boot ROM has not ended after {MAX_BOOT_FRAMES} frames")


def _print_unless_interrupt(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _import_pyboy() -> Any:
    """Return the class ``PyBoy``; raise a MissingPackage if it cannot be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySDL2 warns about the binaries that it uses
        try:
            from pyboy import PyBoy
        except ImportError as error:
            is_missing = isinstance(error, ModuleNotFoundError) and error.name in (None, "pyboy")
            reason = "" if is_missing else f", and the one that is installed fails ({error})"
            raise MissingPackage(f"Game Boy games need PyBoy{reason}: pip install 'corral[gameboy]'") from None
    return PyBoy


def _header_checksum(data: bytes) -> int:
    return -sum(byte + 1 for byte in data[0x134:0x14D]) & 0xFF


def _has_clock(data: bytes) -> bool:
    """Return whether the header says that the cartridge has a real-time clock (MBC3 with a timer)."""
    return data[0x147] in (0x0F, 0x10)
