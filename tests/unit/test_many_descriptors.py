"""A process may have more files open than select() can name."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ingest.binlog.connection import is_readable

MOST_OF_SELECT = 1024


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection whose descriptors select() refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * MOST_OF_SELECT)), hard))
    with ExitStack() as opened:
        while True:
            descriptor = os.open(os.devnull, os.O_RDONLY)
            opened.callback(os.close, descriptor)
            if descriptor >= MOST_OF_SELECT:
                break
        ours, theirs = socket.socketpair()
        opened.enter_context(ours)
        opened.enter_context(theirs)
        yield ours, theirs
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_end_of_the_stream_is_seen_whatever_number_its_descriptor_has(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    assert ours.fileno() >= MOST_OF_SELECT
    assert not is_readable(ours)
    theirs.sendall(b"an event")
    assert is_readable(ours)
    ours.recv(100)
    assert not is_readable(ours)
    theirs.close()
    assert is_readable(ours), "its end is to be read"
