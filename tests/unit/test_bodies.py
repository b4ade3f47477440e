"""Bodies of entities: each codec gives the dict that went in, and refuses what is anything else without its values."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewtail.changes.bodies import CODECS, MAX_BODY_BYTES, BodyRefusedError, decoder

ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "json": lambda body: json.dumps(body).encode(),
    "zlib+json": lambda body: zlib.compress(json.dumps(body).encode()),
    "zlib+msgpack": lambda body: zlib.compress(msgpack.packb(body)),
    "zlib+pickle": lambda body: zlib.compress(pickle.dumps(body, 2)),
}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def test_every_codec_is_tested() -> None:
    assert set(ENCODERS) == set(CODECS)


@given(st.dictionaries(st.text(), values), st.sampled_from(CODECS))
def test_a_body_comes_back_as_it_was(body: dict[str, Any], codec: str) -> None:
    found = decoder(codec)(ENCODERS[codec](body))
    assert found == body and json.dumps(found) == json.dumps(body)


@given(st.dictionaries(st.text(), values))
def test_json_is_the_same_as_bytes_and_as_text(body: dict[str, Any]) -> None:
    text = json.dumps(body, ensure_ascii=False)
    assert decoder("json")(text) == decoder("json")(text.encode()) == body


@given(st.integers(-(10**60), 10**60))
def test_an_integer_of_any_length_is_exact(number: int) -> None:
    assert decoder("json")(f'{{"n": [{number}]}}') == {"n": [number]}


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


BAD: dict[str, list[tuple[str, bytes | str]]] = {
    "json": [
        ("no JSON", b'{"secret'),
        ("no JSON", b""),
        ("no JSON", b'{"secret": NaN}'),
        ("no JSON", b'{"secret": 1e999}'),
        ("no JSON", b'{"secret": "\xff"}'),
        ("no JSON", b'{"secret": "\\ud800"}'),
        ("no JSON", nested(2_000)),
        ("no JSON", nested(1_020) + b'{"n": 12345678901234567890}'),
        ("no JSON", zlib.compress(b'{"secret": 1}')),
        ("no JSON", b'{"secret": ' + b"1" * 5_000 + b"}"),
        ("a list, not an object", b'["secret"]'),
        ("null, not an object", "null"),
        ("a single value, not an object", '"secret"'),
        ("larger than", b'{"secret": "' + b"a" * MAX_BODY_BYTES + b'"}'),
    ],
    "zlib+json": [
        ("not compressed by zlib", b'{"secret": 1}'),
        ("ends too early", zlib.compress(b'{"secret": 1}')[:-3]),
        ("ends too early", b""),
        ("follow behind", zlib.compress(b'{"secret": 1}') + b"a"),
        ("not compressed by zlib", zlib.compress(b'{"secret": 1}')[:-1] + b"!"),
        ("a text", "secret"),
        ("more than 4,194,304 bytes", zlib.compress(b" " * (1 << 28))),
        ("no JSON", zlib.compress(msgpack.packb({"secret": 1}))),
        ("no JSON", zlib.compress(pickle.dumps({"secret": 1}))),
    ],
    "zlib+msgpack": [
        ("no MessagePack", zlib.compress(b'{"secret": 1}')),
        ("no MessagePack", zlib.compress(pickle.dumps({"secret": 1}))),
        ("no MessagePack", zlib.compress(b"\x91" * 5_000 + b"\xc0")),
        ("no MessagePack", zlib.compress(b"\x81\xa1a")),
        ("no MessagePack", zlib.compress(b"\x81\xa1a\xd4\x05secret")),
        ("no MessagePack", zlib.compress(b"\x81\x90\xc0")),
        ("no MessagePack", zlib.compress(b"\x81\xa6secre\xff\xc0")),
        ("no MessagePack", zlib.compress(b"\xdf\xff\xff\xff\xff")),
        ("no MessagePack", zlib.compress((b"\xdd\x00\x0f\xff\xff") * 1_000 + b"\xc0" * (1 << 20))),
        ("a list, not an object", zlib.compress(msgpack.packb(["secret"]))),
        ("more than 4,194,304 bytes", zlib.compress(b"\xc0" * (1 << 28))),
    ],
    "zlib+pickle": [
        ("no plain data", zlib.compress(b'{"secret": 1}')),
        ("plain data", zlib.compress(b"cos\nsystem\n(S'secret'\ntR.")),
        ("a list, not an object", zlib.compress(pickle.dumps({"secret"}))),
        ("nested more than", zlib.compress(b"]" * 300 + b"a" * 299 + b".")),
        ("more than 4,194,304 bytes", zlib.compress(b"]" * (1 << 28))),
    ],
}


@pytest.mark.parametrize(("codec", "reason", "body"), [(codec, *bad) for codec in CODECS for bad in BAD[codec]])
def test_what_is_no_body_is_refused_with_a_reason_that_shows_nothing_of_it(
    codec: str, reason: str, body: bytes | str
) -> None:
    with pytest.raises(BodyRefusedError, match=reason) as refused:
        decoder(codec)(body)
    assert "secret" not in str(refused.value)


def test_a_body_of_just_the_largest_size_is_read() -> None:
    body = {"a": "b" * (MAX_BODY_BYTES - len('{"a": ""}'))}
    assert decoder("zlib+json")(ENCODERS["zlib+json"](body)) == body


def test_a_moment_of_msgpack_is_one_in_utc() -> None:
    found = decoder("zlib+msgpack")(zlib.compress(b"\x81\xa1t\xd6\xff\x00\x00\x00\x01"))
    assert found["t"].isoformat() == "1970-01-01T00:00:01+00:00"


@given(st.binary(max_size=80), st.sampled_from(CODECS), st.booleans())
def test_whatever_comes_ends_with_a_dict_or_a_refusal(data: bytes, codec: str, is_packed: bool) -> None:
    found: Any = {}
    try:
        found = decoder(codec)(zlib.compress(data) if is_packed else data)
    except BodyRefusedError:
        pass
    assert isinstance(found, dict)
