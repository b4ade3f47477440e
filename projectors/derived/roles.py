"""Which entities a change of any table of a tree touches: its images tell it, or the tables are asked.

A table has a role in each place of the tree that it is in. In each, some of its columns are used, and others refer to
its rows by some columns: where these hold the entity's key, both images of a changed row name an entity. Else there is
a way up to the entities (climbing.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

from projectors.derived import Dependents, Part, Touched
from projectors.derived.climbing import Way, what_text
from projectors.derived.tree import Columns, Hop, Node, Numbers, below, primary_key
from viewtail.changes.batches import Followed, Refused, Row, RowChanges, Unreadable, pairs, unreadable_in
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key

Names: TypeAlias = tuple[str, ...]

VALUES_AT_ONCE = 1_000  # of changed rows whose dependents are looked up together


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A table in one place of the tree."""

    name: str  # '': it is the entity's table, at the root
    table: Table
    way: Way
    on: Names  # the columns by which others refer to its rows
    used: Names  # those that entities depend on
    relied_on: Names | None = None  # a unique key of it beside its primary key


@dataclass(frozen=True, slots=True)
class Images:
    """Of the images of a table that is followed: what those of a role are asked for."""

    role: Role
    used: Callable[[Row], Any]
    on_at: Sequence[int]

    def values_changed(self, event: RowChanges | Refused) -> Iterator[Key]:
        """Values of `on` in both images of the rows that changed in what is used; none with NULL."""
        for before, after in pairs(event.kind, event.rows):
            if before is None or after is None or self.used(before) != self.used(after):
                yield from self._values((before, after))

    def _values(self, images: Sequence[Row | None]) -> Iterator[Key]:
        for image in images:
            value = () if image is None else tuple([image[at] for at in self.on_at])
            if value and None not in value and (not Unreadable.made or unreadable_in(value) is None):
                yield value


class Roles:
    """Those of all tables of a tree.

    Args:
        own: the columns of the entity's table that are used.
    """

    def __init__(self, root: Table, key: Columns, own: Columns, children: Sequence[Node | Numbers]) -> None:
        self._holds = [holding(column) for column in key]
        names = _names(key)
        relied_on = None if set(names) == set(root.primary_key) else names
        of_root = Way(root, key, ())
        roles = [
            Role(
                name="", table=root, way=of_root, on=names, used=_names((*own, *primary_key(root))), relied_on=relied_on
            )
        ]
        roles += [role for above, child in below(children) for role in _roles_of(above, child, key)]
        self._by_table: dict[tuple[str, str], list[Role]] = {}
        for role in roles:
            self._by_table.setdefault((role.table.schema, role.table.name), []).append(role)
        self._images_of: dict[Followed, list[Images]] = {}
        self.ways = {role.name: role.way for role in roles}

    @property
    def parts(self) -> list[Part]:
        """Each table with all columns that are used of it in any place."""
        return [_part(roles) for roles in self._by_table.values()]

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        """Keys that images hold, and the changed rows on which others depend."""
        versions: dict[Key, int] = {}
        looked_up: dict[str, dict[Key, int]] = {}
        for event in events:
            for images in self._images(event.followed):
                role = images.role
                into = looked_up.setdefault(role.name, {}) if role.way.levels else versions
                for value in filter(None if role.way.levels else self._is_key, images.values_changed(event)):
                    into[value] = max(event.version, into.get(value, 0))  # refused rows come behind the others
        return Touched(versions, list(_dependents(looked_up)))

    def _is_key(self, value: Key) -> bool:
        """Whether the entity's key can be that: other tables may refer to what cannot be there."""
        return all(holds is None or holds(part) for holds, part in zip(self._holds, value, strict=True))

    def _images(self, followed: Followed) -> list[Images]:
        """Those of each role of a table."""
        if followed not in self._images_of:
            columns, roles = followed.columns, self._by_table[followed.table.schema, followed.table.name]
            self._images_of[followed] = [
                Images(role, itemgetter(*map(columns.index, role.used)), [*map(columns.index, role.on)])
                for role in roles
            ]
        return self._images_of[followed]


def _roles_of(above: Sequence[Node], child: Node | Numbers, key: Columns) -> Iterator[Role]:
    hops = tuple(hop for node in above for hop in node.hops)
    for number, hop in enumerate(child.hops):
        hops = (*hops, hop)
        yield Role(
            name=f"{child.path}#{number}",
            table=hop.far,
            way=Way.along(hops, key),
            on=_names(hop.far_on),
            used=_used(child, number),
            relied_on=_relied_on(child, hop),
        )


def _used(child: Node | Numbers, number: int) -> Names:
    """The columns of the table that a hop of a child leads to on which entities depend.

    Pages of what depends on other tables are in the order of its primary key: a row that moves in it may be missed.
    """
    hop = child.hops[number]
    if number < len(child.hops) - 1:
        return _names((*hop.far_on, *child.hops[number + 1].near_on, *primary_key(hop.far)))
    is_above = isinstance(child, Node) and child.children
    return _names((*hop.far_on, *child.depends_on, *(primary_key(hop.far) if is_above else ())))


def _relied_on(child: Node | Numbers, hop: Hop) -> Names | None:
    """The unique key, beside the primary one, without which a One is of several rows."""
    names = _names(hop.far_on)
    is_one = isinstance(child, Node) and not child.is_many
    return names if is_one and set(names) != set(hop.far.primary_key) else None


def _part(roles: Sequence[Role]) -> Part:
    table = roles[0].table
    used = {name for role in roles for name in (*role.used, *role.on)}
    keys = dict.fromkeys(role.relied_on for role in roles if role.relied_on is not None)
    return Part(table, tuple(column.name for column in table.columns if column.name in used), tuple(keys))


def _dependents(looked_up: Mapping[str, Mapping[Key, int]]) -> Iterator[Dependents]:
    for name, of_role in looked_up.items():
        values = list(of_role)
        for at in range(0, len(values), VALUES_AT_ONCE):
            some = values[at : at + VALUES_AT_ONCE]
            yield Dependents(what_text(name, some), max(of_role[value] for value in some))


_INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}


def holding(column: Column) -> Callable[[Any], bool] | None:
    """Whether a column of integers or bytes can hold a value; None of others."""
    if column.kind is Kind.BYTES:
        return lambda value: len(value) <= column.length
    size = _INTEGER_BYTES.get(column.declared.lower().split("(")[0].split(" ")[0])
    if column.kind is not Kind.INTEGER or size is None:
        return None
    least = 0 if column.is_unsigned else -(1 << 8 * size - 1)
    beyond = least + (1 << 8 * size)
    return lambda value: least <= value < beyond


def _names(columns: Sequence[Column]) -> Names:
    return tuple(dict.fromkeys(column.name for column in columns))
