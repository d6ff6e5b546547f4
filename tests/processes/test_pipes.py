"""Long messages: as Connection writes and reads them, but never for ever."""

import threading
import time
from multiprocessing import Pipe

import pytest

from corral.processes import pipes


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 3_000_000])
@pytest.mark.parametrize("ours", ["sends", "receives", "both"])
def test_messages_are_those_of_a_connection(size, ours):
    one, two = Pipe()
    message = bytes(range(256)) * (size // 256 + 1)
    message = message[:size]
    write = (lambda: one.send_bytes(message)) if ours == "receives" else (lambda: pipes.send(one, message, 60))
    thread = threading.Thread(target=write)
    thread.start()
    assert (two.recv_bytes() if ours == "sends" else pipes.receive(two, 60)) == message
    thread.join()
    one.close(), two.close()


def test_an_end_that_stands_still_is_noticed_in_either_direction():
    one, two = Pipe()
    started = time.monotonic()
    with pytest.raises(pipes.PeerStalled):
        pipes.send(one, bytes(10_000_000), 1)
    with pytest.raises(pipes.PeerStalled):
        pipes.receive(two, 1)  # half of it is there
    assert time.monotonic() - started < 60
    one.close()
    with pytest.raises(EOFError):
        pipes.receive(two, 1)
    two.close()
