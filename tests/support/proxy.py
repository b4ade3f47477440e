"""A TCP proxy between a client and a server that harms what the server sends: cut, held, lost, doubled, flipped bytes.

`harm_next` changes the next bytes that come from the server, whatever connection they are of, so that a test says what
happens to the bytes of the next change, once the dump is quiet.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

Harm = Callable[[bytes], tuple[bytes, bool]]  # what is passed on, and whether the connection goes on behind it

_PIECE_BYTES = 1 << 16


def flip(at: int, bits: int = 1) -> Harm:
    """Flip bits of the byte at `at`, or of the last one before it."""

    def harm(data: bytes) -> tuple[bytes, bool]:
        place = min(at, len(data) - 1)
        return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :], True

    return harm


def lose(at: int, count: int) -> Harm:
    """Leave bytes out, and go on behind them."""
    return lambda data: (data[:at] + data[at + count :], True)


def truncate(at: int) -> Harm:
    """The connection ends there."""
    return lambda data: (data[:at], False)


def double(data: bytes) -> tuple[bytes, bool]:
    """Everything twice."""
    return data + data, True


class Proxy:
    """Listens on `port`; a context manager. Bytes to the server pass as they are."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.harmed = 0
        self._harm: Harm | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flows.set()
        self.cut()
        self._thread.join(5)

    def lead_to(self, server_port: int) -> None:
        """Another server is behind the address from now on; connections to the old one are cut."""
        self._server_port = server_port
        self.cut()

    def lead_new_to(self, server_port: int) -> None:
        """Another server is behind the address for new connections; those to the old one stay."""
        self._server_port = server_port

    def harm_next(self, harm: Harm) -> None:
        """What the server sends next goes through `harm`."""
        with self._lock:
            self._harm = harm

    def hold(self) -> None:
        """Nothing comes from the server any more, though every connection stays open."""
        self._flows.clear()

    def release(self) -> None:
        """What was held comes, late."""
        self._flows.set()

    def cut(self) -> None:
        """Cut every connection; new ones are taken."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, giver: socket.socket, taker: socket.socket, is_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := giver.recv(_PIECE_BYTES):
                if is_server:
                    self._flows.wait()
                    harmed, goes_on = self._harmed(data)
                    taker.sendall(harmed)
                    if not goes_on:
                        break
                else:
                    taker.sendall(data)
        for one in (giver, taker):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _harmed(self, data: bytes) -> tuple[bytes, bool]:
        with self._lock:
            harm, self._harm = self._harm, None
        if harm is None:
            return data, True
        self.harmed += 1
        return harm(data)
