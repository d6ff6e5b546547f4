"""Messages through pipes: the format of ``multiprocessing.Connection``, with a time-out for a peer that stalls."""

import threading
import time
from multiprocessing import Pipe

import pytest

from corral.processes import pipes


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 3_000_000])
@pytest.mark.parametrize("corral_side", ["sends", "receives", "both"])
def test_messages_have_the_format_of_multiprocessing_connections(size, corral_side):
    sender, receiver = Pipe()
    message = bytes(range(256)) * (size // 256 + 1)
    message = message[:size]
    uses_connection = corral_side == "receives"
    send = (lambda: sender.send_bytes(message)) if uses_connection else (lambda: pipes.send(sender, message, 60))
    thread = threading.Thread(target=send)
    thread.start()
    assert (receiver.recv_bytes() if corral_side == "sends" else pipes.receive(receiver, 60)) == message
    thread.join()
    sender.close(), receiver.close()


def test_a_peer_that_stops_reading_or_writing_raises_peer_stalled():
    sender, receiver = Pipe()
    started = time.monotonic()
    with pytest.raises(pipes.PeerStalled):
        pipes.send(sender, bytes(10_000_000), 1)
    with pytest.raises(pipes.PeerStalled):
        pipes.receive(receiver, 1)  # only a part of the message was sent
    assert time.monotonic() - started < 60
    sender.close()
    with pytest.raises(EOFError):
        pipes.receive(receiver, 1)
    receiver.close()
