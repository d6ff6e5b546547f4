"""Ctrl-C and SIGTERM during a run: a signal interrupts at once what can be discarded, and waits for everything else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

__all__ = ["Interrupted", "SignalHandler"]


class Interrupted(KeyboardInterrupt):
    """Raised when a signal ends the run. It is a KeyboardInterrupt, so that scripts treat it as one."""

    run_dir: Path | None = None
    """The directory of the interrupted run, with a complete checkpoint; None if no run had started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number


signals_before_start: list[int] = []
"""Signals that arrived before a run was started. They are kept, because an import may have caught what they raised."""


class SignalHandler:
    """Handles SIGINT and SIGTERM during a run; does nothing outside the main thread."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._may_raise = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous_handlers[number] = signal.signal(number, self._handle)
            if signals_before_start:
                self._received = signals_before_start.pop()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let signals raise ``Interrupted`` at once in this block. Elsewhere they wait until the next such block."""
        self.raise_if_received()
        outer, self._may_raise = self._may_raise, True
        try:
            self.raise_if_received()  # a signal may have arrived between the two lines above
            yield
        finally:
            self._may_raise = outer

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None and number == signal.SIGINT:
            os._exit(128 + number)  # the second Ctrl-C ends the process at once; workers notice that their parent died
        self._received = number
        if self._may_raise:
            self._may_raise = False
            raise Interrupted(number)

    def raise_if_received(self) -> None:
        """Raise ``Interrupted`` if a signal has arrived that could not raise at once."""
        if self._received is not None:
            self._may_raise = False
            raise Interrupted(self._received)
