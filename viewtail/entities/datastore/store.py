"""Keeps entities without a schema on several MySQL servers: put, get, delete. Their indexes are viewtail's views."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
import pymysql

from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity, RowFunction
from viewtail.changes.bodies import MAX_BODY_BYTES
from viewtail.changes.errors import DeclarationError, MisuseError, StoreError
from viewtail.entities.datastore.indexes import Index
from viewtail.entities.datastore.properties import (
    UnfitValueError,
    home_of_id,
    home_of_value,
    id_of,
    new_id,
    plain,
    values_of,
)
from viewtail.entities.datastore.shards import Shards, shard_name
from viewtail.servers.sessions import create_database, open_session, quote, session_error

if TYPE_CHECKING:
    from projectors.views import View
    from viewtail.settings import Settings

CODEC = "zlib+json"
TABLE = "entities"


class DataStore:
    """Entities are dicts of properties, each on the shard that its id says. Views of it: `views = "views:datastore"`.

        datastore = DataStore(
            mysql_shards=["mysql://db0:3306/friendfeed", "mysql://db1:3306/friendfeed"],
            indexes=[Index(table="index_user_id", properties=["user_id"], shard_on="user_id")],
        )
        datastore.create()
        link = datastore.put({"user_id": 10, "title": "a link"})
        datastore.indexes[0].get_all(datastore, user_id=10)

    Args:
        mysql_shards: addresses with a database each, in an order that is for good; who logs in says [source] of the
            settings, where the addresses do not.
        indexes: each of another table.
        settings: by default the environment's and viewtail.toml's.

    It may be used by several threads.
    """

    def __init__(
        self, mysql_shards: Sequence[str], indexes: Sequence[Index] = (), *, settings: Settings | None = None
    ) -> None:
        if any(not isinstance(index, Index) for index in indexes):
            raise DeclarationError("DataStore: indexes is a list of Index")
        tables = [index.table for index in indexes]
        if len(set(tables)) < len(tables):
            raise DeclarationError("DataStore: two indexes have one table")
        self.indexes = tuple(indexes)
        self._given = settings
        self._shards = Shards(mysql_shards, self._settings)

    @property
    def shard_count(self) -> int:
        return len(self._shards)

    def create(self) -> None:
        """Make the table of entities on each shard, where it is missing.

        Raises StoreError for a shard that was made for another place among them.
        """
        for shard in range(self.shard_count):
            address = self._shards.address(shard)
            schema, mark = self._shards.databases[shard], self._shards.mark(shard)
            with closing(open_session(address, role="store")) as connection:
                try:
                    create_database(connection, schema)
                    with connection.cursor() as cursor:
                        cursor.execute(_ddl(schema))
                        cursor.execute(
                            f"CREATE TABLE IF NOT EXISTS {mark} (number INT UNSIGNED PRIMARY KEY, "
                            "of_count INT UNSIGNED NOT NULL COMMENT 'shards, when this one was made')"
                        )
                        cursor.execute(f"SELECT number, of_count FROM {mark} FOR UPDATE")
                        if not (rows := cursor.fetchall()):
                            rows = ((shard, self.shard_count),)
                            cursor.execute(f"INSERT INTO {mark} VALUES (%s, %s)", rows[0])
                    connection.commit()
                except pymysql.err.MySQLError as error:
                    raise session_error(error, address, "store") from None
            self._shards.check_place(shard, rows)

    def put(self, entity: Mapping[str, Any], *, wait: bool = False, within_s: float = 10.0) -> UUID:
        """Write an entity as a whole, under its "id" or a new one; returns the id.

        With `wait` it returns when the indexes have it (WaitedTooLongError after `within_s` seconds: it is written all
        the same). Raises MisuseError for what is no JSON, StoreUnavailableError: then it may have been written; put it
        again under its id.
        """
        entity_id = id_of(entity["id"]) if "id" in entity else new_id()
        shard = home_of_id(entity_id.bytes, self.shard_count)
        body = self._body(entity)
        statement = f"INSERT INTO {self._table(shard)} (id, body) VALUES (%s, %s)"
        # Under a new id it cannot be there already, but for a first attempt of ours whose answer was lost.
        statement += " ON DUPLICATE KEY UPDATE body = %s, updated = CURRENT_TIMESTAMP(6)"
        self._shards.ask(shard, statement, (entity_id.bytes, body, body))
        if wait:
            self._wait(shard, within_s)
        return entity_id

    def get(self, entity_id: object) -> dict[str, Any] | None:
        """An entity, with its "id" and when it was "updated"; None where there is none."""
        return next(iter(self.get_many([entity_id])), None)

    def get_many(self, ids: Iterable[object]) -> list[dict[str, Any]]:
        """The entities with these ids that exist, in the order of the ids."""
        return self.with_ids(dict.fromkeys(id_of(key).bytes for key in ids))

    def with_ids(self, ids: Collection[bytes]) -> list[dict[str, Any]]:
        """Return what `get_many` does, of ids as 16 bytes, each once."""
        by_shard: dict[int, list[bytes]] = {}
        for key in ids:
            by_shard.setdefault(home_of_id(key, self.shard_count), []).append(key)
        by_id: dict[bytes, dict[str, Any]] = {}
        for shard, of_shard in by_shard.items():
            marks = ", ".join(["%s"] * len(of_shard))
            # A text, since PyMySQL takes longer to make a datetime than all the rest of an entity.
            columns = "id, CAST(updated AS CHAR), body"
            rows = self._shards.ask(
                shard, f"SELECT {columns} FROM {self._table(shard)} WHERE id IN ({marks})", of_shard
            )
            by_id |= {row[0]: self._entity(shard, *row) for row in rows}
        return [by_id[key] for key in ids if key in by_id]

    def delete(self, entity_id: object, *, wait: bool = False, within_s: float = 10.0) -> bool:
        """Delete an entity, also one that cannot be read; return whether this call found it.

        With `wait` it returns when the indexes do not have it any more. Errors are those of `put`; False may also mean
        that an answer was lost, and that it was deleted at the first attempt.
        """
        key = id_of(entity_id).bytes
        shard = home_of_id(key, self.shard_count)
        deleted = self._shards.change(shard, f"DELETE FROM {self._table(shard)} WHERE id = %s", (key,))
        if wait:
            self._wait(shard, within_s)
        return deleted > 0

    def close(self) -> None:
        """Close the sessions of this thread; the next call opens others."""
        self._shards.close()

    # -- for an index's question ---------------------------------------------------------------------------------

    def indexed_ids(
        self, index: Index, shards: Sequence[int], asked: Mapping[str, str | int], after: bytes | None, limit: int
    ) -> list[bytes]:
        """The first ids above `after` that an index has under these values, of those that its shards give."""
        condition = " AND ".join(f"{quote(name)} = %s" for name in asked)
        values: list[object] = list(asked.values())
        if after is not None:
            condition += " AND id > %s"
            values.append(after)
        ids: list[bytes] = []
        for shard in shards:
            sources = range(self.shard_count) if index.shard_on is not None else [shard]
            selects = [
                f"(SELECT id FROM {quote(self._shards.own_database(source, shard), index.table)} WHERE {condition} "
                f"ORDER BY id LIMIT {int(limit)})"
                for source in sources
            ]
            rows = self._shards.ask(shard, " UNION ALL ".join(selects), values * len(selects))
            ids += [bytes(row[0]) for row in rows]
        return sorted(set(ids))[:limit]

    # -- as viewtail's declarations have it ----------------------------------------------------------------------

    def shards(self) -> dict[str, str]:
        """The deployments that keep the indexes, by name."""
        pairs = [(source, target) for source in range(self.shard_count) for target in range(self.shard_count)]
        return {
            shard_name(source, target): f"entities of shard {source}, indexes on shard {target}"
            for source, target in pairs
            if self._indexes(source, target)
        }

    def settings_of(self, shard: str, settings: Settings) -> Settings:
        """The settings of one of its deployments. Raises SettingsError."""
        return self._shards.settings_of(*self._pair(shard), settings)

    def views_of(self, shard: str) -> list[View]:
        """The views of one of its deployments."""
        source, target = self._pair(shard)
        entity = Entity(f"{self._shards.databases[source]}.{TABLE}", key="id", body="body", codec=CODEC)
        return [
            IndexTable(
                index.table,
                entity,
                values=dict(index.properties),
                of=_values(dict(index.properties)),
                where=_is_there(dict(index.properties), index.shard_on, source, target, self.shard_count),
            )
            for index in self._indexes(source, target)
        ]

    def _indexes(self, source: int, target: int) -> list[Index]:
        return [index for index in self.indexes if source == target or index.shard_on is not None]

    @staticmethod
    def _pair(shard: str) -> tuple[int, int]:
        source, _, target = shard.partition(".")
        return int(source), int(target)

    # -- the rest -------------------------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        if self._given is None:
            from viewtail import settings

            self._given = settings.load(None)
        return self._given

    def _table(self, shard: int) -> str:
        return quote(self._shards.databases[shard], TABLE)

    def _body(self, entity: Mapping[str, Any]) -> bytes:
        if not isinstance(entity, Mapping):
            raise MisuseError(f"an entity is a dict of properties, not {type(entity).__name__}")
        kept = plain({name: value for name, value in entity.items() if name not in ("id", "updated")})
        for index in self.indexes:
            try:
                values_of(index.properties, kept)
            except UnfitValueError as error:
                raise MisuseError(f"index {index.table} cannot have this entity: {error}") from None
        text = orjson.dumps(kept)
        if len(text) > MAX_BODY_BYTES:  # no index would have it
            raise MisuseError(f"the entity has {len(text):,} bytes as JSON, and may have {MAX_BODY_BYTES:,}")
        return zlib.compress(text)

    def _entity(self, shard: int, entity_id: bytes, updated: str, body: bytes) -> dict[str, Any]:
        try:
            entity = orjson.loads(zlib.decompress(body))
            return {**entity, "id": UUID(bytes=entity_id), "updated": _moment(updated)}
        except (zlib.error, orjson.JSONDecodeError, TypeError):
            raise StoreError(
                f"the body of entity {UUID(bytes=entity_id)} on shard {shard} cannot be read: it is no {CODEC}"
            ) from None

    def _wait(self, shard: int, within_s: float) -> None:
        from viewtail import waiting

        deadline = monotonic() + within_s
        for name in self.shards():
            if self._pair(name)[0] == shard:
                settings = self.settings_of(name, self._settings())
                left_s = max(0.0, deadline - monotonic())
                waiting.wait_for_all(self.views_of(name), within_s=left_s, settings=settings)


def _moment(text: str) -> datetime | str:
    """A datetime as PyMySQL returns it; an invalid one, which a lax session may write, stays text."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


# What they close over are plain values, of which a view's fingerprint is made; and what they ask their row for is in
# their source, which says which columns are read.


def _values(properties: Mapping[str, str]) -> RowFunction:
    """The function from a row that `_is_there` to the view's values."""

    def values(row: Mapping[str, Any]) -> tuple[str | int, ...] | str | int:
        indexed = values_of(properties, row["body"])
        assert indexed is not None
        return indexed if len(indexed) > 1 else indexed[0]

    return values


def _is_there(properties: Mapping[str, str], shard_on: str | None, source: int, target: int, count: int) -> RowFunction:
    """Return whether the index of a deployment has an entity."""
    at = None if shard_on is None else list(properties).index(shard_on)

    def is_there(row: Mapping[str, Any]) -> bool:
        home = home_of_id(row["id"], count)
        if home != source:  # parks it
            raise ValueError(f"the entity is on shard {source}, and its id is one of shard {home}")
        try:
            indexed = values_of(properties, row["body"])
        except UnfitValueError:  # it was there before the index
            return False
        if indexed is None or at is None:
            return indexed is not None
        return home_of_value(indexed[at], count) == target

    return is_there


def _ddl(schema: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {quote(schema, TABLE)} ( -- viewtail: ignore VT102\n"
        "  added_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'Order in which they were added',\n"
        "  id BINARY(16) NOT NULL COMMENT 'UUID of the entity',\n"
        "  -- The table is FriendFeed's, with its names. viewtail: ignore VT106\n"
        "  updated TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was last written',\n"
        "  body MEDIUMBLOB NOT NULL COMMENT 'JSON, compressed by zlib',\n"
        "  UNIQUE KEY (id), -- viewtail: ignore VT108\n"
        "  KEY (updated) -- viewtail: ignore VT108\n"
        ") ENGINE=InnoDB COMMENT 'Entities, each a document'"
    )
