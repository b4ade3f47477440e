"""Which limit of Elasticsearch a document or a request exceeded, and what to do, in words without the value.

Elasticsearch's reasons say it, but quote values; only numbers and types at a fixed place are taken from them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SHOW_LESS = "show less of it with document=FUNCTION"
_SHORTEN = "shorten the value with document=FUNCTION"
_LIMITS = {  # of Elasticsearch 9 as measured
    r"Document contains at least one immense term in field=.*?longer than the max length (\d+)": (
        "a text of it is longer than the {} bytes that one term can have, and a keyword is one term; give the field "
        f"ignore_above, make it text, or {_SHORTEN}"
    ),
    r"Flattened field \[.*allowed max length of (\d+) bytes": (
        f"a text in it is longer than the {{}} bytes that one term can have; give it ignore_above, or {_SHORTEN}"
    ),
    r"Value \[.*\] is out of range for an? (\w+)\Z": (
        "a number is out of the range of {}; give the field a wider type, such as long, double or keyword"
    ),
    r"Numeric value \(.*?\) out of range of (\w+) \(": (
        "a number is out of the range of {}; give the field a wider type, such as double or keyword"
    ),
    r"\[(half_float|float|double|scaled_float)\] supports only finite values": (
        "a number is too large for a {}; give the field a wider type, such as double or keyword"
    ),
    r"date\[.*\] is (?:before the epoch in 1970|after 2262\S*) and cannot be stored in nanosecond resolution": (
        "a moment is out of the range of date_nanos, 1970 to 2262; make the field a date"
    ),
    r"failed to parse date field \[": (
        "a text of it is no date of the field's format, or out of its range; give the field its format, or make it "
        "keyword"
    ),
    r"The number of nested documents has exceeded the allowed limit of \[(\d+)\]": (
        f"it has more than {{}} nested objects (index.mapping.nested_objects.limit); {_SHOW_LESS}, or make the field "
        "object or flattened"
    ),
    r"Limit of mapping depth \[(\d+)\]": (
        f"it is nested deeper than {{}} levels (index.mapping.depth.limit); {_SHOW_LESS}"
    ),
    r"The provided \[flattened\] field \[.*maximum depth limit of \[(\d+)\]": (
        f"it is nested deeper than {{}} levels (depth_limit of the field); {_SHOW_LESS}"
    ),
    r"Document nesting depth \(\d+\) exceeds the maximum allowed \((\d+)": (
        f"it is nested deeper than the {{}} levels that Elasticsearch reads; {_SHOW_LESS}"
    ),
    r"The \[dense_vector\] field \[.*number of dimensions \[(\d+)\] than defined in the mapping \[(\d+)\]": (
        "a vector has {} dimensions, and the field's mapping has {}; make them equal"
    ),
    r"Limit of total fields \[(\d+)\] has been exceeded": (
        "the index would have more than {} fields (index.mapping.total_fields.limit); show fewer, or make the field "
        "flattened"
    ),
}
# A node refuses writes while those under way need more memory than this; it says what the refused one would need.
_PRESSURE = re.compile(r"all_bytes=(\d+), \w+_operation_bytes=(\d+), max_\w+_bytes=(\d+)\]")
_OPERATION = re.compile(r"Request contains an operation of size \[(\d+)\] bytes, which exceeds .* of \[(\d+)\] bytes")
_AT = r"(?:\[\d+:\d+\] )?(?:failed to parse: )?"
_PATTERNS = [(re.compile(_AT + pattern, re.DOTALL), limit) for pattern, limit in _LIMITS.items()]


def limit_met(reasons: Sequence[str]) -> str:
    """The limit and what to do; '' if no limit is recognised.

    Args:
        reasons: Elasticsearch's reasons, of the error and of its causes."""
    matches = ((pattern.match(reason), limit) for reason in reasons for pattern, limit in _PATTERNS)
    return next((limit.format(*match.groups()) for match, limit in matches if match is not None), "")


def memory_exceeded(reason: str, byte_count: int = 0) -> tuple[int, int] | None:
    """What a refused request needs and the node's limit, in bytes; None if it fits as soon as others are done.

    A node counts the bytes of a request as it arrives, and beside them four times those of its largest document. Of
    what is under way the answer gives the sum, so the request's own part is at most `byte_count`.

    Args:
        reason: Elasticsearch's, of a refusal with status 429.
        byte_count: of the request, with what a node adds; 0: not known."""
    if match := _OPERATION.search(reason):
        return int(match[1]), int(match[2])
    if (match := _PRESSURE.search(reason)) is None:
        return None
    others, operation, limit = map(int, match.groups())
    needed = operation + (min(others, byte_count) if operation > 2 * byte_count else 0)
    return (needed, limit) if needed > limit else None
