"""Ctrl-C and SIGTERM: they cut short what can be thrown away, and wait for what cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

__all__ = ["Interrupted", "Interrupts"]


class Interrupted(KeyboardInterrupt):
    """A signal asked the run to end. A KeyboardInterrupt, so that scripts treat it as one; the name tells which."""

    run_dir: Path | None = None
    """The run that was stopped, with its complete checkpoint; None if none had begun."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number


signals_before_start: list[int] = []
"""Signals that came before a run was under way: somebody may have swallowed what they raised."""


class Interrupts:
    """Handles SIGINT and SIGTERM while a run is under way; inactive outside the main thread."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._allowed = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
            if signals_before_start:
                self._received = signals_before_start.pop()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Within this block a signal raises at once: what the block makes can be thrown away."""
        self.raise_if_received()
        before, self._allowed = self._allowed, True
        try:
            self.raise_if_received()  # it may have come between the two lines above
            yield
        finally:
            self._allowed = before

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None and number == signal.SIGINT:
            os._exit(128 + number)  # asked twice: at once. Workers follow their parent by themselves.
        self._received = number
        if self._allowed:
            self._allowed = False
            raise Interrupted(number)

    def raise_if_received(self) -> None:
        """Raise what a signal that had to wait asked for."""
        if self._received is not None:
            self._allowed = False
            raise Interrupted(self._received)
