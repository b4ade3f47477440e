"""The Redis keys of a view: from an entity key to its Redis key and back, and whether two views could meet.

A template such as 'user:{id}' is taken apart once. Rendered values never hold a ':' or a brace (they are
percent-encoded), which is what makes keys distinct, readable backwards, and safe as a hash tag: the tombstone of
key K is `{K}:t`, and the braces around the whole of K put both into one slot.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any

from changes.errors import DeclarationError, MisuseError
from changes.rendering import key_renderer, parse_key
from changes.tables import Column, Kind
from changes.writes import Key
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import BoundView

VERSION = "_version"  # the field, or member, in which viewtail keeps a row's version

_PATTERNS = {Kind.INTEGER: r"-?[0-9]+", Kind.BYTES: r"[0-9a-f]*"}
_ANYTHING = r"[^:{}]*"
# What may follow a value of such a column in a template, besides anything with a ':' in it.
_CLEAR_SEPARATORS = {Kind.INTEGER: re.compile(r"[^0-9]"), Kind.BYTES: re.compile(r"[^0-9a-f]")}

Piece = str | Column  # literal text, or the place of a column's value


class RedisKeys:
    """The keys of one view. Raises DeclarationError for a view that Redis cannot hold, or not tell apart by key."""

    def __init__(self, view: BoundView) -> None:
        assert isinstance(view.view, RedisHash | RedisJson)
        self._label = f"{type(view.view).__name__}({view.view.name!r})"
        self._columns = view.key
        self._check_fields(view)
        self.pieces = _default(view) if view.view.key is None else self._parsed(view.view.key)
        self._check()
        self.prefix = self.pieces[0] if isinstance(self.pieces[0], str) else ""
        self._pattern = re.compile("".join(_pattern(piece) for piece in self.pieces))
        self._shape = _segments(self.pieces)
        self._placed = [piece for piece in self.pieces if isinstance(piece, Column)]
        names: dict[str, Any] = {}
        parameters = ", ".join(f"k{at}" for at in range(len(self._columns)))
        self._redis_key: Callable[..., str] = eval(f"lambda {parameters}: {self.expression(names)}", names)

    @property
    def is_ascii(self) -> bool:
        """Whether no key can hold anything but ASCII: its length in bytes is then that of its text."""
        has_ascii_values = all(column.kind in (Kind.INTEGER, Kind.BYTES, Kind.DECIMAL) for column in self._placed)
        return has_ascii_values and all(piece.isascii() for piece in self.pieces if isinstance(piece, str))

    @property
    def scan_match(self) -> str:
        """The glob that finds the keys of the view, and perhaps more: `key_of` tells."""
        return re.sub(r"([*?\[\]\\^-])", r"\\\1", self.prefix) + "*"

    def expression(self, names: dict[str, Any]) -> str:
        """Python's expression of a Redis key, of k0, k1, ...; what it calls is added to `names`."""
        shown = []
        for piece in self.pieces:
            if isinstance(piece, str):
                shown.append(repr(piece))
                continue
            at = self._columns.index(piece)
            names[f"render{at}"] = key_renderer((piece,))
            if piece.kind is Kind.INTEGER:
                shown.append(f"str(k{at})")
            elif piece.kind is Kind.TEXT:
                shown.append(f"(k{at} if k{at}.isalnum() else render{at}((k{at},)))")
            else:
                shown.append(f"render{at}((k{at},))")
        return " + ".join(shown)

    def redis_key(self, key: Key) -> str:
        return self._redis_key(*key)

    def key_of(self, redis_key: str) -> Key | None:
        """The entity key that a Redis key was made of; None for a key that is none of this view's."""
        found = self._pattern.fullmatch(redis_key)
        if found is None:
            return None
        by_column = dict(zip(self._placed, found.groups(), strict=True))
        try:
            return parse_key(":".join(by_column[column] for column in self._columns), self._columns)
        except MisuseError:
            return None

    def check_apart(self, other: RedisKeys) -> None:
        """Raises DeclarationError when some key could belong to both views."""
        if len(self._shape) != len(other._shape):
            return
        if all(_could_meet(mine, theirs) for mine, theirs in zip(self._shape, other._shape, strict=True)):
            raise DeclarationError(
                f"{self._label} and {other._label}: one Redis key could belong to both; give one of them another "
                "name, or a key template with another prefix, e.g. key='user2:{id}'"
            )

    def _parsed(self, template: str) -> list[Piece]:
        by_name = {column.name: column for column in self._columns}
        names = ", ".join("{" + name + "}" for name in by_name)
        wrong = f"key template {template!r}"
        pieces: list[Piece] = []
        try:
            parsed = list(Formatter().parse(template))
        except ValueError as error:
            raise self._wrong(f"{wrong}: {error}; it may name {names}") from None
        for text, field, form, conversion in parsed:
            pieces += [text] if text else []
            if field is None:
                continue
            if field not in by_name or any((form, conversion)):
                raise self._wrong(f"{wrong}: {{{field}}} is not one of the key columns {names}")
            pieces.append(by_name[field])
        if any(pieces.count(column) != 1 for column in by_name.values()):
            raise self._wrong(f"{wrong} must name each of {names} once, or two entities would share one Redis key")
        return pieces

    def _wrong(self, why: str) -> DeclarationError:
        return DeclarationError(f"{self._label}: {why}")

    def _check_fields(self, view: BoundView) -> None:
        if VERSION in (column.name for column in view.values):
            raise self._wrong(
                f"column {VERSION} has the name under which viewtail keeps its version; leave it out, or show it "
                "through a generated column of another name"
            )

    def _check(self) -> None:
        if not isinstance(self.pieces[0], str):
            name = self._columns[0].name
            raise self._wrong(
                "the key template must begin with text, so that the view's keys can be found again, "
                f"e.g. key='{name}:{{{name}}}'"
            )
        if any(re.search("[{}]", piece) for piece in self.pieces if isinstance(piece, str)):
            raise self._wrong(
                "the Redis key holds a brace besides the placeholders; Redis would look for the key's slot there. Take "
                "it out of the name or the template"
            )
        for left, between, right in _neighbours(self.pieces):
            clear = _CLEAR_SEPARATORS.get(left.kind)
            if ":" not in between and not (between and clear and clear.match(between)):
                raise self._wrong(
                    f"in the key template the values of {left.name} and {right.name} could run into each other; put a "
                    "':' between them"
                )


def _default(view: BoundView) -> list[Piece]:
    pieces: list[Piece] = [f"{view.view.name}:"]
    for at, column in enumerate(view.key):
        pieces += [":", column] if at else [column]
    return pieces


def _neighbours(pieces: Sequence[Piece]) -> list[tuple[Column, str, Column]]:
    """Each two columns that follow each other, and the text between them."""
    places = [at for at, piece in enumerate(pieces) if isinstance(piece, Column)]
    found: list[tuple[Column, str, Column]] = []
    for first, second in itertools.pairwise(places):
        left, right = pieces[first], pieces[second]
        assert isinstance(left, Column) and isinstance(right, Column)
        found.append((left, "".join(map(str, pieces[first + 1 : second])), right))
    return found


def _pattern(piece: Piece) -> str:
    return re.escape(piece) if isinstance(piece, str) else f"({_PATTERNS.get(piece.kind, _ANYTHING)})"


def _segments(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The template cut at its ':', which no value holds: keys with another number of them are other keys."""
    segments: list[list[Piece]] = [[]]
    for piece in pieces:
        if isinstance(piece, Column):
            segments[-1].append(piece)
            continue
        first, *rest = piece.split(":")
        segments[-1] += [first] if first else []
        segments += [[text] if text else [] for text in rest]
    return segments


def _could_meet(one: list[Piece], other: list[Piece]) -> bool:
    """Whether some text fits both segments; True where that is not plain to see."""
    for left, right in ((one, other), (other, one)):
        if all(isinstance(piece, str) for piece in left):
            text = "".join(piece for piece in left if isinstance(piece, str))
            return re.fullmatch("".join(map(_pattern, right)), text) is not None
    mine, theirs = one[0], other[0]
    if isinstance(mine, str) and isinstance(theirs, str):
        return mine.startswith(theirs) or theirs.startswith(mine)
    return True
