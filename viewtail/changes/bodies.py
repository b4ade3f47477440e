"""Bodies: the dict that a column of bytes, text or JSON holds, by the codec that its entity names.

What comes out is plain data, whatever came in: nothing in a body is called or imported, and how much memory and time it
takes is bounded. A body that is anything else is refused, with a reason that has none of its values.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Any, Final, NoReturn

import orjson

from viewtail.changes import plain_pickle

MAX_BODY_BYTES: Final = 4 << 20  # decompressed; the data made of a hostile one may take some 80 times as much memory
ZLIB: Final = "zlib+"

_LONG_NUMBER = re.compile(r"[0-9]{19}")
_LONG_NUMBER_IN_BYTES = re.compile(rb"[0-9]{19}")

Body = dict[Any, Any]
Decode = Callable[[Any], Body]


class BodyRefusedError(Exception):
    """A body that is not read; says why, without its values."""


def decoder(codec: str) -> Decode:
    """The function from a value of the body's column, which is not NULL, to its dict. It raises BodyRefusedError.

    Args:
        codec: one of CODECS.
    """
    load = _LOADS[codec.removeprefix(ZLIB)]()
    is_compressed = codec.startswith(ZLIB)

    def decode(given: bytes | str) -> Body:
        if is_compressed:
            given = _decompressed(given)
        elif len(given) > MAX_BODY_BYTES:
            raise BodyRefusedError(f"it is larger than {MAX_BODY_BYTES:,} bytes")
        try:
            body = load(given)
        except (RecursionError, MemoryError):
            raise BodyRefusedError("it is nested too deep, or too large") from None
        if type(body) is not dict:
            raise BodyRefusedError(f"it holds {_kind(body)}, not an object (a dict)")
        return body

    return decode


def _decompressed(given: bytes | str) -> bytes:
    if isinstance(given, str):
        raise BodyRefusedError("it is a text, which zlib does not make")
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(given, MAX_BODY_BYTES + 1)
    except zlib.error:
        raise BodyRefusedError("it is not compressed by zlib, or damaged") from None
    if len(data) > MAX_BODY_BYTES:
        raise BodyRefusedError(f"it decompresses to more than {MAX_BODY_BYTES:,} bytes")
    if not stream.eof:
        raise BodyRefusedError("it ends too early")
    if stream.unused_data:
        raise BodyRefusedError("bytes follow behind its end")
    return data


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    return "a single value"


def _of_json() -> Callable[[bytes | str], Any]:
    def load(data: bytes | str) -> Any:
        try:
            body = orjson.loads(data)
            # orjson makes floats of integers that no 64 bits hold.
            is_long = _LONG_NUMBER.search(data) if isinstance(data, str) else _LONG_NUMBER_IN_BYTES.search(data)
            return body if is_long is None else json.loads(data, parse_constant=_no_constant)
        except ValueError:
            raise BodyRefusedError("it is no JSON, or nested too deep") from None

    return load


def _no_constant(_: str) -> NoReturn:
    raise ValueError


def _of_msgpack() -> Callable[[bytes | str], Any]:
    import msgpack  # where no entity has such bodies it need not be there

    def load(data: bytes | str) -> Any:
        try:
            return msgpack.unpackb(data, timestamp=3, strict_map_key=False, ext_hook=_no_extension)
        except (ValueError, TypeError, OverflowError, msgpack.exceptions.UnpackException):
            raise BodyRefusedError("it is no MessagePack of plain data, or nested too deep") from None

    return load


def _no_extension(*_: object) -> NoReturn:
    raise ValueError


def _of_pickle() -> Callable[[bytes | str], Any]:
    def load(data: bytes | str) -> Any:
        assert isinstance(data, bytes)
        try:
            return plain_pickle.loads(data, MAX_BODY_BYTES)
        except plain_pickle.HostilePickleError as error:
            raise BodyRefusedError(str(error)) from None

    return load


_LOADS = {"json": _of_json, "msgpack": _of_msgpack, "pickle": _of_pickle}
CODECS: Final = ("json", *(ZLIB + name for name in _LOADS))
