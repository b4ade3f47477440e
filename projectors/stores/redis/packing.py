"""Packs a batch of writes into one EVALSHA command, by code that is generated for each view.

redis-py packs a command argument by argument, which costs several times what the server needs for the same row; a
view's columns are known beforehand. A command is built as text and encoded once: bytes that are not UTF-8 pass through
as lone surrogates (PEP 383), so binary values arrive exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from projectors.stores import Item, Unfit, takes_equal_versions
from projectors.stores.redis.keys import SOURCE_NAME, VERSION, RedisKeys
from projectors.stores.redis.script import APPLY, TAKE_AWAY, UNLESS_MOVING
from projectors.stores.redis.unique_script import APPLY_OWN, TAKE_AWAY_OWN
from projectors.stores.redis.views import RedisJson
from projectors.views import BoundView
from viewtail.changes.rendering import NUMBER_TEXTS, json_value
from viewtail.changes.tables import Column, Kind
from viewtail.changes.writes import Key

Encode = Callable[[Sequence[Item], list[int] | None], tuple[list[str], list[str], int]]

_STRINGS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET, Kind.JSON})
_ASCII = frozenset({Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})


class Packer:
    """Packs commands of one view, for the guard or another script with the same arguments."""

    def __init__(self, view: BoundView, keys: RedisKeys, script: str = "", *, unless: str = "") -> None:
        """`unless` is the key that shows whether copies of the view are being moved; see `UNLESS_MOVING`."""
        self._source = view.source if view.is_unique_over_sources else ()
        script = script or (APPLY_OWN if self._source else APPLY)
        self._keys = keys
        self._last_keys = [argument(unless)] if unless else []
        self.script = script = UNLESS_MOVING + script if unless else script
        fields = [column.name for column in view.values]
        is_json = isinstance(view.view, RedisJson)
        arguments = [">=" if takes_equal_versions(view) else ">", *self._source]
        arguments += ["json"] if is_json else [str(len(fields)), *fields]
        self._before = "$7\r\nEVALSHA\r\n" + argument(hashlib.sha1(script.encode()).hexdigest())
        self._between = "".join(map(argument, arguments))
        self._count = 3 + len(arguments)
        self._encode = _compile(view, keys)
        self._kind = "json" if is_json else "hash"

    def command(self, items: Sequence[Item], numbers: list[int] | None = None) -> bytes:
        """Pack all items into one EVALSHA. Raises Unfit or ValueError if one of them cannot be packed.

        Adds to `numbers` the number (see `WrittenNames`) of each key that exists after the command; some if it raises.
        """
        keys, arguments, count = self._encode(items, numbers)
        key_count = 2 * len(keys) + len(self._last_keys)
        head = f"*{self._count + key_count + count}\r\n{self._before}{argument(str(key_count))}"
        return "".join([head, *keys, *self._last_keys, self._between, *arguments]).encode("utf-8", "surrogateescape")

    def take_away(self, key: Key, mark: Any) -> tuple[object, ...]:
        """The EVAL that forgets the version that a reader saw for an entity."""
        script = TAKE_AWAY_OWN if self._source else TAKE_AWAY
        return (script, 2, *self._keys.names(key), self._kind, mark, *self._source)

    def places_of(self, item: Item) -> str:
        """The keys that a write of this item affects, for people."""
        return f"key {self._keys.redis_key(item[0])!r}"


def argument(text: str) -> str:
    """One argument in the Redis protocol (RESP, bulk string)."""
    return f"${len(text.encode())}\r\n{text}\r\n"


def redis_text(kind: Kind) -> Callable[[Any], str | bytes]:
    """The function that converts a value to the content of a hash field: bytes stay bytes, all else becomes text."""
    return NUMBER_TEXTS.get(kind, lambda value: value)


def hash_content(view: BoundView, values: tuple[Any, ...] | bytes) -> dict[str, Any]:
    """The fields that a reader of the hash finds after this write, as bytes; a NULL has no field."""
    fields = {}
    for column, value in zip(view.values, values, strict=True):
        if value is not None:
            content = redis_text(column.kind)(value)
            fields[column.name] = content.encode() if isinstance(content, str) else content
    return fields


def json_content(view: BoundView, values: tuple[Any, ...] | bytes) -> dict[str, Any]:
    """The document that a reader finds after this write."""
    if isinstance(values, bytes):
        made: dict[str, Any] = orjson.loads(values)
        return made
    document = {}
    for column, value in zip(view.values, values, strict=True):
        convert = json_value(column)
        document[column.name] = value if value is None or convert is None else convert(value)
    written: dict[str, Any] = orjson.loads(orjson.dumps(document))
    return written


def _compile(view: BoundView, keys: RedisKeys) -> Encode:
    """Compile (items, numbers) -> (KEYS as protocol text, one string a pair; ARGV, one string a row; count of ARGV)."""
    names: dict[str, Any] = {}
    key_text = keys.expression(names)
    length = "len(key)" if keys.is_ascii else "len(key) if key.isascii() else len(key.encode())"
    is_json = isinstance(view.view, RedisJson)
    tombstone = r"$19\r\n{text}\r\n" if is_json else r"$20\r\n{text}t\r\n"
    before, behind = (part.replace("{", "{{").replace("}", "}}") for part in keys.tombstone)
    longer = len("".join(keys.tombstone))
    body = (_json_body if is_json else _hash_body)(view, names)
    source = f"""
def encode(items, numbers):
    keys = []
    found = []
    add_key = keys.append
    add = found.append
    add_number = None if numbers is None else numbers.append
    count = 0
    last = -1
    for ({_key_variables(view)}), (version, values) in items:
        key = {key_text}
        size = {length}
        add_key(f"${{size}}\\r\\n{{key}}\\r\\n${{size + {longer}}}\\r\\n{before}{{key}}{behind}\\r\\n")
        if version != last:
            last = version
            text = f"{{version:019d}}"
        if values is None:
            add(f"{tombstone}")
            count += 1
            continue
        if add_number is not None:
            add_number(hash(key))
{body}
    return keys, found, count
"""
    exec(compile(source, f"<redis rows of {view.id}>", "exec"), names)
    encode: Encode = names["encode"]
    return encode


def _key_variables(view: BoundView) -> str:
    return "".join(f"k{at}, " for at in range(len(view.key)))


def _hash_body(view: BoundView, names: dict[str, Any]) -> str:
    names["some_fields"] = _some_fields(view.values)
    variables = [f"v{at}" for at in range(len(view.values))]
    lines = [
        f"{''.join(f'{name}, ' for name in variables)}= values",
        f"if {' or '.join(f'{name} is None' for name in variables)}:",
        "    packed, number = some_fields(text, values)",
        "    add(packed)",
        "    count += number",
        "    continue",
    ]
    pieces = []
    for name, column in zip(variables, view.values, strict=True):
        before, size, shown = _field_code(name, column, names)
        lines += before
        pieces.append(f"${{{size}}}\\r\\n{{{shown}}}\\r\\n")
    lines += [f'add(f"$19\\r\\n{{text}}\\r\\n{"".join(pieces)}")', f"count += {len(variables) + 1}"]
    return _indented(lines)


def _field_code(name: str, column: Column, names: dict[str, Any]) -> tuple[list[str], str, str]:
    """Lines that prepare a value that is not NULL, and the expressions of its length in bytes and of its text."""
    if column.kind in _ASCII:
        return [], f"len({name})", name
    if column.kind in _STRINGS:
        return [], f"len({name}) if {name}.isascii() else len({name}.encode())", name
    if column.kind in NUMBER_TEXTS:
        names[f"to_{name}"] = NUMBER_TEXTS[column.kind]
        return [f"{name} = to_{name}({name})"], f"len({name})", name
    return [f"b{name} = {name}.decode('utf-8', 'surrogateescape')"], f"len({name})", f"b{name}"


def _some_fields(columns: Sequence[Column]) -> Callable[[str, tuple[Any, ...]], tuple[str, int]]:
    """The packer for rows with NULLs: a mask after the version shows which values follow."""
    converters = [redis_text(column.kind) for column in columns]

    def some(version: str, values: tuple[Any, ...]) -> tuple[str, int]:
        mask = "".join("0" if value is None else "1" for value in values)
        arguments = [argument(version + mask)]
        for convert, value in zip(converters, values, strict=True):
            if value is None:
                continue
            content = convert(value)
            if isinstance(content, bytes):
                arguments.append(f"${len(content)}\r\n{content.decode('utf-8', 'surrogateescape')}\r\n")
            else:
                arguments.append(argument(content))
        return "".join(arguments), len(arguments)

    return some


def _json_body(view: BoundView, names: dict[str, Any]) -> str:
    names["dumps"] = orjson.dumps
    own = {SOURCE_NAME: view.source[0]} if view.is_unique_over_sources else {}  # what precedes the user's members
    names["with_version"] = _version_adder(own)
    if view.view.document is not None:
        lines = ["document = with_version(values, text)"]
    else:
        variables = [f"v{at}" for at in range(len(view.values))]
        lines = [f"{''.join(f'{name}, ' for name in variables)}= values"]
        members = [f"'{VERSION}': text", *(f"{name!r}: {value!r}" for name, value in own.items())]
        for name, column in zip(variables, view.values, strict=True):
            convert = json_value(column)
            names[f"to_{name}"] = convert
            shown = name if convert is None else f"None if {name} is None else to_{name}({name})"
            members.append(f"{column.name!r}: {shown}")
        lines += [f"document = dumps({{{', '.join(members)}}})"]
    lines += ['add(f"${len(document)}\\r\\n{document.decode()}\\r\\n")', "count += 1"]
    return _indented(lines)


def _version_adder(own: Mapping[str, str]) -> Callable[[bytes, str], bytes]:
    """The function that puts the version before the members of a user's document, and `own` behind it."""
    taken = [(name, f'"{name}"'.encode()) for name in (VERSION, *own)]
    rest = "".join(f',"{name}":"{value}"' for name, value in own.items())

    def with_version(document: bytes, version: str) -> bytes:
        for name, quoted in taken:
            if quoted in document and name in orjson.loads(document):
                raise Unfit(f"the document has a member {name}, which viewtail sets itself; name it otherwise")
        head = f'{{"{VERSION}":"{version}"{rest}'.encode()
        return head + b"}" if document == b"{}" else head + b"," + document[1:]

    return with_version


def _indented(lines: list[str]) -> str:
    return "\n".join("        " + line for line in lines)
