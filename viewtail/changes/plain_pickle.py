"""Reads pickles of plain data without Python's unpickler: nothing in them is looked up, called or imported.

A pickle is a program for a small stack machine. This one knows the steps that make None, numbers, texts, bytes, lists,
tuples, dicts and sets, and a few makers of plain values (`set`, `Decimal`, moments) that it recognises by name and
carries out itself. Any other step, or name, refuses the whole pickle. Python's own unpickler is no base for this: with
every name refused it still crashes at a nested tuple that is a key, and makes a memo as large as a pickle says.

Python 2's texts of bytes (`str`) are taken as UTF-8.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any, Final

MAX_STEPS: Final = 500_000
MAX_DEPTH: Final = 100  # as MySQL's JSON
MAX_DIGITS: Final = 1_000  # of a number
_MEMBER: Final = 8  # what a number counts, or a member that is copied

_KEYS = (str, bytes, bool, float, type(None))
_SCALARS = frozenset({str, bytes, int, bool, float, type(None), Decimal, datetime, date, timezone, timedelta})
_BUILTINS = ("builtins", "__builtin__")


class HostilePickleError(Exception):
    """The bytes are no pickle of plain data; the text says why, without values."""


def loads(data: bytes, max_size: int) -> Any:
    """Return the value that a pickle of plain data holds.

    Args:
        data: the pickle, of any protocol.
        max_size: how large its data may be, each part counted as often as it would be written out: about bytes.

    Raises HostilePickleError.
    """
    machine = _Machine(data, max_size)
    try:
        value = machine.run()
    except HostilePickleError:
        raise
    except (IndexError, KeyError, ValueError, TypeError, struct.error, InvalidOperation, OverflowError):
        raise HostilePickleError("it is no pickle") from None
    _check(value, max_size)
    return value


class _Machine:
    def __init__(self, data: bytes, max_size: int) -> None:
        self._data, self._at = data, 0
        self._max_size, self._left = max_size, max_size  # `left` of what makers may copy
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # what was on the stack at each mark
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        steps = _STEPS
        for _ in range(MAX_STEPS):
            code = self._take(1)[0]
            if code == _STOP:
                if self._at < len(self._data):
                    raise HostilePickleError("bytes follow behind its end")
                return self._stack.pop()
            step = steps.get(code)
            if step is None:
                raise HostilePickleError("it makes something that is no plain data, or it is no pickle")
            step(self)
        raise HostilePickleError(f"it takes more than {MAX_STEPS:,} steps")

    # -- its bytes ----------------------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if not self._at <= end <= len(self._data):
            raise HostilePickleError("it ends too early")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def skip(self, count: int) -> None:
        self._take(count)

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise HostilePickleError("it ends too early")
        line = self._data[self._at : end]
        self._at = end + 1
        return line

    # -- values -------------------------------------------------------------------------------------------------

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def integer_line(self) -> None:
        line = self._line()
        self._push(line == b"01" if line in (b"00", b"01") else _integer(line))

    def long_line(self) -> None:
        self._push(_integer(self._line().removesuffix(b"L")))

    def long(self, size: int) -> None:
        length = self._number(size)
        if length * 2 > MAX_DIGITS:
            raise HostilePickleError(f"it holds a number of more than {MAX_DIGITS:,} digits")
        self._push(self._number(length, signed=True))

    def float_line(self) -> None:
        self._push(float(self._line()))

    def double(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0])

    def string_line(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[0] != line[-1] or line[0] not in b"\"'":
            raise ValueError
        self._push(codecs.escape_decode(line[1:-1])[0].decode())

    def unicode_line(self) -> None:
        self._push(self._line().decode("raw-unicode-escape"))

    def text(self, size: int) -> None:
        self._push(self._take(self._number(size)).decode())

    def bytes_(self, size: int) -> None:
        self._push(self._take(self._number(size)))

    # -- lists, tuples, dicts, sets -----------------------------------------------------------------------------

    def mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _to_mark(self) -> list[Any]:
        above, self._stack = self._stack, self._below.pop()
        return above

    def list_(self) -> None:
        self._push(self._to_mark())

    def tuple_(self) -> None:
        self._push(tuple(self._to_mark()))

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def dict_(self) -> None:
        items = self._to_mark()
        self._push({})
        self._set(items)

    def frozenset_(self) -> None:
        self._push(frozenset(_members(self._to_mark())))

    def append(self) -> None:
        value = self._stack.pop()
        self._of(list).append(value)

    def appends(self) -> None:
        items = self._to_mark()
        self._of(list).extend(items)

    def set_item(self) -> None:
        value = self._stack.pop()
        self._set([self._stack.pop(), value])

    def set_items(self) -> None:
        self._set(self._to_mark())

    def add_items(self) -> None:
        items = self._to_mark()
        self._of(set).update(_members(items))

    def _set(self, items: list[Any]) -> None:
        self._of(dict).update(zip(_members(items[::2]), items[1::2], strict=True))

    def _of(self, kind: type) -> Any:
        """Return the top of the stack, which must be of a kind."""
        if type(self._stack[-1]) is not kind:
            raise TypeError
        return self._stack[-1]

    # -- the stack and the memo ---------------------------------------------------------------------------------

    def pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._to_mark()

    def pop_mark(self) -> None:
        self._to_mark()

    def put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, number: int) -> None:
        self._push(self._memo[number])

    # -- makers of plain values ---------------------------------------------------------------------------------

    def global_line(self) -> None:
        module = self._line()
        self._push(_maker(module.decode(), self._line().decode()))

    def stack_global(self) -> None:
        name = self._stack.pop()
        self._push(_maker(self._stack.pop(), name))

    def reduce(self) -> None:
        arguments, maker = self._stack.pop(), self._stack.pop()
        if type(maker) is not _Maker or type(arguments) is not tuple:
            raise TypeError
        if arguments and type(arguments[0]) in (str, bytes, list):
            self._pay(len(arguments[0]) * (_MEMBER if type(arguments[0]) is list else 1))
        self._push(maker.make(*arguments))

    def _pay(self, size: int) -> None:
        """Count the bytes that a maker copies: a few bytes of the pickle could copy a large value of the memo again."""
        self._left -= size
        if self._left < 0:
            raise _too_large(self._max_size)


class _Maker:
    """A maker of plain values, which a name in a pickle stands for."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make


def _maker(module: object, name: object) -> _Maker:
    maker = _MAKERS.get((module, name)) if type(module) is str and type(name) is str else None
    if maker is None:
        raise HostilePickleError("it names a class or a function that makes no plain data")
    return maker


def _integer(digits: bytes) -> int:
    if len(digits) > MAX_DIGITS:
        raise HostilePickleError(f"it holds a number of more than {MAX_DIGITS:,} digits")
    return int(digits)


def _members(members: Iterable[Any]) -> Iterator[Any]:
    """Yield keys of a dict, or members of a set; refuse kinds whose hashes could be chosen so that all collide."""
    for member in members:
        kind = type(member)
        if kind not in _KEYS and not (kind is int and -(1 << 63) <= member < 1 << 64):
            raise HostilePickleError("a key of a dict, or a member of a set, is neither text, bytes nor a number")
        yield member


def _list(given: Any) -> list[Any]:
    if type(given) is not list:
        raise TypeError
    return given


def _encoded(text: str, charset: str) -> bytes:
    """Return bytes as they are written for Python 2."""
    if type(text) is not str or charset != "latin1":
        raise TypeError
    return text.encode("latin1")


def _decimal(text: str) -> Decimal:
    if type(text) is not str or len(text) > MAX_DIGITS:
        raise TypeError
    value = Decimal(text)
    if not value.is_finite() or abs(value.adjusted()) > MAX_DIGITS or len(value.as_tuple().digits) > MAX_DIGITS:
        raise HostilePickleError(f"it holds a number of more than {MAX_DIGITS:,} digits, or one that is not finite")
    return value


def _date(state: bytes) -> date:
    high, low, month, day = _state(state, 4)
    return date(high << 8 | low, month, day)


def _datetime(state: bytes, zone: timezone | None = None) -> datetime:
    high, low, month, day, hour, minute, second, *micro = _state(state, 10)
    if zone is not None and type(zone) is not timezone:
        raise TypeError
    moment = (hour, minute, second, int.from_bytes(bytes(micro), "big"))
    return datetime(high << 8 | low, month & 0x7F, day, *moment, tzinfo=zone, fold=month >> 7)


def _state(given: bytes, length: int) -> bytes:
    if type(given) is not bytes or len(given) != length:
        raise TypeError
    return given


def _timedelta(days: int, seconds: int, micro: int) -> timedelta:
    if {type(days), type(seconds), type(micro)} != {int}:
        raise TypeError
    return timedelta(days, seconds, micro)


def _zone(offset: timedelta) -> timezone:
    if type(offset) is not timedelta:
        raise TypeError
    return timezone(offset)


_MAKERS: dict[tuple[str, str], _Maker] = {
    **{(module, "set"): _Maker(lambda given: set(_members(_list(given)))) for module in _BUILTINS},
    **{(module, "frozenset"): _Maker(lambda given: frozenset(_members(_list(given)))) for module in _BUILTINS},
    **{(module, "bytes"): _Maker(lambda: b"") for module in _BUILTINS},
    ("_codecs", "encode"): _Maker(_encoded),
    ("decimal", "Decimal"): _Maker(_decimal),
    ("datetime", "date"): _Maker(_date),
    ("datetime", "datetime"): _Maker(_datetime),
    ("datetime", "timedelta"): _Maker(_timedelta),
    ("datetime", "timezone"): _Maker(_zone),
}

_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], None]] = {  # by opcode; CPython, Lib/pickletools.py says what each does
    0x80: lambda machine: machine.skip(1),  # the protocol
    0x95: lambda machine: machine.skip(8),  # the length of a frame
    ord("N"): lambda machine: machine._push(None),
    0x88: lambda machine: machine._push(True),
    0x89: lambda machine: machine._push(False),
    ord("I"): _Machine.integer_line,
    ord("J"): lambda machine: machine._push(machine._number(4, signed=True)),
    ord("K"): lambda machine: machine._push(machine._number(1)),
    ord("M"): lambda machine: machine._push(machine._number(2)),
    ord("L"): _Machine.long_line,
    0x8A: lambda machine: machine.long(1),
    0x8B: lambda machine: machine.long(4),
    ord("F"): _Machine.float_line,
    ord("G"): _Machine.double,
    ord("S"): _Machine.string_line,
    ord("T"): lambda machine: machine.text(4),
    ord("U"): lambda machine: machine.text(1),
    ord("V"): _Machine.unicode_line,
    ord("X"): lambda machine: machine.text(4),
    0x8C: lambda machine: machine.text(1),
    0x8D: lambda machine: machine.text(8),
    ord("B"): lambda machine: machine.bytes_(4),
    ord("C"): lambda machine: machine.bytes_(1),
    0x8E: lambda machine: machine.bytes_(8),
    ord("("): _Machine.mark,
    ord("]"): lambda machine: machine._push([]),
    ord("}"): lambda machine: machine._push({}),
    ord(")"): lambda machine: machine._push(()),
    0x8F: lambda machine: machine._push(set()),
    ord("l"): _Machine.list_,
    ord("t"): _Machine.tuple_,
    0x85: lambda machine: machine.tuple_of(1),
    0x86: lambda machine: machine.tuple_of(2),
    0x87: lambda machine: machine.tuple_of(3),
    ord("d"): _Machine.dict_,
    0x91: _Machine.frozenset_,
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    0x90: _Machine.add_items,
    ord("0"): _Machine.pop,
    ord("1"): _Machine.pop_mark,
    ord("2"): lambda machine: machine._push(machine._stack[-1]),
    ord("p"): lambda machine: machine.put(_integer(machine._line())),
    ord("q"): lambda machine: machine.put(machine._number(1)),
    ord("r"): lambda machine: machine.put(machine._number(4)),
    0x94: _Machine.memoize,
    ord("g"): lambda machine: machine.get(_integer(machine._line())),
    ord("h"): lambda machine: machine.get(machine._number(1)),
    ord("j"): lambda machine: machine.get(machine._number(4)),
    ord("c"): _Machine.global_line,
    0x93: _Machine.stack_global,
    ord("R"): _Machine.reduce,
}


def _check(top: Any, max_size: int) -> None:
    """Check all parts: plain, nested within bounds, none in itself, and not too large where one is repeated."""
    measured: dict[int, tuple[int, int]] = {}  # by id of a container: size, and depth
    begun: set[int] = set()
    waiting = [top]
    while waiting:
        value = waiting[-1]
        if type(value) in _SCALARS or id(value) in measured:
            waiting.pop()
            continue
        parts = _parts(value)
        if id(value) not in begun:
            begun.add(id(value))
            if len(begun) - len(measured) > MAX_DEPTH:  # what is begun and not measured holds `value`
                raise HostilePickleError(f"it is nested more than {MAX_DEPTH} deep")
            inner = [part for part in parts if type(part) not in _SCALARS and id(part) not in measured]
            if not begun.isdisjoint(map(id, inner)):
                raise HostilePickleError("something in it holds itself")
            waiting += inner
            continue
        measured[id(value)] = _measure_all(parts, measured, max_size)
        waiting.pop()


def _measure_all(parts: list[Any], measured: dict[int, tuple[int, int]], max_size: int) -> tuple[int, int]:
    """Return the size and depth of a container of these parts."""
    sizes = [_measure(part, measured) for part in parts]
    size, depth = 1 + sum(size for size, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)
    if size > max_size:
        raise _too_large(max_size)
    if depth > MAX_DEPTH:
        raise HostilePickleError(f"it is nested more than {MAX_DEPTH} deep")
    return size, depth


def _too_large(max_size: int) -> HostilePickleError:
    return HostilePickleError(f"written out it would be larger than {max_size:,} bytes")


def _parts(value: Any) -> list[Any]:
    if type(value) is dict:
        return [*value.keys(), *value.values()]
    if type(value) in (list, tuple, set, frozenset):
        return list(value)
    raise HostilePickleError("it holds something that is no plain data")


def _measure(value: Any, measured: dict[int, tuple[int, int]]) -> tuple[int, int]:
    if type(value) in (str, bytes):
        return 1 + len(value), 0
    return (_MEMBER, 0) if type(value) in _SCALARS else measured[id(value)]
