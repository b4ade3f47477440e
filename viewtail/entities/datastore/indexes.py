"""An index over properties: declared once, kept by viewtail, and asked here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from viewtail.changes.errors import DeclarationError, MisuseError, nearest
from viewtail.entities.datastore.properties import (
    DEFAULT_TYPE,
    KINDS,
    UnfitValueError,
    home_of_value,
    indexed,
    is_same,
    plain,
)

if TYPE_CHECKING:
    from viewtail.entities.datastore.store import DataStore

PAGE_ROWS = 100
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OUR_OWN = ("id", "updated", "version")


@dataclass(frozen=True, slots=True, init=False)
class Index:
    """Answers which entities have given values.

    Args:
        table: the name of the index, and of its tables.
        properties: in the order in which queries name them; or a mapping of each to its type in MySQL, "VARCHAR(255)"
            (the default, for values of every kind) or "BIGINT". An entity that lacks one of them is not in the index.
        shard_on: one of the properties: its value says on which shard a row of the index is, and a query asks only that
            shard. Otherwise a row is on its entity's shard, and a query asks all shards."""

    table: str
    properties: Mapping[str, str] = field(hash=False)
    shard_on: str | None

    def __init__(self, table: str, properties: Sequence[str] | Mapping[str, str], shard_on: str | None = None) -> None:
        label = f"Index({table!r})"
        if not isinstance(table, str) or not _NAME.fullmatch(table):
            raise DeclarationError(f"{label}: table is a name of letters, digits and _, at most 64 of them")
        if isinstance(properties, str) or not properties:
            raise DeclarationError(f"{label}: properties is a list of names, e.g. ['user_id']")
        types = dict(properties) if isinstance(properties, Mapping) else dict.fromkeys(properties, DEFAULT_TYPE)
        _check_properties(label, types)
        if shard_on is not None and shard_on not in types:
            raise DeclarationError(f"{label}: shard_on is one of the properties ({', '.join(types)}), not {shard_on!r}")
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "properties", types)
        object.__setattr__(self, "shard_on", shard_on)

    def get_all(self, datastore: DataStore, *, limit: int | None = None, **values: Any) -> list[dict[str, Any]]:
        """Entities that have all these values now, by id; at most `limit`.

        The first properties of the index must be among them; others, of the entity, may be. The answer of the index is
        compared with the entities: one that is behind never shows a wrong entity, though it may lack one for a moment.
        Raises StoreUnavailableError where a shard that must be asked does not answer, MisuseError.
        """
        return list(self.iterate(datastore, limit=limit, **values))

    def iterate(self, datastore: DataStore, *, limit: int | None = None, **values: Any) -> Iterator[dict[str, Any]]:
        """Yield the entities of `get_all`, page by page."""
        wanted = {name: plain(value) for name, value in values.items()}
        asked = self._asked(wanted)
        if asked is None or (limit is not None and limit <= 0):
            return
        rows = PAGE_ROWS if limit is None else min(limit, PAGE_ROWS)
        entities = (
            entity
            for ids in self._pages(datastore, self._shards_of(wanted, datastore.shard_count), asked, rows)
            for entity in datastore.with_ids(ids)
            if all(is_same(entity.get(name), value) for name, value in wanted.items())
        )
        yield from itertools.islice(entities, limit)

    def _shards_of(self, wanted: Mapping[str, Any], count: int) -> Sequence[int]:
        """Return the shards that may have rows with these values."""
        if self.shard_on is None:
            return range(count)
        value = indexed(wanted.get(self.shard_on), self.properties[self.shard_on])
        return range(count) if value is None else [home_of_value(value, count)]

    def _pages(
        self, datastore: DataStore, shards: Sequence[int], asked: Mapping[str, str | int], rows: int
    ) -> Iterator[Sequence[bytes]]:
        """Yield ids of entities that the index gives for these values, so many at once."""
        after: bytes | None = None
        while True:
            # With one more it is known whether there are others.
            ids = datastore.indexed_ids(self, shards, asked, after, rows + 1)
            yield ids[:rows]
            if len(ids) <= rows:
                return
            after = ids[rows - 1]

    def _asked(self, wanted: Mapping[str, Any]) -> dict[str, str | int] | None:
        """Return the index's columns that the question names, in order; None where nothing can have these values."""
        values: dict[str, str | int | None] = {}
        for name in self.properties.keys() & wanted.keys():
            try:
                values[name] = indexed(wanted[name], self.properties[name])
            except UnfitValueError as error:
                raise MisuseError(f"{self.table}: {name}: {error}") from None
        asked: dict[str, str | int] = {}
        for name in itertools.takewhile(values.__contains__, self.properties):
            if (value := values[name]) is None:
                return None
            asked[name] = value
        if not asked:
            first = next(iter(self.properties))
            given = next(iter(wanted), None)
            near = f", not {given!r}{nearest(given, [first])}" if given is not None else ""
            raise MisuseError(
                f"index {self.table} is over {', '.join(self.properties)}: ask for {first}, the first property{near}"
            )
        return asked


def _check_properties(label: str, types: Mapping[str, str]) -> None:
    """Raises DeclarationError; `label` is the index in words."""
    for name, kind in types.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _OUR_OWN:
            raise DeclarationError(
                f"{label}: {name!r} is no name of a property that can be indexed: letters, digits and _, not "
                f"{', '.join(_OUR_OWN)}"
            )
        if kind not in KINDS:
            raise DeclarationError(f"{label}: the type of {name} is one of {', '.join(KINDS)}, not {kind!r}")
