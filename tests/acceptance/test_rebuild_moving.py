"""Redis: two copies change places entity by entity while their pipeline goes on writing both."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from stack import Server
from tests.support.copies import Shop, kept, rebuilt
from tests.support.running import wait_for

ROWS = 6_000
SOON_S = 2.0  # a change is in the view meanwhile; the move itself takes longer
pytestmark = [pytest.mark.redis, pytest.mark.mysql]


class _Writer:
    """Changes rows of all kinds until it is told to stop, and counts those made while copies were moved."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self.while_moving = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        chance, connection = random.Random(5), self._shop.connect()
        cursor = connection.cursor()
        count = 0
        while not self._is_over.is_set():
            count += 1
            one = chance.randrange(ROWS + 500)
            kind = chance.randrange(4)
            if kind == 0:
                cursor.execute(f"DELETE FROM shop.user WHERE id = {one}")
            else:
                cursor.execute(f"REPLACE INTO shop.user (id, email) VALUES ({one}, 'w{count}')")
            if count % 20 == 0:
                cursor.execute("SELECT COUNT(*) FROM viewtail.rebuild WHERE stage = 'moving'")
                self.while_moving += 20 * cursor.fetchone()[0]
        connection.close()


def test_changes_go_on_while_keys_are_moved(
    mysql_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Forward and back again; readers have each change soon, and both copies are right in the end."""
    shop = Shop(mysql_server, ROWS)
    with kept(request, "redis", shop, tmp_path) as (place, run):
        read = place.one(ROWS + 1_000)
        for number, options in enumerate(((), ("--rollback",))):
            with _Writer(shop) as writer:
                command = run.background("rebuild", "people", *options)
                longest = 0.0
                while command.poll() is None:
                    email, began = f"probe {number} {time.monotonic()}", time.monotonic()
                    shop.execute(f"REPLACE INTO shop.user (id, email) VALUES ({ROWS + 1_000}, '{email}')")
                    wait_for("the change is in the view", lambda: read() == email)  # noqa: B023
                    longest = max(longest, time.monotonic() - began)
            assert command.returncode == 0, command.communicate()
            assert writer.while_moving > 0, "the copies were moved while rows changed"
            assert longest < SOON_S
            wait_for("the live copy is right", lambda: place.shown() == shop.wanted())
            beside = 1 if not number else 2
            wait_for("so is the former one", lambda: place.copy(beside) == shop.wanted())  # noqa: B023
        rebuilt(run)
