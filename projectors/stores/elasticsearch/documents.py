"""Converts writes to the lines of a bulk request, by code that is generated for each view.

A document holds the declared fields; a NULL is an absent field, which Elasticsearch treats as it treats null and which
keeps documents small. A tombstone has only the flag. The version is Elasticsearch's own (external versioning), and is
the guard (external_gte if equal versions apply as well). The id is the rendered key. Elasticsearch accepts no empty id,
so the empty key has an id that no other key can have, since rendered keys contain no braces. So has the witness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from projectors.stores import Item, Unfit, takes_equal_versions
from projectors.stores.elasticsearch.index import DELETED, IndexNames
from projectors.stores.elasticsearch.rules import MAX_ID_BYTES, RESERVED
from projectors.views import BoundView
from viewtail.changes.errors import MisuseError
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.rendering import integer_parser, key_renderer, parse_key, search_value
from viewtail.changes.tables import Kind
from viewtail.changes.writes import Key

Encode = Callable[[Sequence[Item]], list[bytes]]  # returns for each item its two lines: the action and the document

WITNESS_ID = "{viewtail:witness}"  # no key is rendered with a brace
_EMPTY_ID = "{}"
_TOMBSTONE = orjson.dumps({DELETED: True})


def witness_id(pipeline: str) -> str:
    """The _id of a pipeline's witness in each of its indices. Several pipelines may write to one index."""
    return WITNESS_ID if PipelineId.parse(pipeline).is_default else f"{{viewtail:witness:{pipeline}}}"


def id_of(view: BoundView) -> Callable[[Key], str]:
    """The function from a key to its _id."""
    render = key_renderer(view.key)
    return lambda key: render(key) or _EMPTY_ID


def key_of(view: BoundView) -> Callable[[str], Key | None]:
    """The function from an _id to its key; it returns None if viewtail did not write the document."""
    if _is_integer(view):
        return integer_parser(view.key[0])
    identity_of = id_of(view)

    def key(identity: str) -> Key | None:
        try:
            parsed = parse_key("" if identity == _EMPTY_ID else identity, view.key)
        except MisuseError:
            return None
        return parsed if identity_of(parsed) == identity else None  # an _id such as 007 is no rendered key

    return key


def document_of(view: BoundView, values: tuple[Any, ...] | bytes) -> dict[str, Any]:
    """The document that readers find after this write."""
    if isinstance(values, bytes):
        made: dict[str, Any] = orjson.loads(values)
        return made
    fields = {}
    for column, value in zip(view.values, values, strict=True):
        convert = search_value(column)
        fields[column.name] = value if value is None or convert is None else convert(value)
    written: dict[str, Any] = orjson.loads(orjson.dumps(_present(fields)))
    return written


def encoder(view: BoundView) -> Encode:
    """The function from items to their two lines each, joined by a line end. It raises Unfit, ValueError or TypeError.

    The two lines are one object, since what orjson returns keeps 4 KiB, however short it is, until it is copied."""
    names: dict[str, Any] = {
        "head": f'{{"index":{{"_index":{_quoted(IndexNames(view).write_alias)},"_id":',
        "identity": _identity(view),
        "dumps": orjson.dumps,
        "one_line": _one_line,
        "present": _present,
        "made_document": _made_document,
        "tombstone": _TOMBSTONE,
    }
    identity = "'\"' + str(key[0]) + '\"'" if _is_integer(view) else "identity(key)"
    document = _document_lines(view, names)
    comparison = "external_gte" if takes_equal_versions(view) else "external"
    source = f"""
def encode(items):
    lines = []
    add = lines.append
    last = -1
    for key, (version, values) in items:
        if version != last:
            last = version
            tail = ',"version":' + str(version) + ',"version_type":"{comparison}"}}}}\\n'
        action = (head + {identity} + tail).encode()
        if values is None:
            add(action + tombstone)
            continue
{document}
    return lines
"""
    exec(compile(source, f"<search documents of {view.id}>", "exec"), names)
    encode: Encode = names["encode"]
    return encode


def document_in(lines: bytes) -> bytes:
    """The second of an item's two lines: the document."""
    return lines.partition(b"\n")[2]


def _is_integer(view: BoundView) -> bool:
    return len(view.key) == 1 and view.key[0].kind is Kind.INTEGER


def _identity(view: BoundView) -> Callable[[Key], str]:
    render = id_of(view)

    def identity(key: Key) -> str:
        text = render(key)
        if 4 * len(text) > MAX_ID_BYTES and len(text.encode()) > MAX_ID_BYTES:
            raise Unfit(
                f"its key is longer than the {MAX_ID_BYTES} bytes that an Elasticsearch _id may have; "
                "key the entity by something shorter"
            )
        return _quoted(text)

    return identity


def _document_lines(view: BoundView, names: dict[str, Any]) -> str:
    if view.view.document is not None:
        return "        add(action + made_document(values))"
    lines, members, variables = [], [], []
    for at, column in enumerate(view.values):
        variables.append(f"v{at}")
        convert = search_value(column)
        if convert is not None:
            names[f"to_{at}"] = convert
            lines.append(f"if v{at} is not None: v{at} = to_{at}(v{at})")
        members.append(f"{column.name!r}: v{at}")
    document = f"{{{', '.join(members)}}}"
    missing = " or ".join(f"{name} is None" for name in variables)
    lines.insert(0, f"{''.join(f'{name}, ' for name in variables)}= values")
    lines.append(f"document = dumps(present({document})) if {missing} else dumps({document})")
    # A JSON column's text is inserted unchanged, and MariaDB keeps the line ends in it.
    has_json = any(column.kind is Kind.JSON for column in view.values)
    lines.append("add(action + one_line(document))" if has_json else "add(action + document)")
    return "\n".join("        " + line for line in lines)


def _present(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}


def _made_document(document: bytes) -> bytes:
    if RESERVED.encode() in document and any(name.startswith(RESERVED) for name in orjson.loads(document)):
        raise Unfit(f"the document has a member that starts with {RESERVED}; name it otherwise")
    return _one_line(document)


def _one_line(document: bytes) -> bytes:
    """Replace line ends, which would end the bulk's line; they stand only between JSON tokens (strings escape them)."""
    return document.replace(b"\n", b" ") if b"\n" in document else document


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
