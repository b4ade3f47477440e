"""Threads that change tables at random until they are stopped, whatever happens to the server meanwhile."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import pymysql


class RandomWriters(ABC):
    """Each thread has a seed of its own. A context manager; or `start` and `stop`."""

    def __init__(self, connect: Callable[[], Any], seed: int, threads: int) -> None:
        self._connect = connect
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(seed * 100 + at), at)) for at in range(threads)
        ]
        self.committed = 0

    @abstractmethod
    def _change(self, chance: random.Random, execute: Callable[..., Any], at: int) -> None:
        """Execute one change, or a few, in the thread of that number."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _write(self, chance: random.Random, at: int) -> None:
        connection: Any = None
        while not self._stop.is_set():
            try:
                if connection is None:
                    connection = self._connect()
                self._transact(connection, chance, at)
            except (pymysql.err.MySQLError, OSError):  # a deadlock, or the server was killed: on with the next
                connection = self._again(connection)
        if connection is not None:
            connection.close()

    def _transact(self, connection: Any, chance: random.Random, at: int) -> None:
        with connection.cursor() as cursor:
            for _ in range(chance.choice((1, 1, 1, 2, 5))):
                self._change(chance, cursor.execute, at)
        if chance.random() < 0.1:
            connection.rollback()
        else:
            self._commit(connection, at)
            self.committed += 1

    def _commit(self, connection: Any, at: int) -> None:
        connection.commit()

    def _again(self, connection: Any) -> Any:
        try:
            connection.rollback()
            return connection
        except (pymysql.err.MySQLError, OSError, AttributeError):
            self._stop.wait(0.1)
            return None
