"""Masks: which columns are masked, what column a mask makes, and the function from a value to its masked one.

A mask is a property of a column (tables.Column.mask), put there where a table is described for a view (`Masks.table`).
Both ways in apply it as they read a value: the decoder of the binlog and the parser of SELECT's rows. Nothing behind
them knows of it: to all else a masked column is one of another type.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from viewtail.changes.batches import Unreadable
from viewtail.changes.errors import DeclarationError, nearest
from viewtail.changes.rendering import text_of
from viewtail.changes.tables import Column, Kind, Mask, Table, full_name

HOW = ("hash", "last4", "null", "year")
SHORTEST_SECRET = 16  # characters
HASH_DIGITS = 64  # of SHA-256, in hexadecimal
_BLOCK = 64  # bytes of SHA-256's block
_SHOWN = 4  # characters, by last4 ...
_SHORTEST = 8  # ... of a text that has at least so many
_DAYS = (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)
_AS_TEXT = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET, Kind.JSON, Kind.TIME, *_DAYS})  # their values are texts
_FITTING = {
    "last4": ((Kind.TEXT, Kind.INTEGER), "texts and integers"),
    "year": (_DAYS, "dates"),
}

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Masks:
    """What the settings say of masks.

    Args:
        tags: the words that mark a column as one of people's data, in capitals.
        secret: of hashes; b"": there is none. What would be hashed is NULL then, and a view that uses it is refused.
    """

    tags: frozenset[str] = frozenset({"PPI", "GEO"})
    secret: bytes = field(default=b"", repr=False)

    def table(self, table: Table, declared: Mapping[str, str], unmasked: Collection[str]) -> Table:
        """A table as a view reads it.

        Args:
            declared: by column, how it is masked, whether or not it has a tag.
            unmasked: columns that the view needs as they are.
        """
        table = table.stored
        how = self._how(table, declared, unmasked)
        if not how:
            return table
        columns = (
            masked(column, how[column.name], self.secret) if column.name in how else column for column in table.columns
        )
        return replace(table, columns=tuple(columns))

    def _how(self, table: Table, declared: Mapping[str, str], unmasked: Collection[str]) -> dict[str, str]:
        """How each column is masked. A generated column shows what it is made from."""
        hidden = (column for column in table.columns if column.name in declared or self.is_tagged(column))
        how = {column.name: declared.get(column.name) or by_tag(column) for column in hidden}
        how = {name: way for name, way in how.items() if name not in unmasked}
        while made := _made_from(table, how, unmasked):
            how |= {column.name: by_tag(column) for column in made}
        return how

    def is_tagged(self, column: Column) -> bool:
        """Return whether its comment marks it as one of people's data."""
        return not self.tags.isdisjoint(column.stored.tags)

    def problems(self, table: Table, declared: Mapping[str, str], unmasked: Collection[str]) -> Iterator[str]:
        """Why a table cannot be masked so."""
        names = [column.name for column in table.columns]
        for what, named in (("masked", declared), ("unmasked", unmasked)):
            for name in named:
                if name not in names:
                    near = nearest(name, names) or f"; it has {', '.join(names)}"
                    yield f"{what}: {table.full_name} has no column {name}{near}"
        for name, how in self._how(table.stored, declared, unmasked).items():
            column = table.stored.column(name)
            assert column is not None
            yield from self._misfits(table, column, how)

    def _misfits(self, table: Table, column: Column, how: str) -> Iterator[str]:
        what = f"column {column.name} of {table.full_name}"
        if how in _FITTING and column.kind not in _FITTING[how][0]:
            yield (
                f"masked: {what} is {column.type_name}, and {how} is for {_FITTING[how][1]}; write "
                f"masked={{{column.name!r}: 'hash'}} or 'null'"
            )
        elif how == "hash" and column.kind is Kind.UNSUPPORTED:
            yield f"masked: {what} is {column.type_name}, which viewtail cannot read; write 'null'"

    def unhashed(self, table: Table, declared: Mapping[str, str], unmasked: Collection[str]) -> Iterator[str]:
        """Name the columns that would be hashed, if there were a secret."""
        if not self.secret:
            how = self._how(table.stored, declared, unmasked)
            yield from (name for name, way in how.items() if way == "hash")


NO_SECRET = Masks()
ANY_SECRET = Masks(secret=b"?" * SHORTEST_SECRET)  # for those who read no rows


def _made_from(table: Table, names: Collection[str], but: Collection[str]) -> list[Column]:
    """Other generated columns that are made from some of these; of which it is not known from what, are."""
    others = (column for column in table.columns if column.is_generated and column.name not in {*names, *but})
    lowered = {name.lower() for name in names}  # an expression may have a name in another case
    return [
        column
        for column in others
        if lowered and (column.made_from is None or not lowered.isdisjoint(map(str.lower, column.made_from)))
    ]


def by_tag(column: Column) -> str:
    """How a column is masked of which nothing but a tag says that it is."""
    return "hash" if column.kind is Kind.TEXT else "null"


def masked(column: Column, how: str, secret: bytes = b"") -> Column:
    """The column that a mask makes of a stored one. What it does not fit is NULL, and a hash without a secret."""
    if (how == "year" and column.kind not in _DAYS) or (how == "hash" and not secret):
        how = "null"
    mask = Mask(how, column, secret if how == "hash" else b"")
    plain = replace(
        column, tags=(), labels=(), is_unsigned=False, precision=0, scale=0, fields=(), default=None, mask=mask
    )
    if how == "null":
        return replace(column, tags=(), is_nullable=True, default=None, mask=mask)
    if how == "year":
        return replace(plain, kind=Kind.INTEGER, declared="smallint unsigned", is_unsigned=True, length=0)
    length = HASH_DIGITS if how == "hash" else 2 * _SHOWN
    charset = "ascii" if how == "hash" else "utf8mb4"
    collation = f"{charset}_bin"
    return replace(
        plain, kind=Kind.TEXT, declared=f"varchar({length})", charset=charset, collation=collation, length=length
    )


def mask_of(column: Column) -> Convert:
    """The function from a stored value of a masked column, never None or `Unreadable`, to the masked one."""
    assert column.mask is not None
    how, stored = column.mask.how, column.mask.of
    if how == "null":
        return lambda _: None
    if how == "year":
        return _year
    mask = _hash(column.mask.secret) if how == "hash" else _last4
    if stored.kind in _AS_TEXT:
        return mask
    text = text_of(stored)
    return lambda value: mask(text(value))


def careful_mask_of(column: Column) -> Convert:
    """The same; a value that is `Unreadable` stays that."""
    mask = mask_of(column)
    return lambda value: value if value.__class__ is Unreadable else mask(value)


def _year(value: str) -> int:
    return int(value[:4])


def _last4(text: str) -> str:
    return "****" + text[-_SHOWN:] if len(text) >= _SHORTEST else "*" * len(text)


def _hash(secret: bytes) -> Callable[[str], str]:
    """HMAC-SHA-256 (RFC 2104) of a text in UTF-8, in hexadecimal; both inner states are made once.

    The images of an update follow each other, and mostly have one value: it is hashed once.
    """
    key = (hashlib.sha256(secret).digest() if len(secret) > _BLOCK else secret).ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key)).copy
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key)).copy
    last: tuple[str | None, str] = (None, "")  # one object: threads that backfill share the function

    def hashed(text: str) -> str:
        nonlocal last
        known, made = last
        if text != known:
            first, second = inner(), outer()
            first.update(text.encode())
            second.update(first.digest())
            made = second.hexdigest()
            last = text, made
        return made

    return hashed


# --- Names of columns in declarations ---


def of_table(named: Collection[str], own: str, schema: str, table: str) -> dict[str, str]:
    """The columns of a table among names that a declaration gives, each with how it is written there.

    `column` is one of the entity's table, `own`; 'schema.table.column' one of any table.
    """
    whole = full_name(schema, table)
    return {column: name for name, of, column in _taken_apart(named, own) if of == whole}


def masked_of_table(
    named: Collection[str], own: str, names: tuple[str, str], columns: Collection[str]
) -> dict[str, str]:
    """The same of names that mask: such a name counts too where the table's name is written in another case.

    On some servers that is the same table. Where it is another one, which may lack the column, a mask too many does
    no harm, and one that is missing would.
    """
    whole = full_name(*names).lower()
    folded = {
        column: name for name, of, column in _taken_apart(named, own) if of.lower() == whole and column in columns
    }
    return folded | of_table(named, own, *names)


def _taken_apart(named: Collection[str], own: str) -> Iterator[tuple[str, str, str]]:
    """Each name, with that of its table and that of its column."""
    for name in named:
        of, dot, column = name.rpartition(".")
        yield name, of if dot else own, column


def check_masks(masks: Mapping[str, str], where: str) -> Mapping[str, str]:
    """The argument `masked` of an entity. Raises DeclarationError."""
    for name, how in masks.items():
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"{where}: masked is a dict of columns, {{'email': 'hash'}}, not of {name!r}")
        if how not in HOW:
            raise DeclarationError(f"{where}: masked[{name!r}] is one of {', '.join(HOW)}, not {how!r}")
    return masks


_IN_FORM = {
    "hash": re.compile(rf"[0-9a-f]{{{HASH_DIGITS}}}").fullmatch,
    "last4": re.compile(rf"\*{{0,{_SHORTEST - 1}}}|\*{{{_SHOWN}}}.{{{_SHOWN}}}", re.DOTALL).fullmatch,
}


def is_masked(value: Any, how: str) -> bool:
    """Return whether a value, not None, has the form of a masked one."""
    if how == "year":
        return value.__class__ is int
    return how != "null" and value.__class__ is str and _IN_FORM[how](value) is not None
