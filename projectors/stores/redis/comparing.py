"""Asks Redis which rows of a view are not stored as they would be written, so that only those are read.

The command is the same as the sink's, but its script compares instead of writing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from redis import Redis, exceptions

from projectors.stores import Item, Unfit, slices
from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.packing import Packer
from projectors.stores.redis.script import COMPARE
from projectors.stores.redis.sink import BYTES_A_SCRIPT, ROWS_A_SCRIPT, SCRIPTS_UNDER_WAY
from projectors.stores.redis.unanswered import reading
from projectors.views import BoundView
from viewtail.changes.writes import Key


class Comparing:
    """Compares the rows of one view. Not thread-safe."""

    def __init__(self, client: Redis, view: BoundView, keys: RedisKeys) -> None:
        self._client = client
        self._label = view.id
        self._packer = Packer(view, keys, COMPARE)

    def differing(self, items: Sequence[Item]) -> list[Key]:
        """The keys of items that are stored differently, or that Redis cannot compare."""
        with reading(self._client, self._label, "compare"):
            try:
                return self._differing(items)
            except exceptions.NoScriptError:
                self._client.script_load(COMPARE)
                return self._differing(items)

    def _differing(self, items: Sequence[Item]) -> list[Key]:
        differing: list[Key] = []
        waiting: deque[Sequence[Item]] = deque()
        connection: Any = self._client.connection_pool.get_connection()
        try:
            for some in slices(items, ROWS_A_SCRIPT):
                command = self._command(some)
                if command is None:
                    differing += [key for key, _ in some]
                    continue
                connection.send_packed_command((command,), check_health=False)
                waiting.append(some)
                if len(waiting) >= SCRIPTS_UNDER_WAY:
                    differing += _settled(connection, waiting)
            while waiting:
                differing += _settled(connection, waiting)
        except BaseException:
            connection.disconnect()  # answers that were not read must not be taken for later ones
            raise
        finally:
            self._client.connection_pool.release(connection)
        return differing

    def _command(self, items: Sequence[Item]) -> bytes | None:
        """The command that compares the items; None if one cannot be written at all, or they are too many bytes."""
        try:
            command = self._packer.command(items)
        except (Unfit, ValueError, TypeError):
            return None
        return command if len(command) <= BYTES_A_SCRIPT else None


def _settled(connection: Any, waiting: deque[Sequence[Item]]) -> list[Key]:
    """Read the answer for the oldest waiting items; returns the keys that differ."""
    some = waiting.popleft()
    return [some[at][0] for at in connection.read_response(disable_decoding=True)]
