"""Pickles of plain data are read as Python reads them; any other is refused, and nothing in it takes place."""

from __future__ import annotations

import collections
import copyreg
import os
import pickle
import struct
import tracemalloc
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewtail.changes.plain_pickle import MAX_DEPTH, MAX_STEPS, HostilePickleError, loads

BOUND = 1 << 20

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30)
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.dates()
)
keys = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text() | st.binary()
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=20,
)


@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_back_as_it_was_from_every_protocol(data: Any, protocol: int) -> None:
    found = loads(pickle.dumps(data, protocol), BOUND)
    assert found == data and repr(found) == repr(pickle.loads(pickle.dumps(data, protocol)))


def test_what_is_in_a_pickle_twice_is_there_twice() -> None:
    shared = ["a", {"b": b"c"}]
    assert loads(pickle.dumps({"x": shared, "y": [shared, shared]}), BOUND) == {"x": shared, "y": [shared, shared]}


def test_moments_keep_their_zone() -> None:
    data = [datetime(2024, 1, 2, 3, tzinfo=timezone(timedelta(hours=-5))), date(2024, 2, 29), timedelta(1, 2, 3)]
    assert loads(pickle.dumps(data), BOUND) == data


def test_texts_of_python_2_are_utf_8() -> None:
    assert loads(b"(dp0\nS'name'\np1\nS'\\xc3\\xa4'\np2\nsU\x02\xc3\xb6I5\ns.", BOUND) == {"name": "ä", "ö": 5}


class _Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


class _Built:
    def __init__(self) -> None:
        self.a = 1


class _Made:
    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg.__newobj_ex__, (_Built, (), {})


def text8(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def laughs(levels: int) -> bytes:
    """A list that is a few hundred bytes long, and whose parts, each counted as often as it is there, are 2^levels."""
    return b"]" + b"\x94" + b"".join(b"](h%ch%ce\x94" % (at, at) for at in range(levels)) + b"."


def copies(arguments: bytes, maker: bytes) -> bytes:
    """A list of what a maker makes of the same arguments, a hundred times."""
    return arguments + b"q\0" + maker + b"q\1(" + b"h\1h\0R" * 100 + b"l."


HOSTILE = {
    "a call, by every protocol": b"cos\nsystem\n(S'touch %s'\ntR.",
    "STACK_GLOBAL": b"\x80\x04" + text8("os") + text8("system") + b"\x93" + text8("touch %s") + b"\x85R.",
    "STACK_GLOBAL of a dotted name": text8("decimal") + text8("Decimal.from_float") + b"\x93G" + b"\0" * 8 + b"\x85R.",
    "STACK_GLOBAL of what is no text": b"K\1K\2\x93.",
    "eval": b"c__builtin__\neval\n(S'1'\ntR.",
    "getattr": b"c__builtin__\ngetattr\n(c__builtin__\nset\nS'__class__'\ntR.",
    "INST": b"(S'touch %s'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch %s'\no.",
    "NEWOBJ": b"c__builtin__\nset\n)\x81.",
    "NEWOBJ_EX": b"c__builtin__\nset\n)}\x92.",
    "BUILD": b"c__builtin__\nset\n(]tR}b.",
    "BUILD of a dict": b"}}b.",
    "a persistent id": b"Pid\n.",
    "a persistent id from the stack": b"K\1Q.",
    "an extension": b"\x82\x01.",
    "a long extension": b"\x84\1\0\0\0.",
    "a buffer out of band": b"\x97.",
    "a bytearray": b"\x96" + struct.pack("<Q", 1) + b"a.",
    "a maker as a value": b"(c__builtin__\nset\nl.",
    "a maker that is called with another": b"c__builtin__\nset\n(c__builtin__\nset\ntR.",
    "bytes of a number": b"c__builtin__\nbytes\n(J\xff\xff\xff\x7ftR.",
    "an encoding that is none": b"c_codecs\nencode\n(S'a'\nS'zip'\ntR.",
    "a call of a text": b"S'a'\n)R.",
    "a moment of a day that never was": b"cdatetime\ndate\n(C\x04\x07\xe8\x02\x1etR.",
    "a moment of a few bytes": b"cdatetime\ndatetime\n(C\x01\x07tR.",
    "a long that says it is huge": b"\x8b\xff\xff\xff\x7f.",
    "a long of a negative length": b"\x8b\xff\xff\xff\xff.",
    "a long of many digits": b"L" + b"9" * 5_000 + b"L\n.",
    "an int of many digits": b"I" + b"9" * 5_000 + b"\n.",
    "a decimal that is huge when written out": b"cdecimal\nDecimal\n(S'1e999999999'\ntR.",
    "a decimal that is no number": b"cdecimal\nDecimal\n(S'NaN'\ntR.",
    "a text that says it is huge": b"\x8d" + struct.pack("<Q", 1 << 62) + b"a.",
    "bytes that say they are huge": b"\x8e" + struct.pack("<Q", (1 << 64) - 1) + b"a.",
    "a frame that says it is huge": b"\x95" + struct.pack("<Q", 1 << 62) + b"N",
    "a memo that is not there": b"h\x05.",
    "a memo far away": b"Nr\xff\xff\xff\x7fj\xff\xff\xff\x7e.",
    "a memo of many": b"N" + b"\x94" * (MAX_STEPS + 1) + b".",
    "a billion laughs": laughs(60),
    "a long text, often": b"(X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"\x94" + b"h\0" * 50 + b"l.",
    "a set of a list, often": copies(
        b"](" + b"".join(b"M" + struct.pack("<H", one) for one in range(20_000)) + b"e\x85", b"c__builtin__\nset\n"
    ),
    "bytes of a text, often": copies(
        b"X" + struct.pack("<I", 300_000) + b"a" * 300_000 + b"X\6\0\0\0latin1\x86", b"c_codecs\nencode\n"
    ),
    "a list that holds itself": b"]q\0h\0a.",
    "a dict that holds itself, deeper": b"}q\0S'a'\n(h\0tl0s.",
    "a tuple that holds itself through a list": b"](h\0" + b"q\0\x85h\0a.",
    "nested lists": b"]" * 300 + b"a" * 299 + b".",
    "nested tuples": b")" + b"\x85" * 100_000 + b".",
    "a nested tuple as a key": b"}" + b")" + b"\x85" * 100_000 + b"Ns.",
    "a list as a key": b"}]Ns.",
    "a large number as a key": b"}\x8a\x10" + b"\1" * 16 + b"Ns.",
    "a decimal as a member": b"\x8f(cdecimal\nDecimal\n(S'1'\ntR\x90.",
    "an odd dict": b"(S'a'\nd.",
    "an append to a dict": b"}Na.",
    "an empty stack": b".",
    "too few for a tuple": b"N\x86.",
    "a mark that is not there": b"l.",
    "a bad text": b"X\1\0\0\0\xff.",
    "a bad quotation": b"S'a\n.",
    "no end": b"N",
    "half a number": b"J\0",
    "half a line": b"I5",
    "nothing": b"",
    "more behind the end": b"N.N.",
    "JSON": b'{"a": 1}',
    "a text": b"hello",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_and_does_nothing(name: str, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    with pytest.raises(HostilePickleError) as refused:
        loads(HOSTILE[name].replace(b"%s", str(target).encode()), BOUND)
    assert not target.exists()
    assert "touch" not in str(refused.value) and "system" not in str(refused.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_objects_are_refused_by_every_protocol(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    for thing in (
        _Runs(str(target)),
        _Built(),
        _Made(),
        os.system,
        _Built,
        collections.OrderedDict(a=1),
        collections.Counter("a"),
        complex(1, 2),
        range(3),
        Path("a"),
        bytearray(b"a"),
        ValueError("a"),
        object(),
    ):
        with pytest.raises(HostilePickleError):
            loads(pickle.dumps([thing], protocol), BOUND)
    assert not target.exists()


@pytest.mark.parametrize("name", ["a nested tuple as a key", "nested tuples", "a billion laughs", "a memo of many"])
def test_a_pickle_that_is_large_only_when_read_is_refused_with_what_it_is(name: str) -> None:
    with pytest.raises(HostilePickleError, match=r"nested|larger|steps|neither text"):
        loads(HOSTILE[name], BOUND)


@pytest.mark.parametrize("name", ["a set of a list, often", "bytes of a text, often"])
def test_what_is_copied_again_and_again_is_refused_before_it_takes_the_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostilePickleError, match="larger than"):
            loads(HOSTILE[name], BOUND)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 * BOUND  # all that it asks for takes twice as much


def test_sets_and_texts_of_bytes_as_large_as_the_bound_allows_are_read() -> None:
    members = set(range(BOUND // 8 - 10))
    texts = [bytes([number % 256]) * 1_000 for number in range(1_000)]
    for protocol in (0, 2, pickle.HIGHEST_PROTOCOL):
        assert loads(pickle.dumps(members, protocol), BOUND) == members
        assert loads(pickle.dumps(texts, protocol), BOUND) == texts


def test_data_is_nested_as_deep_as_the_bound_says() -> None:
    deep: Any = None
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert loads(pickle.dumps(deep), BOUND) == deep
    with pytest.raises(HostilePickleError, match="nested"):
        loads(pickle.dumps([deep]), BOUND)


def test_depth_counts_where_a_part_is_met_first_near_the_top() -> None:
    deep: Any = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    with pytest.raises(HostilePickleError, match="nested"):
        loads(pickle.dumps([[deep], deep]), BOUND)


@given(
    st.binary(max_size=60)
    | plain.map(pickle.dumps).flatmap(
        lambda good: st.integers(0, len(good)).map(lambda at: good[:at] + b"\x93" + good[at + 1 :])
    )
)
def test_whatever_comes_ends_with_data_or_a_refusal(data: bytes) -> None:
    found: Any = None
    try:
        found = loads(data, BOUND)
    except HostilePickleError:
        pass
    assert pickle.dumps(found)
