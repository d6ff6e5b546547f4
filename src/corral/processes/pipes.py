"""Long messages through a worker's pipe, with a limit to how long the other end may stand still.

``Connection`` waits for ever in the middle of a message if the other process is stopped there. Short messages are
written at once and arrive at once, so they are left to it; and so is Windows, whose pipes are of another kind.
"""

from __future__ import annotations

import math
import os
import select
import struct
import sys
from multiprocessing.connection import Connection

__all__ = ["PeerStalled", "receive", "send"]

_SHORT = 16_384  # what Connection writes in one piece
_CHUNK = 65_536


class PeerStalled(Exception):
    """The other end neither reads nor writes."""


def send(pipe: Connection, message: bytes, seconds: float) -> None:
    """Send a message; ``seconds`` without any progress are too long."""
    if sys.platform == "win32" or len(message) <= _SHORT:
        pipe.send_bytes(message)
        return
    size = len(message)
    header = struct.pack("!i", size) if size < 2**31 else struct.pack("!iQ", -1, size)  # as Connection has it
    rest = memoryview(header + message)
    while rest:
        _wait(pipe, select.POLLOUT, seconds)
        rest = rest[os.write(pipe.fileno(), rest[:_SHORT]) :]


def receive(pipe: Connection, seconds: float) -> bytes:
    """Receive a message of which something is there already."""
    if sys.platform == "win32":
        return pipe.recv_bytes()
    (size,) = struct.unpack("!i", _read(pipe, 4, seconds))
    if size == -1:
        (size,) = struct.unpack("!Q", _read(pipe, 8, seconds))
    return _read(pipe, size, seconds)


def _read(pipe: Connection, size: int, seconds: float) -> bytes:
    read = bytearray()
    while len(read) < size:
        if size > _SHORT:
            _wait(pipe, select.POLLIN, seconds)
        some = os.read(pipe.fileno(), min(size - len(read), _CHUNK))
        if not some:
            raise EOFError
        read += some
    return bytes(read)


def _wait(pipe: Connection, what: int, seconds: float) -> None:
    """Second by second, so that one in which we were stopped ourselves counts no more than any other."""
    poll = select.poll()
    poll.register(pipe.fileno(), what)
    for _ in range(max(1, math.ceil(min(seconds, 1e6)))):
        if poll.poll(1000):
            return
    raise PeerStalled
