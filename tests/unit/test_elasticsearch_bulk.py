"""What is made of each answer to a bulk request, and what a bulk request looks like. No server."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import ApiError

from projectors.stores.elasticsearch.bulk import BulkChunk, Replacement, body_of, deliver, describe, replace, split
from projectors.stores.elasticsearch.documents import Unfit, encoder, id_of, key_of
from projectors.stores.elasticsearch.requests import Refused
from projectors.stores.elasticsearch.rules import problems, surprises
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.views import BoundView, Entity
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Write

Answer = Callable[[list[str]], Any]


class Client:
    """Gives the scripted answers, in order; remembers the ids of each request, those of deletes with a minus."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[list[str]] = []

    def perform_request(self, method: str, target: str, *, headers: Any, body: bytes) -> Any:
        assert "require_alias=true" in target
        assert body.endswith(b"\n")
        ids, lines = [], iter(body.splitlines())
        for line in lines:
            ((action, place),) = orjson.loads(line).items()
            ids.append(f"{'-' if action == 'delete' else ''}{place['_id']}")
            if action == "index":
                next(lines)
        self.asked.append(ids)
        return SimpleNamespace(body=self._answers.pop(0)(ids))


def fine(ids: list[str]) -> Any:
    return {"items": [{"index": {"status": 201}} for _ in ids]}


def items(**statuses: tuple[int, str]) -> Answer:
    """Each id with its status and error type; the others are fine."""

    def answer(ids: list[str]) -> Any:
        found = []
        for one in ids:
            status, kind = statuses.get(one, (200, ""))
            error = {"error": {"type": kind, "reason": f"reason of {kind}"}} if kind else {}
            found.append({"index": {"status": status, **error}})
        return {"items": found}

    return answer


def whole(status: int, kind: str = "", reason: str = "", if_any: str = "") -> Answer:
    """The whole request is refused; with `if_any` only when that id is in it."""

    def answer(ids: list[str]) -> Any:
        if if_any and if_any not in ids:
            return fine(ids)
        meta = ApiResponseMeta(
            status=status,
            http_version="1.1",
            headers=HttpHeaders(),
            duration=0.0,
            node=NodeConfig("http", "localhost", 9200),
        )
        raise ApiError("refused", meta, {"error": {"type": kind, "reason": reason}})

    return answer


def chunk(*ids: str) -> BulkChunk:
    lines = [orjson.dumps({"index": {"_id": one}}) + b"\n{}" for one in ids]
    return BulkChunk([VIEW] * len(ids), [((one,), Write(7, ())) for one in ids], lines)


def sent(client: Client, what: BulkChunk) -> tuple[list[tuple[str, str]], list[float]]:
    """(key, reason) of the refused, and the pauses that were made."""
    pauses: list[float] = []
    refused = deliver(client, what, pauses.append)  # type: ignore[arg-type]
    return [(one.key, one.reason) for one in refused], pauses


def test_a_superseded_write_is_fine() -> None:
    client = Client(items(b=(409, "version_conflict_engine_exception")))
    assert sent(client, chunk("a", "b", "c")) == ([], [])


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "es_rejected_execution_exception"),
        (503, "unavailable_shards_exception"),
        (500, "x"),
        (504, "timeout"),
    ],
)
def test_only_what_was_not_taken_is_sent_again(status: int, kind: str) -> None:
    client = Client(items(b=(status, kind), d=(status, kind)), items(d=(status, kind)), fine)
    refused, pauses = sent(client, chunk("a", "b", "c", "d"))
    assert refused == []
    assert client.asked == [["a", "b", "c", "d"], ["b", "d"], ["d"]]
    assert len(pauses) == 2 and pauses[0] < pauses[1]


def test_a_server_that_stays_busy_is_unavailable_after_a_few_tries() -> None:
    client = Client(*[items(b=(429, "es_rejected_execution_exception"))] * 20)
    with pytest.raises(StoreUnavailableError, match="429"):
        sent(client, chunk("a", "b"))
    assert 3 <= len(client.asked) <= 8


def test_a_busy_answer_to_the_whole_request_is_tried_again() -> None:
    client = Client(whole(429, "circuit_breaking_exception"), whole(503), fine)
    assert sent(client, chunk("a"))[0] == []
    assert len(client.asked) == 3
    with pytest.raises(StoreUnavailableError):
        sent(Client(*[whole(429, "circuit_breaking_exception")] * 20), chunk("a"))


def test_a_refused_document_is_refused_even_when_another_is_sent_again() -> None:
    client = Client(items(a=(400, "document_parsing_exception"), b=(429, "busy")), fine)
    refused, _ = sent(client, chunk("a", "b"))
    assert [key for key, _ in refused] == ["a"]
    assert client.asked[1] == ["b"]


@pytest.mark.parametrize("status", [400, 413])
def test_a_refused_request_is_halved_until_the_document_is_found(status: int) -> None:
    client = Client(*[whole(status, "action_request_validation_exception", if_any="c")] * 20)
    refused, _ = sent(client, chunk("a", "b", "c", "d", "e"))
    assert [key for key, _ in refused] == ["c"]
    assert {one for ids in client.asked for one in ids} == {"a", "b", "c", "d", "e"}


def pressed(stage: str, limit: int, others: int = 0, each: int = 100, whole_request: bool = False) -> Answer:
    """As a node answers whose memory for writes is `limit` bytes; an item takes `each`."""

    def answer(ids: list[str]) -> Any:
        needed = each * len(ids)
        if needed + others <= limit:
            return fine(ids)
        reason = (
            f"rejected execution of {stage} operation [coordinating_and_primary_bytes={others}, replica_bytes=0, "
            f"all_bytes={others}, {stage}_operation_bytes={needed}, max_{stage}_bytes={limit}]"
        )
        if whole_request:
            return whole(429, "es_rejected_execution_exception", reason)(ids)
        error = {"type": "es_rejected_execution_exception", "reason": reason}
        return {"items": [{"index": {"status": 429, "error": error}} for _ in ids]}

    return answer


@pytest.mark.parametrize("whole_request", [False, True], ids=["each item", "the request"])
def test_what_never_fits_into_the_nodes_memory_is_halved_until_it_does_without_a_wait(whole_request: bool) -> None:
    client = Client(*[pressed("primary", 250, whole_request=whole_request)] * 20)
    assert sent(client, chunk("a", "b", "c", "d", "e")) == ([], [])
    assert [ids for ids in client.asked if len(ids) <= 2] == [["a", "b"], ["c"], ["d", "e"]]


@pytest.mark.parametrize("whole_request", [False, True], ids=["each item", "the request"])
def test_a_document_that_never_fits_into_the_nodes_memory_is_parked_and_the_others_are_written(
    whole_request: bool,
) -> None:
    def answer(ids: list[str]) -> Any:
        return pressed("coordinating", 99 if "c" in ids else 10_000, whole_request=whole_request)(ids)

    client = Client(*[answer] * 20)
    ((key, reason),), pauses = sent(client, chunk("a", "b", "c", "d", "e"))
    assert (key, pauses) == ("c", [])
    assert {"a", "b", "d", "e"} <= {one for ids in client.asked for one in ids if "c" not in ids}
    assert "need 100 bytes" in reason and "has 99 for" in reason and "indexing_pressure.memory.limit" in reason


@pytest.mark.parametrize(
    ("stage", "size", "others", "needed", "is_parked"),
    [
        ("primary", 11_000_000, 11_000_200, 44_000_032, True),  # its own 11 MB are all that is under way
        ("primary", 11_000_000, 31_000_200, 44_000_032, True),
        ("primary", 10_000_000, 20_000_200, 40_000_032, False),  # 10 MB of others
        ("primary", 30_000_000, 30_000_200, 30_000_200, False),  # a node where indexing it has not begun
        ("coordinating", 60_000_000, 0, 60_000_200, True),
        ("coordinating", 50_000_000, 20_000_000, 50_000_200, False),
    ],
)
def test_its_own_bytes_count_beside_what_indexing_takes_and_those_of_others_do_not(
    stage: str, size: int, others: int, needed: int, is_parked: bool
) -> None:
    """As Elasticsearch 9.2 with 512 MiB of heap answers."""
    big = BulkChunk([VIEW], [(("a",), Write(7, ()))], [b'{"index":{"_id":"a"}}\n{"x":"' + b"x" * size + b'"}'])
    client = Client(pressed(stage, 53_687_091, others, needed), fine)
    refused, pauses = sent(client, big)
    assert [key for key, _ in refused] == (["a"] if is_parked else [])
    assert len(pauses) == len(client.asked) - 1 == (0 if is_parked else 1)


def test_a_repair_of_a_document_that_never_fits_deletes_it_for_the_write_that_parks_it() -> None:
    def answer(ids: list[str]) -> Any:
        return pressed("primary", 99 if "b" in ids else 10_000)(ids)

    client = Client(*[answer] * 20)
    assert replaced(client, "a", "b") == []
    assert client.asked == [["-a", "a", "-b", "b"], ["-a", "a"], ["-b", "b"], ["-b"]]


def replacements(*ids: str) -> list[Replacement]:
    lines = {one: orjson.dumps({"delete": {"_id": one}}) for one in ids}
    return [Replacement((lines[one],), (orjson.dumps({"index": {"_id": one}}) + b"\n{}",)) for one in ids]


def replaced(client: Client, *ids: str) -> list[float]:
    """The pauses that were made."""
    pauses: list[float] = []
    replace(client, replacements(*ids), pauses.append)  # type: ignore[arg-type]
    return pauses


@pytest.mark.parametrize("status", [400, 413])
def test_a_refused_replacement_is_halved_and_a_delete_leaves_its_rewrite_only_where_it_must(status: int) -> None:
    client = Client(*[whole(status, "content_too_long_exception", if_any="c")] * 20)
    assert replaced(client, "a", "b", "c", "d", "e") == []
    assert client.asked.pop(client.asked.index(["-c"]))
    assert all(ids == [one for name in ids[1::2] for one in (f"-{name}", name)] for ids in client.asked)
    assert {one for ids in client.asked for one in ids[1::2]} == {"a", "b", "c", "d", "e"}


def test_only_replacements_that_were_not_taken_are_sent_again_each_as_a_whole() -> None:
    busy = (429, "es_rejected_execution_exception")
    client = Client(whole(429), items(**{"-b": busy, "d": busy, "c": (404, ""), "-a": (409, "x")}), fine)
    pauses = replaced(client, "a", "b", "c", "d")
    assert client.asked[1:] == [["-a", "a", "-b", "b", "-c", "c", "-d", "d"], ["-b", "b", "-d", "d"]]
    assert len(pauses) == 2 and pauses[0] < pauses[1]
    client = Client(*[items(**{"-b": busy})] * 20)
    with pytest.raises(StoreUnavailableError, match="429"):
        replaced(client, "a", "b")
    assert 3 <= len(client.asked) <= 8
    with pytest.raises(StoreUnavailableError, match="block"):
        replaced(Client(items(**{"-a": (429, "cluster_block_exception")})), "a")


def test_a_delete_that_is_refused_by_itself_is_told() -> None:
    with pytest.raises(Refused):
        replaced(Client(*[whole(413)] * 2), "a")
    with pytest.raises(Refused):
        replaced(Client(whole(405)), "a", "b")
    replace(Client(whole(413)), [Replacement((), replacements("a")[0].write)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        lambda ids: {"items": fine(ids)["items"][:-1]},
        lambda ids: {"items": fine([*ids, "more"])["items"]},
        lambda ids: {"items": [{"index": {}} for _ in ids]},
        lambda ids: {"items": [{} for _ in ids]},
        lambda ids: {"items": ["what"] * len(ids)},
        lambda ids: {"errors": False},
        lambda ids: {},
        lambda ids: "<html>",
        lambda ids: None,
    ],
)
def test_an_answer_that_does_not_speak_of_every_item_acknowledges_nothing(answer: Answer) -> None:
    with pytest.raises(StoreUnavailableError, match="what became of each"):
        sent(Client(answer), chunk("a", "b"))


@pytest.mark.parametrize(
    ("status", "kind", "error", "told"),
    [
        (404, "index_not_found_exception", StoreUnavailableError, "gone"),
        (400, "index_closed_exception", StoreUnavailableError, "_open"),
        (403, "cluster_block_exception", StoreUnavailableError, "index.blocks.write"),
        (429, "cluster_block_exception", StoreUnavailableError, "block"),
        (403, "security_exception", StoreError, "privileges"),
        (401, "security_exception", StoreError, "password"),
    ],
)
def test_what_concerns_the_index_parks_no_key(status: int, kind: str, error: type[Exception], told: str) -> None:
    client = Client(items(b=(status, kind)))
    with pytest.raises(error, match=told):
        sent(client, chunk("a", "b"))
    assert len(client.asked) == 1


def test_a_write_alias_over_two_indices_parks_no_key() -> None:
    def answer(ids: list[str]) -> Any:
        reason = "no write index is defined for alias [viewtail.write-x]. The write index may be explicitly ..."
        return {
            "items": [{"index": {"status": 400, "error": {"type": "illegal_argument_exception", "reason": reason}}}]
        }

    with pytest.raises(StoreError, match="several indices"):
        sent(Client(answer), chunk("a"))


@pytest.mark.parametrize(
    ("kind", "reason", "field"),
    [
        # As Elasticsearch 9.2 words them.
        (
            "document_parsing_exception",
            (
                "[1:6] failed to parse field [age] of type [integer] in document with id '2'. "
                "Preview of field's value: 'secret'"
            ),
            "age",
        ),
        (
            "illegal_argument_exception",
            (
                'Document contains at least one immense term in field="email" (whose UTF8 encoding is longer than the '
                "max length 32766), all of which were skipped. The prefix of the first immense term is: '[115, 101]'"
            ),
            "email",
        ),
        ("illegal_argument_exception", "failed to parse date field [secret] with format [strict_date]", None),
        (
            "document_parsing_exception",
            "failed to parse date field [secret], field [email] of type [date]",
            "email",
        ),
        ("strict_dynamic_mapping_exception", "[1:7] dynamic introduction of [zz] within [_doc] is not", "zz"),
        (
            "strict_dynamic_mapping_exception",
            "[1:7] dynamic introduction of [secret\n!] within [_doc] is not",
            None,
        ),
        ("mapper_parsing_exception", "", None),
    ],
)
def test_a_refusal_names_type_and_field_and_never_the_value(kind: str, reason: str, field: str | None) -> None:
    told = describe(kind, [reason], {"email", "age"})
    assert kind in told
    assert "secret" not in told and "115" not in told
    assert field is None or f" {field}" in told


@pytest.mark.parametrize(
    ("reason", "limit"),
    [
        ("[1:9] Limit of mapping depth [20] has been exceeded due to object field [age.secret]", "than 20 levels"),
        (("Flattened field [age] contains one immense field whose keyed encoding is longer than the allowed max "
         "length of 32766 bytes. Key length: 6, value length: 9 for key starting with [secret]"), "the 32766 bytes"),
        ("The provided [flattened] field [age] exceeds the maximum depth limit of [20].", "than 20 levels"),
        ("Limit of total fields [1000] has been exceeded while adding new fields [1]", "more than 1000 fields"),
        ("Document nesting depth (1001) exceeds the maximum allowed (1000, from `StreamReadConstraints", "the 1000"),
        ("[half_float] supports only finite values, but got [secret]", "too large for a half_float"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_limit_that_was_met_and_never_the_value(reason: str, limit: str) -> None:
    told = describe("document_parsing_exception", ["failed to parse field [age] of type [x]", reason], {"age"})
    assert limit in told and " in field age: " in told and "secret" not in told


def test_a_chunk_is_split_by_bytes_and_no_item_is_lost() -> None:
    one = chunk(*[str(number) for number in range(9)])
    parts = list(split(one, 80))
    assert len(parts) > 2
    assert all(part.byte_count <= 80 or len(part) == 1 for part in parts)
    assert [line for part in parts for line in part.lines] == one.lines
    assert one.byte_count == len(body_of(one.lines))
    assert [item for part in parts for item in part.items] == one.items


def column(name: str, kind: Kind, declared: str) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=True)


def bound(view: SearchIndex, columns: tuple[Column, ...], key: tuple[str, ...], values: tuple[str, ...]) -> BoundView:
    table = Table(schema="s", name="t", columns=columns, primary_key=key)
    found = {one.name: one for one in columns}
    return BoundView(
        view=view,
        table=table,
        key=tuple(found[name] for name in key),
        values=tuple(found[name] for name in values),
        needed=tuple(found),
        fingerprint="0",
    )


ID = column("id", Kind.INTEGER, "bigint")
NAME = column("name", Kind.TEXT, "varchar(800)")
DAY = column("day", Kind.DATE, "date")
INFO = column("info", Kind.JSON, "json")
VIEW = bound(SearchIndex("v", Entity("s.t"), fields=["name"]), (ID, NAME), ("name",), ("name",))


def shown(view: BoundView, *items: tuple[Any, Write]) -> list[tuple[dict[str, Any], Any]]:
    found = [list(map(orjson.loads, lines.split(b"\n"))) for lines in encoder(view)(items)]
    return [(action["index"], document) for action, document in found]


def test_a_null_is_an_absent_field_and_a_tombstone_only_its_flag() -> None:
    view = bound(SearchIndex("x", Entity("s.t"), fields=["name", "day"]), (ID, NAME, DAY), ("id",), ("name", "day"))
    written = shown(
        view,
        ((1,), Write(2**63 - 1, ("a", "2024-02-29"))),
        ((2,), Write(5, (None, "2024-02-30"))),  # a day that never was
        ((3,), Write(5, None)),
    )
    assert [document for _, document in written] == [
        {"name": "a", "day": "2024-02-29"},
        {},
        {"viewtail_deleted": True},
    ]
    assert written[0][0] == {
        "_index": "viewtail.write-x",
        "_id": "1",
        "version": 2**63 - 1,
        "version_type": "external",
    }
    assert [action["version"] for action, _ in written] == [2**63 - 1, 5, 5]


def test_line_ends_inside_a_document_do_not_end_its_line() -> None:
    view = bound(SearchIndex("x", Entity("s.t"), fields=["info"]), (ID, INFO), ("id",), ("info",))
    text = '{"a":\n "line\\nbreak",\r\n "b": [1,\n2]}\n{"index":{}}'
    (lines,) = encoder(view)([((1,), Write(5, (text,)))])
    assert lines.count(b"\n") == 1
    assert shown(view, ((1,), Write(5, (text[: text.index("}") + 1],))))[0][1] == {
        "info": {"a": "line\nbreak", "b": [1, 2]}
    }


@pytest.mark.parametrize("made", [False, True], ids=["of columns", "that was made"])
def test_of_a_small_item_little_memory_is_kept(made: bool) -> None:
    """Thousands wait to be sent, and what orjson returns keeps 4 KiB."""
    view = VIEW
    if made:
        view = bound(SearchIndex("x", Entity("s.t"), fields={"a": "text"}, document=dict), (ID,), ("id",), ())
    writes = [((at if made else str(at),), Write(5, b'{"a":"b"}' if made else ("b",))) for at in range(1000)]
    encode = encoder(view)
    tracemalloc.start()
    try:
        lines = encode(writes)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 2 * (sum(map(sys.getsizeof, lines)) + sys.getsizeof(lines))


def test_a_made_document_cannot_hide_itself() -> None:
    made = SearchIndex("x", Entity("s.t"), fields={"a": "text"}, document=lambda row: {"a": "b"})
    view = bound(made, (ID,), ("id",), ())
    assert shown(view, ((1,), Write(5, b'{"a":"viewtail_deleted"}')))[0][1] == {"a": "viewtail_deleted"}
    with pytest.raises(Unfit, match="viewtail_"):
        encoder(view)([((1,), Write(5, b'{"viewtail_deleted":true}'))])


def test_ids_are_keys_and_back_and_the_empty_key_has_one_of_its_own() -> None:
    view = bound(SearchIndex("x", Entity("s.t"), fields=["id"]), (ID, NAME), ("name",), ("id",))
    keys = ["", "{}", "a:b", "{viewtail:witness}", 'quote"\\', "äöü", "\x00\n", " "]
    ids = [id_of(view)((key,)) for key in keys]
    assert len(set(ids)) == len(keys)
    assert all(ids) and "{viewtail:witness}" not in ids
    assert [key_of(view)(one) for one in ids] == [(key,) for key in keys]
    assert [action["_id"] for action, _ in shown(view, *[((key,), Write(5, (1,))) for key in keys])] == ids


@pytest.mark.parametrize(("key", "fits"), [("a" * 512, True), ("a" * 513, False), ("ä" * 257, False)])
def test_an_id_is_as_long_as_elasticsearch_takes(key: str, fits: bool) -> None:
    view = bound(SearchIndex("x", Entity("s.t"), fields=["id"]), (ID, NAME), ("name",), ("id",))
    if fits:
        assert shown(view, ((key,), Write(5, (1,))))
    else:
        with pytest.raises(Unfit, match="512"):
            encoder(view)([((key,), Write(5, (1,)))])


@pytest.mark.parametrize(
    "name",
    [
        "City",
        "a b",
        "a,b",
        "a/b",
        "a*",
        "_a",
        "-a",
        "+a",
        ".",
        "..",
        ".a",
        "a#b",
        "a:b",
        'a"b',
        "viewtail-x",
        "viewtail.write-x",
        "x" * 250,
    ],
)
def test_a_name_that_no_index_can_have_is_refused(name: str) -> None:
    view = bound(SearchIndex(name, Entity("s.t"), fields=["name"]), (ID, NAME), ("id",), ("name",))
    assert any("index name" in problem for problem in problems(view))


def test_a_field_that_viewtail_keeps_for_itself_is_refused() -> None:
    fields = {"viewtail_deleted": "boolean"}
    view = bound(SearchIndex("x", Entity("s.t"), fields=fields, document=lambda row: {}), (ID,), ("id",), ())
    assert any("viewtail_deleted" in problem for problem in problems(view))


@pytest.mark.parametrize(
    ("mapping", "kinds"),
    [
        ("text", "text"),
        ("keyword", "keyword"),
        ({"type": "binary"}, ""),
        ({"type": "text", "fields": {"raw": {"type": "keyword"}}}, "text and keyword"),
    ],
)
@pytest.mark.parametrize("kind", [Kind.BYTES, Kind.TEXT])
def test_bytes_that_would_be_searched_as_base64_are_said(mapping: Any, kinds: str, kind: Kind) -> None:
    column = Column(name="body", kind=kind, declared="blob", is_nullable=True)
    table = Table(schema="s", name="t", columns=(column,), primary_key=("body",))
    declared = SearchIndex("x", Entity("s.t"), fields={"body": mapping})
    bound = BoundView(view=declared, table=table, key=(column,), values=(column,), needed=("body",), fingerprint="1")
    found = list(surprises(bound))
    assert bool(found) is (bool(kinds) and kind is Kind.BYTES)
    for seen, why, mend in found:
        assert seen == f"column body is BLOB, and its field is {kinds}"
        assert "base64" in why and "document=" in mend and "binary" in mend
