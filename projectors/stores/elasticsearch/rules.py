"""Which Elasticsearch fields, field types, index names and keys work; the sink relies on these rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from projectors.stores.elasticsearch.views import SearchIndex
from projectors.views import BoundView
from viewtail.changes.errors import nearest
from viewtail.changes.rendering import rendered_columns
from viewtail.changes.tables import Column, Kind

MAX_ID_BYTES = 512
MAX_INDEX_NAME_BYTES = 200  # Elasticsearch allows 255, and viewtail's names have prefixes
RESERVED = "viewtail_"  # no field of a view may start with it
_OWN_NAMES = ("viewtail-", "viewtail.")  # of indices and aliases

_RANGES = {  # of whole numbers
    "byte": (-(1 << 7), (1 << 7) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "integer": (-(1 << 31), (1 << 31) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
    "unsigned_long": (0, (1 << 64) - 1),
}
_REALS = ("double", "float", "half_float", "scaled_float")
_TEXTS = ("text", "keyword", "wildcard", "match_only_text")
_DATES = ("date", "date_nanos")
_FROM_TEXT = (
    *_TEXTS,
    *("constant_keyword", "search_as_you_type", "completion", "annotated_text", "icu_collation_keyword"),
    *("ip", "version", "token_count", "geo_point", "geo_shape", "semantic_text", "murmur3", "binary"),
)
_STRUCTURES = ("object", "nested", "flattened", "join", "dense_vector", "sparse_vector", "rank_feature")
_OTHERS = (
    *("boolean", "rank_features", "percolator", "histogram", "point", "shape", "alias"),
    *("integer_range", "float_range", "long_range", "double_range", "date_range", "ip_range"),
)
_KNOWN = frozenset((*_RANGES, *_REALS, *_DATES, *_FROM_TEXT, *_STRUCTURES, *_OTHERS))

_ALLOWED: dict[Kind, tuple[str, ...]] = {
    Kind.INTEGER: (*_RANGES, *_REALS, *_DATES, *_TEXTS, "rank_feature"),
    Kind.DECIMAL: (*_REALS, *_RANGES, *_TEXTS),
    **dict.fromkeys((Kind.FLOAT, Kind.DOUBLE), (*_REALS, *_TEXTS, "rank_feature")),
    **dict.fromkeys((Kind.TEXT, Kind.ENUM, Kind.SET), _FROM_TEXT),
    **dict.fromkeys((Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR), ("binary", *_TEXTS)),
    **dict.fromkeys((Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP), (*_DATES, *_TEXTS)),
    Kind.TIME: _TEXTS,
    Kind.JSON: tuple(sorted(_KNOWN)),  # it may hold anything; a document that does not fit is parked
}
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_FORBIDDEN_IN_NAMES = '\\/*?"<>| ,#:'
_BYTES_A_CHARACTER = {"ascii": 1, "latin1": 3, "utf8mb3": 3, "utf8": 3}  # in UTF-8; utf8mb4 has 4 bytes


def problems(view: BoundView) -> Iterator[str]:
    """Everything about a SearchIndex that cannot work, one sentence each."""
    declared = view.view
    assert isinstance(declared, SearchIndex)
    yield from _name_problems(declared.name)
    for field in declared.fields:
        yield from _field_problems(field, declared.mapping.get(field))
    for column in view.values:
        if column.name in declared.mapping:
            yield from _type_problems(column, declared.mapping[column.name])
    yield from _id_problems(rendered_columns(view.key))


def surprises(view: BoundView) -> Iterator[tuple[str, str, str]]:
    """Columns of bytes whose base64 would be indexed as text: (what it is, why that matters, what to do)."""
    declared = view.view
    assert isinstance(declared, SearchIndex)
    for column in view.values:
        kinds = _text_types(declared.mapping.get(column.name, {}))
        if column.kind in (Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR) and kinds:
            why = (
                "what is indexed is the base64 of its bytes, such as 'ZGU=' for 'de': no word of a text is found, "
                "and a long one is more than a keyword can hold (32,766 bytes)"
            )
            mend = (
                f"show the text with document=, decoded: row[{column.name!r}].decode(); or give the field the type "
                "binary, which is not searched"
            )
            yield f"column {column.name} is {column.type_name}, and its field is {' and '.join(kinds)}", why, mend


def _text_types(mapping: Mapping[str, Any]) -> list[str]:
    """The types of a field and its multi-fields that index text."""
    own = [
        mapping.get("type", ""),
        *(multi_field.get("type", "") for multi_field in mapping.get("fields", {}).values()),
    ]
    return [kind for kind in own if kind in _TEXTS]


def _name_problems(name: str) -> Iterator[str]:
    wrong = sorted({character for character in name if character in _FORBIDDEN_IN_NAMES or not character.isprintable()})
    if wrong:
        yield f"an index name cannot hold {' '.join(map(repr, wrong))}; choose another name"
    if name != name.lower():
        yield f"an index name must be lower case; call it {name.lower()!r}"
    if name.startswith(("-", "_", "+", ".")):
        yield f"an index name cannot begin with {name[0]!r}; choose another name"
    if name.startswith(_OWN_NAMES):
        yield f"an index name cannot begin with {name[:9]!r}, as viewtail's own do; choose another name"
    if (size := len(name.encode("utf-8", "surrogatepass"))) > MAX_INDEX_NAME_BYTES:
        yield f"the index name has {size} bytes, at most {MAX_INDEX_NAME_BYTES} are allowed"


def _field_problems(field: str, mapping: Mapping[str, Any] | None) -> Iterator[str]:
    if field.startswith(("_", RESERVED)):
        yield (
            f"field {field}: Elasticsearch and viewtail keep names that begin with '_' "
            f"or {RESERVED!r}, for themselves; show the column under another name with document="
        )
    if field != field.strip() or not all(field.split(".")):
        yield f"field {field!r}: a field name has no blank at its ends and no empty part between dots"
    if mapping is None:
        return
    kind = mapping.get("type", "object" if "properties" in mapping else None)
    if kind is None:
        yield f"field {field}: the mapping names no type; give one, e.g. {{'type': 'keyword'}}"
    elif not isinstance(kind, str) or kind not in _KNOWN:
        near = nearest(str(kind), _KNOWN) or "; common ones: text, keyword, long, date"
        yield f"field {field}: {kind!r} is no Elasticsearch field type{near}"


def _type_problems(column: Column, mapping: Mapping[str, Any]) -> Iterator[str]:
    kind = mapping.get("type", "object")
    if kind not in _KNOWN:
        return
    what = f"column {column.name} is {column.type_name} and cannot be an Elasticsearch {kind}"
    if kind not in _ALLOWED[column.kind]:
        yield f"{what}; use {' or '.join(_ALLOWED[column.kind][:2])}, or make the value with document=FUNCTION"
    elif kind in _RANGES and column.kind is Kind.DECIMAL and column.scale:
        yield f"{what}: the digits after the point would be lost; use double or scaled_float"
    elif kind in _RANGES and column.kind is Kind.INTEGER:
        least, most = _range(column)
        if least < _RANGES[kind][0] or most > _RANGES[kind][1]:
            yield f"{what}: its values go from {least} to {most}; use {_first_fitting(least, most)}, or keyword"


def _first_fitting(least: int, most: int) -> str:
    return next(name for name, (low, high) in _RANGES.items() if low <= least and most <= high)


def _range(column: Column) -> tuple[int, int]:
    name = column.declared.lower().split("(")[0].split(" ")[0]
    if name == "bit":
        return 0, (1 << max(column.length, 1)) - 1
    if name == "year":
        return 0, 2155
    bits = _BITS.get(name, 64)
    return (0, (1 << bits) - 1) if column.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _id_problems(key: Sequence[Column]) -> Iterator[str]:
    longest = sum(_id_bytes(column) for column in key) + len(key) - 1
    if longest > MAX_ID_BYTES:
        names = ", ".join(f"{column.name} {column.type_name}" for column in key)
        yield (
            f"the key ({names}) can be {longest} bytes long, an Elasticsearch _id at most {MAX_ID_BYTES}; shorten the "
            "column, or key the entity by another unique one: Entity(..., key=...)"
        )


def _id_bytes(column: Column) -> int:
    """The maximum length of a key column's rendered value in UTF-8, without percent-encoding."""
    if column.kind is Kind.TEXT:
        return column.length * _BYTES_A_CHARACTER.get(column.charset or "", 4)
    if column.kind is Kind.BYTES:
        return column.length * 2
    if column.kind is Kind.ENUM:
        return max((len(label.encode()) for label in column.labels), default=0)
    if column.kind is Kind.SET:
        return len(",".join(column.labels).encode())
    return column.precision + 2 if column.kind is Kind.DECIMAL else 32
