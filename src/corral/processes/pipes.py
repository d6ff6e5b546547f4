"""Send and receive long messages through a worker's pipe, with a time-out for a peer that makes no progress.

``Connection`` waits for ever in the middle of a message if the other process is stopped there. Short messages are
written in one piece, so ``Connection`` sends them; on Windows, whose pipes are different, it does everything.
"""

from __future__ import annotations

import math
import os
import select
import struct
import sys
from multiprocessing.connection import Connection

__all__ = ["PeerStalled", "receive", "send"]

_SHORT = 16_384  # bytes that ``Connection`` writes in one piece
_CHUNK = 65_536  # bytes read at once


class PeerStalled(Exception):
    """The process at the other end of a pipe neither reads nor writes."""


def send(pipe: Connection, message: bytes, seconds: float) -> None:
    """Send a message; raise ``PeerStalled`` after ``seconds`` without any progress."""
    if sys.platform == "win32" or len(message) <= _SHORT:
        pipe.send_bytes(message)
        return
    size = len(message)
    header = struct.pack("!i", size) if size < 2**31 else struct.pack("!iQ", -1, size)  # the format of ``Connection``
    unsent = memoryview(header + message)
    while unsent:
        _wait(pipe, select.POLLOUT, seconds)
        unsent = unsent[os.write(pipe.fileno(), unsent[:_SHORT]) :]


def receive(pipe: Connection, seconds: float) -> bytes:
    """Return a message whose first bytes have arrived; raise ``PeerStalled`` after ``seconds`` without progress."""
    if sys.platform == "win32":
        return pipe.recv_bytes()
    (size,) = struct.unpack("!i", _read(pipe, 4, seconds))
    if size == -1:
        (size,) = struct.unpack("!Q", _read(pipe, 8, seconds))
    return _read(pipe, size, seconds)


def _read(pipe: Connection, size: int, seconds: float) -> bytes:
    """Return the next ``size`` bytes."""
    received = bytearray()
    while len(received) < size:
        if size > _SHORT:
            _wait(pipe, select.POLLIN, seconds)
        chunk = os.read(pipe.fileno(), min(size - len(received), _CHUNK))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _wait(pipe: Connection, event: int, seconds: float) -> None:
    """Wait until the pipe is ready for ``event``; raise ``PeerStalled`` after ``seconds``.

    It waits second by second, so that a time during which this process was stopped counts as one second at most.
    """
    poll = select.poll()
    poll.register(pipe.fileno(), event)
    for _ in range(max(1, math.ceil(min(seconds, 1e6)))):
        if poll.poll(1000):
            return
    raise PeerStalled
