"""The Redis keys of a view: converts entity keys to Redis keys and back, and tells whether two views could collide.

A template such as 'user:{id}' is parsed once. Rendered values never contain a ':' or a brace (they are
percent-encoded), which makes keys distinct, parsable, and safe as a hash tag: the tombstone of key K is `{K}:t`, and
the braces around the whole of K put both into one slot. A copy beside the live one has `{K}:2` (or another number) and
the tombstone `{K}:2t`, in the slot of K too. Where a key is of one source at a time, each source has a tombstone of its
own, `{K}:t:SOURCE`.

A template may contain `{generation}`, the number of a copy, so that each copy's keys have names of their own. Readers
learn from a pointer which number to use: its key is the template up to `{generation}`, followed by that word."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from string import Formatter
from typing import Any, ClassVar

from projectors.stores.redis.views import GENERATION, RedisHash, RedisJson, RedisSet
from projectors.views import BoundView
from viewtail.changes.errors import DeclarationError, MisuseError
from viewtail.changes.rendering import (
    integer_parser,
    key_renderer,
    parse_key,
    render_key,
    rendered_columns,
    whole_key,
)
from viewtail.changes.tables import Column, Kind
from viewtail.changes.versions import WIDTH
from viewtail.changes.writes import Key

VERSION = "_version"  # the field, or member, in which viewtail keeps a row's version
SOURCE_NAME = "_source"  # and the one with the source that has the key, where that is of one source at a time
JSON_HEAD = f'{{"{VERSION}":"'.encode()  # what precedes the version in a JSON document

# Patterns of rendered values by kind, and of copy numbers.
_PATTERNS = {"INTEGER": r"(-?[0-9]+)", "BYTES": r"([0-9a-f]*)", "GENERATION": r"([1-9][0-9]*)"}
_ANYTHING = r"([^:{}]*)"
# What may separate a value of such a column from the next one in a template; a text with a ':' always may.
_CLEAR_SEPARATORS = {Kind.INTEGER: re.compile(r"[^0-9]"), Kind.BYTES: re.compile(r"[^0-9a-f]")}

_NO_NAMES = frozenset({Kind.FLOAT, Kind.DOUBLE, Kind.JSON, Kind.GEOMETRY, Kind.VECTOR})

Part = tuple[str, Column | None]  # literal text, and the column whose value follows it; None behind the last one
# Stands for the copy number in a template.
_NUMBER = Column(name=GENERATION, kind=Kind.INTEGER, declared="bigint unsigned", is_nullable=False)


def version_of(text: bytes) -> int | None:
    """Parse a version as viewtail writes it; None for anything else."""
    return int(text) if len(text) == WIDTH and text.isdigit() else None


class RedisKeys:
    """The keys of one view. Raises DeclarationError for a view that Redis cannot hold, or not tell apart by key."""

    _is_shared: ClassVar[bool] = False  # all copies share these keys, unless the template has a generation

    def __init__(self, view: BoundView) -> None:
        self._name = view.view.name
        self._label = f"{type(view.view).__name__}({view.view.name!r})"
        self._columns = self._columns_of(view)
        self._told = rendered_columns(self._columns)  # those whose values are in a key's text
        self._own_of = view.source[0] if view.is_unique_over_sources else ""
        self._check_names(view)
        template = self._template_of(view)
        declared = _default(view) if template is None else self._parsed(template)
        self.has_generation = any(column is _NUMBER for _, column in declared)
        self._placed = [column for _, column in declared if column is not None and column is not _NUMBER]
        self._check(declared)
        self.shape = _shape(declared)  # its template, with the kind of each column in place of its name
        # The key from which readers learn the generation, if the template has one.
        self.pointer = f"{declared[0][0]}{GENERATION}"
        self._parts = _numbered(declared, view.copy)
        self._own_shape = _shape(self._parts)  # the shape of this copy's keys
        self._pattern = re.compile(pattern_of(self._own_shape))
        # The suffix of the keys of a copy that readers do not see.
        is_apart = view.is_beside and not self.has_generation and not self._is_shared
        self._beside = f"}}:{view.copy}" if is_apart else ""
        self._integer = _integer_of(self._columns)
        self._redis_key = self._compiled()

    @staticmethod
    def _columns_of(view: BoundView) -> tuple[Column, ...]:
        return view.key

    @staticmethod
    def _template_of(view: BoundView) -> str | None:
        return view.view.key if isinstance(view.view, RedisHash | RedisJson) else None

    @property
    def is_shadow(self) -> bool:
        """Return whether these keys belong to a copy that readers do not see."""
        return bool(self._beside)

    @cached_property
    def is_ascii(self) -> bool:
        """Return whether all keys are ASCII, so that a key's length in bytes is that of its text."""
        has_ascii_values = all(column.kind in (Kind.INTEGER, Kind.BYTES, Kind.DECIMAL) for column in self._placed)
        return has_ascii_values and self.shape.isascii()

    @property
    def scan_match(self) -> str:
        """The glob that finds the view's keys; it may find others too, which `key_of` rejects."""
        start = glob_of(self._own_shape)
        return f"{{{start}{self._beside}" if self._beside else start

    def scan_match_of(self, values: Sequence[Any]) -> str:
        """The same of keys that begin with these values, as far as what stands first in a key is one of them."""
        known: dict[str, Any] = {
            column.name: (value, column) for column, value in zip(self._columns, values, strict=False)
        }
        start = ""
        for text, column in self._parts:
            start += text
            if column is None or column.name not in known:
                break
            value, of = known[column.name]
            start += render_key((value,), (of,))
        else:
            return self.scan_match
        return f"{'{' if self._beside else ''}{_globbed(start)}*"

    @property
    def tombstone_match(self) -> str:
        """The glob that finds the view's tombstones; it may find other keys too."""
        before, behind = self.tombstone
        return f"{before}{self.scan_match}{behind}"

    @property
    def tombstone(self) -> tuple[str, str]:
        """The prefix and suffix that turn a row's key into that of its tombstone."""
        if self._beside:
            return "", "t"
        return "{", f"}}:t:{self._own_of}" if self._own_of else "}:t"

    def expression(self, names: dict[str, Any]) -> str:
        """The Python expression of a Redis key over k0, k1, ...; adds the functions that it calls to `names`."""
        shown = []
        for text, column in self._parts:
            shown += [repr(text)] if text else []
            if column is None:
                continue
            at = self._columns.index(column)
            names[f"render{at}"] = key_renderer((column,))
            if column.kind is Kind.INTEGER:
                shown.append(f"str(k{at})")
            elif column.kind is Kind.TEXT:
                shown.append(f"(k{at} if k{at}.isalnum() else render{at}((k{at},)))")
            else:
                shown.append(f"render{at}((k{at},))")
        if self._beside:
            shown = ["'{'", *shown, repr(self._beside)]
        return " + ".join(shown)

    def _compiled(self) -> Callable[..., str]:
        names: dict[str, Any] = {}
        parameters = ", ".join(f"k{at}" for at in range(len(self._columns)))
        redis_key: Callable[..., str] = eval(f"lambda {parameters}: {self.expression(names)}", names)
        return redis_key

    def redis_key(self, key: Key) -> str:
        return self._redis_key(*key)

    def key_of(self, redis_key: str) -> Key | None:
        """The entity key that a Redis key was made from; None for any other key."""
        match = self._found(redis_key)
        if match is None:
            return None
        if self._integer is not None:
            return self._integer(match[1])
        by_column = dict(zip(self._placed, match.groups(), strict=True))
        try:
            redis_key.encode()
            key = parse_key(":".join(by_column[column] for column in self._told), self._columns)
        except (MisuseError, UnicodeEncodeError):  # bytes that are not UTF-8 are lone surrogates here
            return None
        return key if self.redis_key(key) == redis_key else None  # readers never ask for a key such as 007

    def is_like_ours(self, redis_key: str) -> bool:
        """Return whether a name has the form of the view's keys, so that only `key_of` can tell them apart."""
        return self._found(redis_key) is not None

    def _found(self, redis_key: str) -> re.Match[str] | None:
        """Match a name against the form of this copy's keys; None if it has another form."""
        if not self._beside:
            return self._pattern.fullmatch(redis_key)
        if not redis_key.startswith("{") or not redis_key.endswith(self._beside):
            return None
        return self._pattern.fullmatch(redis_key[1 : -len(self._beside)])

    def key_of_tombstone(self, redis_key: str) -> Key | None:
        """The entity key of a tombstone; None for any other key."""
        before, behind = self.tombstone
        if not redis_key.startswith(before) or not redis_key.endswith(behind):
            return None
        return self.key_of(redis_key[len(before) : -len(behind)])

    def names(self, key: Key) -> tuple[str, str]:
        """The Redis keys of an entity's row and of its tombstone."""
        (before, behind), name = self.tombstone, self.redis_key(key)
        return name, f"{before}{name}{behind}"

    def check_apart(self, other: RedisKeys) -> None:
        """Raise DeclarationError if some key could belong to both views."""
        if self.could_meet(other):
            raise DeclarationError(
                f"{self._label} and {other._label}: one Redis key could belong to both; give one of them another "
                "name, or a key template with another prefix, e.g. key='user2:{id}'"
            )

    def could_meet(self, other: RedisKeys) -> bool:
        """Return whether some key could belong to both views, in any of their copies."""
        return any(shapes_meet(mine, theirs) for mine in self.shapes for theirs in other.shapes)

    @property
    def shapes(self) -> list[str]:
        """The shapes of all keys of the view, in any of its copies."""
        return [self.shape, *([self.pointer] if self.has_generation else [])]

    def _parsed(self, template: str) -> list[Part]:
        by_name = {GENERATION: _NUMBER} | {column.name: column for column in self._told}
        wrong = f"key template {template!r}"
        try:
            parsed = list(Formatter().parse(template))
        except ValueError as error:
            raise self._wrong(f"{wrong}: {error}; it may name {self._names}") from None
        for _, name, form, conversion in parsed:
            if name is not None and (form or conversion or name not in by_name):
                raise self._wrong(f"{wrong}: {{{name}}} is not one of the key columns {self._names}")
        return [(text, by_name.get(name or "")) for text, name, *_ in parsed]

    @property
    def _names(self) -> str:
        """The columns that a template names, for people."""
        return ", ".join(f"{{{column.name}}}" for column in self._told)

    def _check_names(self, view: BoundView) -> None:
        if isinstance(view.view, RedisHash | RedisJson) and VERSION in (column.name for column in view.values):
            raise self._wrong(
                f"column {VERSION} has the name under which viewtail keeps its version; leave it out, or show it "
                "through a generated column of another name"
            )
        if self._own_of and SOURCE_NAME in (column.name for column in view.values):
            raise self._wrong(
                f"column {SOURCE_NAME} has the name under which viewtail keeps the source of a key; leave it out, "
                "or show it through a generated column of another name"
            )

    def _wrong(self, why: str) -> DeclarationError:
        return DeclarationError(f"{self._label}: {why}")

    def _check(self, parts: Sequence[Part]) -> None:
        if Counter(self._placed) != Counter(self._told):
            why = f"the key template must name each of {self._names} once, or two entities would share one Redis key"
            raise self._wrong(why)
        if not parts[0][0]:
            name = self._told[0].name
            raise self._wrong(
                "the key template must begin with text, so that the view's keys can be found again, "
                f"e.g. key='{name}:{{{name}}}'"
            )
        if any(re.search("[{}]", text) for text, _ in parts):
            raise self._wrong(
                "the Redis key holds a brace besides the placeholders; Redis would look for the key's slot there. Take "
                "it out of the name or the template"
            )
        if any(column is _NUMBER for _, column in parts[1:]):
            raise self._wrong(
                f"the key template has {{{GENERATION}}} once, before all columns: readers find the number under the "
                f"key that is the template up to there, e.g. key='{self._name}:{{{GENERATION}}}:{self._names}'"
            )
        self._check_kept_apart(parts)

    def _check_kept_apart(self, parts: Sequence[Part]) -> None:
        for (_, left), (between, right) in itertools.pairwise(parts):
            if left and right and not _keeps_apart(left, between):
                raise self._wrong(
                    f"in the key template the values of {left.name} and {right.name} could run into each other; put a "
                    "':' between them"
                )


class SetKeys(RedisKeys):
    """The keys of one view's sets, made from the columns that name them. The entities' own keys are its `RedisKeys`."""

    _is_shared = True

    @staticmethod
    def _columns_of(view: BoundView) -> tuple[Column, ...]:
        assert isinstance(view.view, RedisSet)
        by_name = {column.name: column for column in view.values}
        return tuple(by_name[name] for name in view.view.named)

    @staticmethod
    def _template_of(view: BoundView) -> str | None:
        assert isinstance(view.view, RedisSet)
        return view.view.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that name a set, in the order of `redis_key`'s argument."""
        return self._columns

    def _check(self, parts: Sequence[Part]) -> None:
        super()._check(parts)
        for column in self._columns:
            if column.kind in _NO_NAMES:
                raise self._wrong(
                    f"column {column.name} is {column.type_name}, whose values have no exact equality to go by; name a "
                    "set by other columns"
                )


def keys_of(view: BoundView) -> list[RedisKeys]:
    """All key templates of a view: that of its entities, and that of its sets."""
    return [RedisKeys(view), *([SetKeys(view)] if isinstance(view.view, RedisSet) else [])]


def leading(view: BoundView) -> RedisKeys | None:
    """The keys whose `pointer` leads readers to the live copy; None for a view without such a pointer."""
    keys = keys_of(view)[-1]
    return keys if keys.has_generation else None


def _default(view: BoundView) -> list[Part]:
    """The default template; it has the generation if the view's sets have it: then all keys of a copy are its own."""
    has_generation = isinstance(view.view, RedisSet) and view.view.has_generation
    columns = [*([_NUMBER] if has_generation else []), *rendered_columns(view.key)]
    return [(":" if at else f"{view.view.name}:", column) for at, column in enumerate(columns)]


def _integer_of(columns: Sequence[Column]) -> Callable[[str], Key | None] | None:
    """The parser of a key that is one integer; None for other keys."""
    told = rendered_columns(columns)
    if [column.kind for column in told] != [Kind.INTEGER]:
        return None
    parse = integer_parser(told[0])
    if len(told) == len(columns):
        return parse
    return lambda text: None if (key := parse(text)) is None else whole_key(key, columns)


def _numbered(parts: Sequence[Part], copy: int) -> list[Part]:
    """The template with the copy number inserted as text."""
    if parts[0][1] is not _NUMBER:
        return list(parts)
    (before, _), (behind, column), *others = parts
    return [(f"{before}{copy}{behind}", column), *others]


def _keeps_apart(left: Column, text: str) -> bool:
    """Return whether this separator shows where the value before it ends."""
    clear = _CLEAR_SEPARATORS.get(left.kind)
    return ":" in text or (clear is not None and clear.match(text) is not None)


def _shape(parts: list[Part]) -> str:
    """The template with the kind of each column in place of its name: 'user:{INTEGER}'."""
    return "".join(text if column is None else f"{text}{{{_kind_name(column)}}}" for text, column in parts)


def _kind_name(column: Column) -> str:
    return "GENERATION" if column is _NUMBER else column.kind.name


def glob_of(shape: str) -> str:
    """The glob that finds keys of that shape; it may find others too."""
    return _globbed(shape.partition("{")[0]) + "*"


def _globbed(text: str) -> str:
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", text)


def pattern_of(shape: str) -> str:
    """The regular expression for a shape or a segment of one, with a group for each value."""
    pieces = re.split(r"\{(\w+)\}", shape)  # text, kind, text, ...
    return "".join(_PATTERNS.get(piece, _ANYTHING) if at % 2 else re.escape(piece) for at, piece in enumerate(pieces))


def shapes_meet(first: str, second: str) -> bool:
    """Return whether some key could have both shapes."""
    # No value contains a ':', so shapes with different numbers of them have no key in common.
    mine, theirs = first.split(":"), second.split(":")
    return len(mine) == len(theirs) and all(map(_could_meet, mine, theirs))


def _could_meet(first: str, second: str) -> bool:
    """Return whether some text could match both segments; True if that cannot be excluded."""
    if "{" not in first + second:
        return first == second
    if "{" not in first or "{" not in second:
        return (
            re.fullmatch(pattern_of(first), second) is not None or re.fullmatch(pattern_of(second), first) is not None
        )
    mine, theirs = first.partition("{")[0], second.partition("{")[0]
    return mine.startswith(theirs) or theirs.startswith(mine)
