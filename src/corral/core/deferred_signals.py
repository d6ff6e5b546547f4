"""Blocks of code in which signals must be treated with care, because C++ code is running."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["deferred_signals", "remembered_signals"]


@contextlib.contextmanager
def remembered_signals() -> Iterator[None]:
    """If a signal's handler raises in this block, raise that, whatever other code makes of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: list[BaseException] = []

    def remember(number: int, frame: FrameType | None) -> None:
        try:
            handlers[number](number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    current = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    handlers: dict[int, Any] = {number: handler for number, handler in current.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, remember)
    try:
        yield
    except BaseException:
        if raised:
            raise raised[0] from None
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C wait until the end of this block; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}  # not those ignored
    for number in handlers:
        signal.signal(number, record)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
