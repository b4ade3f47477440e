"""Tables over every column type, and random SQL literals for them that look for trouble.

A `Sample` is one column: its declaration and a function that makes a literal. What the server makes of the
literal (cut, rounded, refused and zeroed under sql_mode '') is the server's business: tests compare with what
it answers, never with what was sent."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from pymysql.converters import escape_string

from ingest.charset_tables import DIFFERENCES
from ingest.charsets import READABLE, decoder_of
from tests.support.charset_tables import codes

Literal = Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One column of a sample table."""

    name: str
    declared: str  # as in CREATE TABLE
    literal: Literal  # a SQL expression for a value that is not NULL
    is_readable: bool = True  # False: viewtail refuses to follow it, and must step over it

    @property
    def is_generated(self) -> bool:
        return " as (" in self.declared

    @property
    def is_nullable(self) -> bool:
        return "not null" not in self.declared and not self.is_generated


@dataclass(frozen=True, slots=True)
class SampleTable:
    """A table `id INT PRIMARY KEY` and its samples."""

    name: str
    samples: tuple[Sample, ...]

    def create_statement(self, row_format: str) -> str:
        columns = ", ".join(f"`{sample.name}` {sample.declared}" for sample in self.samples)
        return (
            f"CREATE TABLE `{self.name}` (`id` INT NOT NULL PRIMARY KEY, {columns}) DEFAULT CHARSET=utf8mb4 "
            f"ROW_FORMAT={row_format}"
        )

    def row(self, number: int, rng: random.Random) -> str:
        """'(id, literal, ...)'; about one value in six is NULL, one row in six has no NULLs at all."""
        nulls = rng.choice((0, 1, 1, 1, 1, 2)) / 6
        values = (
            "NULL" if sample.is_nullable and rng.random() < nulls else sample.literal(rng) for sample in self.samples
        )
        return f"({number}, {', '.join(values)})"


# --- Literals ---


def quoted(text: str) -> str:
    return f"'{escape_string(text)}'"


def _hex(raw: bytes) -> str:
    return f"x'{raw.hex()}'"


def one_of(*literals: str) -> Literal:
    return lambda rng: rng.choice(literals)


def integer(bits: int, *, is_unsigned: bool = False) -> Literal:
    low, high = (0, (1 << bits) - 1) if is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    edges = [low, low + 1, high, high - 1, 0, 1, 127, 128, 255, 256, low - 1, high + 1]

    def literal(rng: random.Random) -> str:
        value = rng.choice(edges) if rng.random() < 0.4 else rng.randint(low, high)
        return str(value if rng.random() < 0.7 else value >> rng.randrange(bits))

    return literal


def decimal(precision: int, scale: int) -> Literal:
    def literal(rng: random.Random) -> str:
        digit = rng.choice(("0123456789", "9", "0", "01"))
        whole = "".join(rng.choice(digit) for _ in range(rng.randint(0, precision - scale))) or "0"
        fraction = "".join(rng.choice(digit) for _ in range(rng.randint(0, scale)))
        return rng.choice(("", "-")) + whole + ("." + fraction if fraction else "")

    return literal


def floating(largest_exponent: int) -> Literal:
    edges = (
        "0",
        "-0e0",
        "1e-45",
        "1.17549435e-38",
        "3.4028234e38",
        "-3.4028234e38",
        "16777217",
        "0.1",
        "-1.5",
    )
    edges += ("1e15", "1e14", "123456.7", "1.2345678", "999999.5", "1e-7") + (
        ("5e-324", "1.7976931348623157e308", "9007199254740993") if largest_exponent > 40 else ()
    )

    def literal(rng: random.Random) -> str:
        if rng.random() < 0.3:
            return rng.choice(edges)
        if rng.random() < 0.5:
            return repr(rng.uniform(-1000, 1000))
        return f"{rng.uniform(-10, 10):.17f}e{rng.randint(-largest_exponent, largest_exponent - 1)}"

    return literal


def _clock(rng: random.Random, hours: int) -> str:
    fraction = rng.choice(("", ".5", ".000001", ".999999", f".{rng.randrange(10**6):06d}"))
    return f"{rng.randint(0, hours):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}{fraction}"


def date(rng: random.Random) -> str:
    edges = ("0000-00-00", "9999-12-31", "1000-01-01", "2024-00-00", "2024-02-00", "2024-02-31", "0000-01-01")
    if rng.random() < 0.4:
        return quoted(rng.choice(edges))
    return quoted(f"{rng.randint(1, 9999):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}")


def time(rng: random.Random) -> str:
    edges = (
        "-838:59:59",
        "838:59:59.999999",
        "-00:00:00.5",
        "-00:00:00.000001",
        "-00:00:01",
        "00:00:00",
        "-12:00:00.999",
    )
    if rng.random() < 0.4:
        return quoted(rng.choice(edges))
    return quoted(rng.choice(("", "-")) + _clock(rng, 838))


def datetime(rng: random.Random) -> str:
    return quoted(f"{date(rng)[1:-1]} {_clock(rng, 23)}")


def timestamp(rng: random.Random) -> str:
    edges = (
        "0000-00-00 00:00:00",
        "1970-01-01 00:00:01",
        "2038-01-19 03:14:07",
        "2024-02-29 23:59:59.999999",
    )
    edges += (
        "2000-02-29 00:00:00",
        "1999-12-31 23:59:59",
        "2037-12-31 23:59:59",
        "1970-01-01 00:00:01.000001",
    )
    if rng.random() < 0.4:
        return quoted(rng.choice(edges))
    return quoted(f"{rng.randint(1971, 2037)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d} {_clock(rng, 23)}")


LATIN1 = "".join(chr(code) for code in range(0xA0, 0x100)) + "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ" + "\x81\x8d\x8f\x90\x9d"
_ASCII = "abcXYZ019 \t\n\r\0'\"\\%:{},\x7f\x1b"
_MORE = {"latin1": LATIN1, "ascii": "~", "utf8mb3": "éßЖ中\ufeff\u2028￮", "utf8mb4": "éЖ中😀🏳️‍🌈𝔘\U0010ffff"}


def text(charset: str, characters: int) -> Literal:
    alphabet = _ASCII + _MORE[charset]

    def literal(rng: random.Random) -> str:
        style = rng.random()
        if style < 0.15:
            return rng.choice(("''", "' '", "'a  '", "'\\0'", "'0'"))
        length = characters if style > 0.95 else rng.randint(0, min(characters, 30))
        plain = "abcdefghij" if style < 0.5 else alphabet
        return quoted("".join(rng.choices(plain, k=length)))

    return literal


def raw(size: int) -> Literal:
    def literal(rng: random.Random) -> str:
        length = size if rng.random() < 0.1 else rng.randint(0, min(size, 40))
        tail = bytes(rng.choice((0, 0, 3)))[: max(0, size - length)]
        return _hex(rng.randbytes(length) + tail)

    return literal


def members(labels: Sequence[str]) -> Literal:
    return lambda rng: quoted(",".join(label for label in labels if rng.random() < rng.choice((0.1, 0.9))))


def _json_leaf(rng: random.Random) -> str:
    plain: tuple[object, ...] = (
        None, True, False, 0, -1, 32767, 32768, -32768, -32769, 65535, 65536, 2**31 - 1, 2**31, -(2**31), 2**32,
        2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 1e20, 1e15, 1e14, 1e-14, 1e-15, 0.1, 1 / 3, 5e-324,
        1.7976931348623157e308, rng.uniform(-1, 1) * 10.0 ** rng.randint(-30, 30), rng.randint(-(2**63), 2**63),
        "", 'q"\\/\b\f\n\r\t\x01\x1f\x7f', "é中😀", "x" * rng.randint(0, 200), [], {},
    )  # fmt: skip
    style = rng.random()
    if style < 0.6:
        return f"CAST({quoted(json.dumps(rng.choice(plain), ensure_ascii=rng.random() < 0.5))} AS JSON)"
    opaque: Sequence[Literal] = (
        lambda rng: f"CAST({date(rng)} AS DATE)",
        lambda rng: f"CAST({datetime(rng)} AS DATETIME({rng.randint(0, 6)}))",
        lambda rng: f"CAST({time(rng)} AS TIME({rng.randint(0, 6)}))",
        lambda rng: f"CAST({decimal(65, 30)(rng)} AS DECIMAL(65,30))",
        lambda rng: f"CAST({decimal(10, 2)(rng)} AS DECIMAL(10,2))",
        lambda rng: raw(100)(rng),
        lambda rng: f"CAST({raw(20)(rng)} AS BINARY(20))",
        lambda rng: "b'1010101'",
        lambda rng: "TIMESTAMP'2024-02-29 12:34:56.789'",
        lambda rng: "ST_GeomFromText('POINT(1.5 -2)')",
        lambda rng: "NULL",
    )
    return rng.choice(opaque)(rng)


def _form(rng: random.Random) -> str:
    """One of a few kinds of documents, so that each occurs often."""
    shown = rng.choice(("'plain'", "'q\"'", "'é中'", f"REPEAT('long ', {rng.choice((20, 60, 4000))})", "''"))
    price = rng.choice(("1.5e0", "-0.0e0", "1e20", "CAST(1.10 AS DECIMAL(5, 2))", "7", "NULL", "70000", "5000000000"))
    when = rng.choice(("CAST('2024-01-02' AS DATE)", "TRUE", "JSON_ARRAY()", "JSON_OBJECT()"))
    tags = rng.choice(("JSON_ARRAY('a', 'b')", f"JSON_ARRAY({price}, {shown}, {when})", f"JSON_OBJECT('in', {shown})"))
    number = rng.randint(-40000, 40000)
    return f"JSON_OBJECT('name', {shown}, 'price', {price}, 'when', {when}, 'tags', {tags}, 'n', {number})"


def document(rng: random.Random, depth: int = 3) -> str:
    """A SQL expression that gives a JSON value of any inner type, nested."""
    style = rng.random()
    if depth == 3 and style > 0.7:
        return _form(rng)
    if not depth or style < 0.3:
        leaf = _json_leaf(rng)
        return f"CAST({leaf} AS JSON)" if depth == 3 and leaf != "NULL" else leaf
    children = [document(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 3)))]
    if style < 0.33:
        children.append(f"REPEAT('long ', {rng.choice((10, 100, 14_000))})")
    if style < 0.6:
        return f"JSON_ARRAY({', '.join(children)})"
    keys = (quoted(rng.choice(("", "a", "b", "key", "é", 'q"\\', "a\nb", "k" * 300)) + str(at)) for at in range(9))
    return "JSON_OBJECT(" + ", ".join(f"{key}, {child}" for key, child in zip(keys, children, strict=False)) + ")"


def geometry(rng: random.Random) -> str:
    x, y = rng.uniform(-90, 90), rng.uniform(-90, 90)
    shape = rng.choice((f"POINT({x} {y})", f"LINESTRING({x} {y}, 1 1)", "GEOMETRYCOLLECTION EMPTY"))
    return f"ST_GeomFromText('{shape}', {rng.choice((0, 4326))})"


def point(rng: random.Random) -> str:
    return f"ST_GeomFromText('POINT({rng.uniform(-90, 90)} 1)')"


def vector(rng: random.Random) -> str:
    return f"STRING_TO_VECTOR('[{rng.uniform(-1, 1)}, 0, 1e-20, {rng.randint(-5, 5)}]')"


# --- Tables ---

_FEW = ("a", "it''s", "", "é")
_MANY = tuple(f"label{number}" for number in range(300))


def _labels(labels: Sequence[str]) -> str:
    return ",".join("'" + label.replace("\\", "\\\\") + "'" for label in labels)


def _integers() -> list[Sample]:
    widths = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
    samples = [Sample(name, name, integer(bits)) for name, bits in widths.items()]
    samples += [
        Sample(f"{name}_u", f"{name} unsigned", integer(bits, is_unsigned=True)) for name, bits in widths.items()
    ]
    samples += [Sample(f"bit{bits}", f"bit({bits})", integer(bits, is_unsigned=True)) for bits in (1, 8, 9, 33, 64)]
    samples.append(Sample("year", "year", one_of("0", "1901", "2155", "2024", "1970", "'0000'")))
    samples.append(Sample("zerofill", "int(8) unsigned zerofill", integer(32, is_unsigned=True)))
    samples.append(Sample("certain", "smallint not null", integer(16)))
    return samples


def _numbers() -> list[Sample]:
    shapes = [
        (1, 0),
        (9, 0),
        (10, 2),
        (65, 30),
        (30, 30),
        (65, 0),
        (9, 9),
        (20, 4),
        (18, 9),
        (12, 1),
        (35, 17),
    ]
    samples = [Sample(f"d{p}_{s}", f"decimal({p},{s})", decimal(p, s)) for p, s in shapes]
    return [
        *samples,
        Sample("d_u", "decimal(10,3) unsigned", decimal(10, 3)),
        Sample("float", "float", floating(38)),
        Sample("float_u", "float unsigned", floating(38)),
        Sample("float7_2", "float(7,2)", floating(5)),
        Sample("double", "double", floating(307)),
        Sample("double10_3", "double(10,3)", floating(6)),
        Sample("decimal_z", "decimal(8,2) zerofill", decimal(8, 2)),
        Sample("double_z", "double zerofill", floating(5)),
    ]


def _moments() -> list[Sample]:
    samples = [Sample("date", "date", date)]
    for digits in range(7):
        samples.append(Sample(f"time{digits}", f"time({digits})", time))
        samples.append(Sample(f"datetime{digits}", f"datetime({digits})", datetime))
        samples.append(Sample(f"timestamp{digits}", f"timestamp({digits}) null", timestamp))
    return samples


def _texts() -> list[Sample]:
    samples = []
    for charset in _MORE:
        for declared, characters in (
            ("char(10)", 10),
            ("varchar(64)", 64),
            ("varchar(300)", 300),
            ("char(255)", 255),
            ("tinytext", 60),
            ("text", 900),
        ):
            name = f"{charset}_{declared.translate({40: '', 41: ''})}"
            samples.append(Sample(name, f"{declared} character set {charset}", text(charset, characters)))
    samples.append(Sample("bin", "varchar(20) collate utf8mb4_bin", text("utf8mb4", 20)))
    samples.append(Sample("german", "varchar(20) collate latin1_german1_ci", text("latin1", 20)))
    samples.append(Sample("mediumtext", "mediumtext", text("utf8mb4", 300)))
    samples.append(Sample("longtext", "longtext", text("utf8mb4", 70_000 // 64)))
    samples.append(Sample("virtual", "varchar(10) as (left(utf8mb4_text, 3)) virtual", one_of("DEFAULT")))
    samples.append(Sample("stored", "varchar(10) as (left(latin1_text, 3)) stored", one_of("DEFAULT")))
    return samples


def _raws() -> list[Sample]:
    shapes = {
        "binary(1)": 1,
        "binary(16)": 16,
        "binary(255)": 255,
        "varbinary(20)": 20,
        "varbinary(300)": 300,
    }
    shapes |= {
        "tinyblob": 255,
        "blob": 300,
        "mediumblob": 300,
        "longblob": 300,
        "char(5) character set binary": 5,
    }
    samples = [Sample(f"c{at}", declared, raw(size)) for at, (declared, size) in enumerate(shapes.items())]
    return [
        *samples,
        Sample("shape", "geometry", geometry),
        Sample("point", "point", point),
        Sample("vec", "vector(4)", vector),
    ]


def _choices() -> list[Sample]:
    few = [label.replace("''", "'") for label in _FEW]
    samples = [
        Sample("enum", f"enum({_labels(_FEW)})", one_of(*(quoted(label) for label in few), "'no such'", "0", "1")),
        Sample(
            "enum_latin1",
            "enum('a','ü','€','ß') character set latin1",
            one_of("'ü'", "'€'", "'a'", "'zz'", "4"),
        ),
        Sample("enum_many", f"enum({_labels(_MANY)})", lambda rng: str(rng.randint(0, 300))),
        Sample("enum_odd", "enum('b\\\\s','n\\nl','c,d','%:') ", one_of("1", "2", "3", "4")),
        Sample("set_latin1", "set('ä','ö','x') character set latin1", members(("ä", "ö", "x"))),
    ]
    for size in (1, 8, 9, 17, 25, 33, 64):
        labels = [f"m{number}" for number in range(size)]
        samples.append(Sample(f"set{size}", f"set({_labels(labels)})", members(labels)))
    return samples


def _mixture() -> list[Sample]:
    # Columns that cannot be followed, or are in other character sets, stand between ones that can.
    others = {
        "utf16": "varchar(20)",
        "ucs2": "text",
        "gbk": "char(20)",
        "sjis": "varchar(400)",
        "latin2": "tinytext",
    }
    stepped_over = [
        Sample(name, f"{declared} character set {name}", foreign_text(name, 20)) for name, declared in others.items()
    ]
    for name in ("enum", "set"):
        declared = f"{name}('a','b') character set binary"
        stepped_over.append(Sample(f"not_{name}", declared, one_of("'a'", "2"), is_readable=False))
    followed = [
        Sample("j1", "json", document),
        Sample("v1", "varchar(64)", text("utf8mb4", 64)),
        Sample("n1", "int", integer(32)),
        Sample("t1", "timestamp(6) null", timestamp),
        Sample("b1", "varbinary(300)", raw(300)),
        Sample("n2", "bigint not null", integer(64)),
        Sample("d1", "decimal(10,2)", decimal(10, 2)),
    ]
    mixed = [sample for pair in zip(stepped_over, followed, strict=True) for sample in pair]
    return [
        *mixed,
        Sample("vec", "vector(4)", vector),
        Sample("j2", "json", document),
        Sample("last", "tinyint", integer(8)),
    ]


@cache
def _characters(charset: str) -> list[str]:
    """Characters of a character set as hexadecimal codes; ASCII ones are in all but these."""
    if charset in ("utf16", "ucs2", "utf16le", "utf32", "utf8mb4", "utf8mb3"):
        codec = {"utf16le": "utf-16-le", "utf32": "utf-32-be"}.get(charset, "utf-16-be")
        some = "aZ 0~\t\0'\\é€߿ࠀ中￯\ue000" + ("" if charset in ("ucs2", "utf8mb3") else "😀\U0010ffff𠀀")
        return [each.encode("utf-8" if charset.startswith("utf8") else codec).hex() for each in some]
    decode, found = decoder_of(charset), []
    for code in codes(charset, 997) if charset in DIFFERENCES else (bytes([number]) for number in range(128)):
        try:
            if len(decode(code)) == 1:
                found.append(code.hex())
        except UnicodeDecodeError:
            pass
    return found


def foreign_text(charset: str, characters: int) -> Literal:
    """Texts as codes of their own character set, so that those which no Unicode text leads to occur too."""
    found = _characters(charset)
    plain = [code for code in found if len(code) == 2 and code < "80"] or found

    def literal(rng: random.Random) -> str:
        length = characters if rng.random() > 0.95 else rng.randint(0, min(characters, 20))
        chosen = rng.choices(plain if rng.random() < 0.2 else found, k=length)
        return f"_{charset} x'{''.join(chosen)}'"

    return literal


def foreign_labels(charset: str) -> list[str]:
    """Eight labels in a character set, as Unicode."""
    decode = decoder_of(charset)
    letters = [letter for code in _characters(charset) if (letter := decode(bytes.fromhex(code))).isalpha()]
    rng = random.Random(charset)
    unlike = sorted({letter.upper() for letter in letters if len(letter.upper()) == 1})
    # A letter of ASCII in front, so that no two are equal by any collation.
    return [first + rng.choice(unlike or letters) for first in string.ascii_lowercase[:8]]


def _foreign(charsets: Sequence[str]) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        made = []
        for charset in charsets:
            labels, more = foreign_labels(charset), f"character set {charset}"
            shown = ",".join(quoted(label) for label in labels)
            texts = {"char(10)": 10, "varchar(64)": 64, "tinytext": 30, "text": 100}
            made += [
                Sample(f"{charset}_{at}", f"{declared} {more}", foreign_text(charset, characters))
                for at, (declared, characters) in enumerate(texts.items())
            ]
            made.append(Sample(f"{charset}_enum", f"enum({shown}) {more}", lambda rng: str(rng.randint(0, 8))))
            made.append(Sample(f"{charset}_set", f"set({shown}) {more}", lambda rng: str(rng.randrange(256))))
        return made

    return samples


_A_TABLE = 9  # character sets


@cache  # modules ask while pytest collects them
def sample_tables() -> tuple[SampleTable, ...]:
    """A table a family of types or of character sets, and one that holds what cannot be followed among what can."""
    families = {
        "integers": _integers, "numbers": _numbers, "moments": _moments, "texts": _texts, "raws": _raws,
        "choices": _choices, "mixture": _mixture,
    }  # fmt: skip
    charsets = sorted(READABLE)
    for first in range(0, len(charsets), _A_TABLE):
        some = charsets[first : first + _A_TABLE]
        families[f"{some[0]}_to_{some[-1]}"] = _foreign(some)
    return tuple(SampleTable(name, tuple(make())) for name, make in families.items())
