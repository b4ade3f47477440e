"""Sources of one view: what settings and declarations say, the name in the key, and what a source's process knows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pymysql
import pytest

from ingest import Margin, ddl
from ingest.binlog.coordinates import BEFORE_ALL
from ingest.binlog.kind import BinlogKind
from ingest.binlog.table_effects import alone_in, gone
from ingest.canonical.parts import of_parts
from offsets.views import State
from projectors.binding import bind, declaration_hash
from projectors.catalog import check_source
from projectors.fills.guarded import GuardedFill
from projectors.masking import MaskedTables
from projectors.projection import Projections, followed_tables
from projectors.proving.cascades import Cascades
from projectors.proving.comparison import Comparison
from projectors.proving.reprojection import Reprojection, Written
from projectors.stores import GuardedSink
from projectors.stores.index_tables import places, reading, sink
from projectors.stores.index_tables.table import IndexTableShape, PresentTable, RowsDoNotFitError, Shape, TwoTables
from projectors.stores.redis.set_reading import SetReader
from projectors.view_life import ViewLife
from viewtail import (
    Count,
    Entity,
    Group,
    IndexTable,
    MySQLTable,
    RedisHash,
    RedisSet,
    RedisSortedSet,
    SearchIndex,
    Topic,
    composition,
    declarations,
    shards,
)
from viewtail.changes.batches import DELETE, Followed, RowChanges
from viewtail.changes.errors import (
    DeclarationError,
    MisuseError,
    SettingsError,
    SourceUnavailableError,
    StoreUnavailableError,
    UnknownNameError,
    ViewtailError,
)
from viewtail.changes.masks import ANY_SECRET
from viewtail.changes.patterns import pattern_of, source_in
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.tables import Column, ForeignKey, Kind, Table
from viewtail.changes.versions import LEAST_OF_BINLOGS
from viewtail.changes.writes import Key, Parked
from viewtail.cli.each import in_deployments, require_one_source
from viewtail.cli.pausing import pause, resume
from viewtail.cli.reading import wait
from viewtail.cli.replay import replay as replay_command
from viewtail.cli.status import status
from viewtail.commands import pausing as pausing_command
from viewtail.commands.replay_keys import _parked_keys
from viewtail.operations import erase, replay
from viewtail.operations import pausing as pausing_operation
from viewtail.operations.collecting import _SourceAnswers
from viewtail.operations.findings import Findings, compared, with_declarations
from viewtail.operations.given import own_keys
from viewtail.operations.pausing import Outcome, _row_estimate
from viewtail.operations.reading import _of_sources
from viewtail.operations.remarks import remarks
from viewtail.operations.status import PipelineStatus, ViewStatus
from viewtail.servers.facts import MYSQL
from viewtail.settings import Settings, load

ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
EMAIL = Column(
    name="email", kind=Kind.TEXT, declared="varchar(40)", is_nullable=True, charset="utf8mb4", collation="x", length=40
)
USER = Table(schema="shop", name="user", columns=(ID, EMAIL), primary_key=("id",))
ADDRESS = "mysql://root@db"
ENVIRONMENT = {
    "VIEWTAIL_MYSQL__URL": f"{ADDRESS}/viewtail",
    "VIEWTAIL_SOURCES__EU__URL": "mysql://eu",
    "VIEWTAIL_SOURCES__US__URL": "mysql://us",
}


def described(schema: str, name: str) -> Table:
    pattern = pattern_of(schema, name)
    return USER if pattern is None else of_parts(pattern, [USER], [pattern.sample])


# --- Declarations ---


def test_what_a_source_has_of_a_table_is_a_pattern_of_one_table_with_the_sources_name_in_the_key() -> None:
    entity = Entity("shop.user", sources=["eu", "shard*"])
    assert entity.pattern is None and entity.draws_on("eu") and entity.draws_on("shard7") and not entity.draws_on("us")
    pattern = entity.of_source("eu").pattern
    assert pattern is not None and pattern.names == ("source",) and source_in(pattern.schema) == "eu"
    assert pattern.only == ("shop", "user", ("eu",)) == pattern.part("shop", "user") == pattern.of(("eu",))
    assert pattern.of(("us",)) is None and pattern.part("shop", "users") is None and pattern.likes == ("shop", "user")
    tenants = Entity("tenant_{tenant}.user", sources="eu", key=["tenant", "id"]).of_source("eu")
    assert tenants.key == ("source", "tenant", "id") and tenants.pattern is not None and tenants.pattern.only is None
    assert tenants.pattern.part("tenant_a", "user") == ("tenant_a", "user", ("eu", "a"))
    assert tenants.pattern.part("tenant_a", "user", folds_names=True) == ("tenant_a", "user", ("eu", "a"))
    assert tenants.pattern.of(("us", "a")) is None and tenants.pattern.likes == (r"tenant\_%", "user")
    assert tenants.pattern.schema_values("tenant_b") == ("eu", "b")


def test_views_of_one_table_have_the_names_hashes_and_keys_that_they_had() -> None:
    plain = IndexTable("by_email", Entity("shop.user"), value="email")
    assert plain.entity.sources == () and plain.entity.table == "shop.user"
    (bound,) = bind([plain], described)
    assert bound.source == () and bound.own([(1,), (2,)]) == [(1,), (2,)]
    # What the hash was before there were sources.
    assert declaration_hash(plain) == "2353c546286b941a0ac11e737a3dc1909bd30c6717b85d038ed6b9947567a309"


def test_a_source_has_keys_of_its_own_and_knows_nothing_of_others() -> None:
    (bound,) = bind([IndexTable("i", Entity("shop.user", sources="eu"), value="email").of_source("eu")], described)
    assert [column.name for column in bound.key] == ["source", "id"] and bound.source == ("eu",)
    assert bound.own([("eu", 1), ("us", 1)]) == [("eu", 1)] == own_keys([("eu", 1), ("us", 1)], bound)
    with pytest.raises(UnknownNameError, match="of the source us, and this is eu"):
        own_keys([("us", 1)], bound)
    assert bound.table.names == ("shop", "user") and bound.table.title == "{source}shop.user"


def test_a_table_of_a_source_that_goes_halts_its_views_as_any_single_table_does() -> None:
    (bound,) = bind([RedisHash("u", Entity("shop.user", sources="eu").of_source("eu"), fields=["email"])], described)
    ((_, followed),) = followed_tables([bound]).items()
    effects: list[ddl.Effect] = [ddl.Dropped(ddl.Name("shop", "user"))]
    assert [*gone(followed, effects, False)] == []
    ((part, alone),) = alone_in(followed, effects, False)
    assert part == ("shop", "user", ("eu",)) and alone.table.full_name == "shop.user"
    assert [column.name for column in alone.table.columns] == ["id", "email"]


def test_a_parked_key_of_another_source_is_none_of_this_one_and_no_mistake() -> None:
    (bound,) = bind([RedisHash("u", Entity("shop.user", sources="eu").of_source("eu"), fields=["email"])], described)
    parked = frozenset({"eu:7", "eu:8"})
    assert _parked_keys(bound, ["us:7", "eu:7"], parked) == ["eu:7"] and _parked_keys(bound, [], parked) == []
    with pytest.raises(UnknownNameError, match="of the source us, and this is eu"):
        _parked_keys(bound, ["us:7"], parked)
    with pytest.raises(MisuseError, match=r"not parked: eu:9\. See"):
        _parked_keys(bound, ["us:7", "eu:9"], parked)
    with pytest.raises(MisuseError, match="'7'"):
        _parked_keys(bound, ["7"], parked)


class Holding(GuardedSink):
    """A store that shows keys of two sources, all older than a backfill."""

    def __init__(self) -> None:
        self.buried: list[Key] = []

    def keys_below(self, view: str, version: int, since: int | None = None) -> Iterator[list[tuple[Key, int]]]:
        yield [(("eu", 1), LEAST_OF_BINLOGS), (("us", 1), LEAST_OF_BINLOGS)]

    def write(self, writes: Any, *_: Any) -> list[Parked]:
        self.buried += writes[0].writes
        return []


def test_a_sweep_a_comparison_and_a_repair_leave_the_keys_of_other_sources_alone() -> None:
    views = [RedisHash("u", Entity("shop.user", sources="eu").of_source("eu"), fields=["email"])]
    (bound,) = bind(views, described)
    both: list[Key] = [("eu", 1), ("us", 1)]
    sink, filling = Holding(), Mock(view=bound, unparked=dict)
    filling.progress.is_adopted.return_value = False
    fill = GuardedFill(sink)
    fill._is_swept = True
    assert fill.sweep(filling) and sink.buried == [("eu", 1)]

    absent = Mock(side_effect=lambda _, keys, __: set(keys))
    reader = Mock(shown_keys=lambda: iter([both]), orphans=lambda: iter([both]), held=Mock(return_value={}))
    comparison = Comparison(
        view=bound, rows=Mock(absent=absent, having=Mock(return_value=[])), reader=reader,
        projections=Projections([bound], followed_tables([bound])), now=lambda: 9, parked=frozenset,
    )  # fmt: skip
    assert [keys for _, keys in comparison.orphans(9)] == [[("eu", 1)], [("eu", 1)]]
    comparison.settle(both)
    reader.held.assert_called_with([("eu", 1)])

    written: list[Key] = []
    reprojection = Mock(view=bound, _of_some=lambda keys, *_: written.extend(keys) or Written())
    Reprojection._of_keys(reprojection, both, 9, None)
    assert written == [("eu", 1)]


def test_a_place_that_was_lost_is_lost_for_all_sources_where_they_share_it() -> None:
    entity = Entity("shop.user", sources=["eu", "us"]).of_source("eu")
    of_table, of_redis = IndexTable("i", entity, value="email"), RedisHash("u", entity, fields=["email"])
    of_one = IndexTable("j", Entity("shop.user"), value="email")
    bound = {view.id: view for view in bind([of_table, of_redis, of_one], described)}
    states = Mock()
    life = Mock(views=bound, states=states)
    ViewLife.lost_for_others(life, frozenset(bound))
    states.lost_for_others.assert_called_once_with(["mysql:i"])


def test_what_a_foreign_key_does_to_the_table_of_a_source_concerns_its_views() -> None:
    views = [RedisHash("u", Entity("shop.user", sources="eu").of_source("eu"), fields=["email"])]
    (bound,) = bind(views, described)
    key = ForeignKey(
        name="of_city", table=("shop", "user"), columns=("id",), parent=("shop", "city"), referenced=("id",),
        on_delete="CASCADE", on_update="RESTRICT",
    )  # fmt: skip
    city = Table(schema="shop", name="city", columns=(ID,), primary_key=("id",))
    followed = [*followed_tables([bound]).values(), Followed(city, ("id",))]
    cascades = Cascades([key], [bound], followed)
    change = RowChanges(followed[1], DELETE, 7, [(3,)])
    cascades.on_passed(Mock(changes=[change]))
    assert cascades.due() == ["redis:u"] and cascades.take("redis:u").is_any_gone


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: Entity("shop.user", sources=["EU"]), "'EU' is no name of a source"),
        (lambda: Entity("shop.user", sources=["e-u"]), "is no name of a source"),
        (lambda: Entity("shop.user", sources=["eu", "eu"]), "eu is named twice"),
        (lambda: Entity("shop.user", sources=[1]), "non-empty strings"),
        (lambda: Entity("shop.user", sources="eu", related={"n": Count("shop.o", by="id")}), "related="),
        (lambda: Entity("{source=eu}shop.user"), "but as sources=['eu']"),
        (lambda: Entity("`a.b`.user", sources="eu"), "no dot, backtick or #"),
        (lambda: Entity("shop.user", sources="eu", version="source"), "version: source is the source's name"),
        (lambda: RedisHash("u", Entity("s.u", sources="eu", version="v", append_only=True), fields=["e"], push=True),
         "which of sources= it is on"),
        (lambda: MySQLTable("u", Entity("shop.user", sources="eu")), "of one server"),
        (lambda: Entity("{source}_x.user", sources="eu"), "a brace is called source"),
    ],
)  # fmt: skip
def test_what_cannot_be_of_several_servers_is_refused_as_it_is_declared(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises((DeclarationError, ValueError)) as refused:
        declare()
    assert said in str(refused.value)


def test_a_topic_and_a_view_that_is_not_of_one_source_yet_are_refused_before_any_server_is_asked() -> None:
    entity = Entity("shop.user", sources="eu")
    with pytest.raises(DeclarationError, match="a topic of several servers is not there yet"):
        check_source(BinlogKind(), [Topic("users", entity.of_source("eu"))])
    with pytest.raises(DeclarationError, match="is read as one of them has it"):
        check_source(BinlogKind(), [RedisHash("u", entity, fields=["email"])])
    with pytest.raises(TypeError):
        Group("shop.user", by="id", values={"n": Count()}, sources="eu")  # type: ignore[call-arg]


def test_masks_of_an_entity_are_those_of_each_source() -> None:
    entity = Entity("shop.user", sources="eu", masked={"email": "null", "shop.user.id": "hash"})
    view = RedisHash("u", entity, fields=["email"], unmasked=["shop.user.id"]).of_source("eu")
    assert dict(view.masked) == {"{source=eu}shop.user.email": "null", "{source=eu}shop.user.id": "hash"}
    assert view.unmasked == ("id",)


MASKED = """
from viewtail import Entity, RedisHash
views = [
    RedisHash("a", Entity("shop.user", masked={"email": "hash"}), fields=["email"]),
    RedisHash("b", Entity("shop.user", sources="eu", masked={"phone": "null"}), fields=["email"]),
    RedisHash("c", Entity("SHOP.user", sources=["eu", "us"]), fields=["email"]),
    RedisHash("d", Entity("`my-shop`.user", sources="us", masked={"email": "null"}), fields=["id"]),
    RedisHash("e", Entity("`my-shop`.user", sources="us"), fields=["email"]),
]
"""


def _masks(source: str) -> dict[str, dict[str, str]]:
    def asked(schema: str, name: str) -> Table:
        phone = replace(EMAIL, name="phone")
        return of_parts(pattern, [replace(USER, columns=(ID, EMAIL, phone))], [pattern.sample])

    found = {}
    for view in declarations.load(f"views:views@{source}"):
        pattern = pattern_of(*view.entity.schema_and_table) or Mock()
        masked = MaskedTables(view, asked, ANY_SECRET)(*view.entity.schema_and_table).columns
        found[view.name] = {column.name: column.mask.how for column in masked if column.mask}
    return found


def test_a_mask_of_a_table_is_one_for_the_views_of_all_sources_and_of_the_one_without_a_name() -> None:
    targets(MASKED)
    both = {"email": "hash", "phone": "null"}
    assert _masks("eu") == {"b": both, "c": both}
    assert _masks("us") == {"c": both, "e": {"email": "null"}, "d": {"email": "null"}}
    (plain,) = declarations.load("views:views@default")
    assert dict(plain.masked)["shop.user.phone"] == "null"
    targets(MASKED.replace("phone", "email") + "# of another size, or Python takes what it compiled in this second\n")
    for source in ("default", "eu", "us"):
        with pytest.raises(DeclarationError, match="a column is masked in one way in all of"):
            declarations.load(f"views:views@{source}")


# --- The index table of several sources ---

COMPUTED = {"values": {"domain": "VARCHAR(20)"}, "of": lambda row: row.email}


def _present(view: Any, **types: str) -> PresentTable:
    return _present_as(IndexTableShape("viewtail", view), **types)


def _present_as(shape: IndexTableShape, **types: str) -> PresentTable:
    present = PresentTable(shape.comment)
    for definition in shape.columns:
        of = definition.shape
        present.add_column(
            definition.name, Shape(types.get(definition.name, of.type), of.collation, of.is_nullable), "", None
        )
    for column in shape.primary:
        present.add_to_index("PRIMARY", column, is_unique=True)
    for name, columns in shape.indexes.items():
        for column in columns:
            present.add_to_index(name, column, is_unique=False)
    return present


def _statements(view: Any, present: PresentTable) -> list[str]:
    return IndexTableShape("viewtail", view, present=present)._changes(present)


def test_columns_are_as_wide_as_the_widest_source_needs_and_none_takes_room_away() -> None:
    eu, us = (
        bind([IndexTable("i", Entity("shop.user", sources=["eu", "us"]), value="email").of_source(name)], described)[0]
        for name in ("eu", "us")
    )
    assert _statements(us, _present(eu)) == []
    wide = _present(eu, email="varchar(200)", id="bigint")
    assert _statements(us, wide) == [] and IndexTableShape("viewtail", us, present=wide).is_whole
    narrow = _present(eu, email="varchar(20)")
    (alter,) = _statements(us, narrow)
    assert alter.startswith("ALTER TABLE") and "varchar(40)" in alter
    assert IndexTableShape("viewtail", us, present=narrow).is_whole  # nothing is lost in it
    with pytest.raises(DeclarationError, match=r"column email is varchar.40., and its table, .* was made with int"):
        _statements(us, _present(eu, email="int"))
    other_key = _present(eu)
    other_key.indexes["PRIMARY"] = ("source", "id", "shop")
    with pytest.raises(DeclarationError, match=r"made with .source, id, shop.: by another source, or as .* DROP TABLE"):
        _statements(us, other_key)


@pytest.mark.parametrize("given", [{"value": "email"}, {"value": "email", "each": "VARCHAR(9)"}, COMPUTED])
def test_the_table_that_one_source_made_is_whole_for_the_others_in_each_form(given: dict[str, Any]) -> None:
    entity = Entity("shop.user", sources=["eu", "us"])
    eu, us = (bind([IndexTable("i", entity, **given).of_source(name)], described)[0] for name in ("eu", "us"))
    assert places.shape_of("viewtail", us, present=_made(eu)).is_whole
    renamed = _made(eu, comment="viewtail index table of {source}shop.person; ")
    shape = places.shape_of("viewtail", us, present=renamed)
    assert not shape.is_whole, "it is dropped: the rows of all sources are lost, which they are told"
    assert shape.to_come


def _made(view: Any, comment: str = "") -> dict[str, PresentTable]:
    """What a source's process made, as the next one finds it."""
    shape = places.shape_of("viewtail", view)
    both = shape._both if isinstance(shape, TwoTables) else [shape]
    tables = {made.table.split("`")[3]: _present_as(made) for made in both}
    for table in tables.values():
        table.comment = comment or table.comment
    return tables


def test_values_that_do_not_fit_any_more_are_never_cut_where_other_sources_wrote_them() -> None:
    (us,) = bind([IndexTable("i", Entity("shop.user", sources="us"), value="email").of_source("us")], described)
    cursor = MagicMock()
    cursor.__enter__.return_value.execute.side_effect = pymysql.err.DataError(1406, "Data too long")
    connection = Mock(cursor=Mock(return_value=cursor))
    with pytest.raises(RowsDoNotFitError):
        IndexTableShape("viewtail", us, present=_present(us, email="varchar(20)")).make_ready(connection)
    connection.query.assert_not_called()


@pytest.mark.parametrize("sources", [("eu", "us"), ()])
def test_sources_look_at_the_table_that_they_share_and_change_it_one_at_a_time(
    sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    answer, view = [1], IndexTable("i", Entity("shop.user", sources=sources), value="email")
    (bound,) = bind([view.of_source("us") if sources else view], described)

    def asked(_: Any, sql: str, *arguments: object) -> int:
        said.append(sql.partition("(")[0])
        return answer[0] if "GET_LOCK" in sql else 1 << 20

    def present(*_: Any) -> dict[str, PresentTable]:
        said.append("looked")
        return {}

    made = Mock(side_effect=lambda _: said.append("made"))
    monkeypatch.setattr(sink, "value_of", asked)
    monkeypatch.setattr(sink, "present_tables", present)
    monkeypatch.setattr(sink, "facts_of", lambda _: SimpleNamespace(name=MYSQL))
    monkeypatch.setattr(sink, "create_database", Mock())
    monkeypatch.setattr(IndexTableShape, "make_ready", made)
    monkeypatch.setattr(places, "writer_of", Mock(return_value=Mock(is_row_whole=False)))
    store = sink.MySQLSink(Mock, "viewtail", [bound])
    assert store.prepare(lambda _: said.append("told")) == {}
    within = ["looked", "SELECT @@max_allowed_packet", "told", "made"]
    assert said == (["SELECT GET_LOCK", *within, "SELECT RELEASE_LOCK"] if sources else within)

    answer[0] = 0
    said.clear()
    if sources:
        with pytest.raises(StoreUnavailableError, match="another source is making or changing its tables"):
            store.prepare()
        with pytest.raises(StoreUnavailableError, match="another source"):
            store.fit(bound)
        assert said == ["SELECT GET_LOCK"] * 2


@pytest.mark.parametrize("given", [{"value": "email"}, {"value": "email", "each": "VARCHAR(9)"}])
def test_a_source_asks_an_index_table_for_its_own_keys_before_the_limit(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (us,) = bind([IndexTable("i", Entity("shop.user", sources="us"), **given).of_source("us")], described)
    asked = MagicMock()
    monkeypatch.setattr(reading, "fetch_rows", lambda _, statement, __: asked.execute(statement) and [])
    connection = Mock(cursor=Mock(return_value=MagicMock(__enter__=Mock(return_value=asked))))
    places.reader_of(connection, "viewtail", us).keys_with(["x"], 2)
    (statement,) = asked.execute.call_args.args
    assert "`source` = " in statement.partition("WHERE")[2] and "us" in statement and statement.endswith("LIMIT 2")


@pytest.mark.parametrize("kind", [RedisSet, partial(RedisSortedSet, score="id")])
def test_a_source_finds_its_own_members_of_a_set_behind_many_of_others(kind: Any) -> None:
    view = kind("s", Entity("shop.user", sources=["eu", "us"]), key="of:{email}")
    (us,) = bind([view.of_source("us")], described)
    members = [f"{name}:{number}".encode() for name in ("eu", "us") for number in range(1, 1500)]
    client = Mock(
        sscan_iter=lambda *_, **__: iter(members), zrange=lambda _, first, last: members[first : last + 1]
    )  # fmt: skip
    assert SetReader(client, us).keys_with(["x"], 2) == [("us", 1), ("us", 2)]
    assert SetReader(client, us).keys_with(["x"], 5000) == [("us", number) for number in range(1, 1500)]


def test_what_reads_the_epoch_that_a_store_has_kept_makes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "where_live", Mock())
    monkeypatch.setattr(replay, "Copies", Mock())
    kept = Mock(spec=Holding, witness=Mock(return_value=Mock(epoch=7)))
    monkeypatch.setattr(replay, "store_named", Mock(return_value=Mock(sink=Mock(return_value=kept))))
    assert replay.kept_epoch(Mock(), PipelineId("us", 0, "mysql")) == 7
    kept.attach.assert_called_once_with()
    kept.prepare.assert_not_called()


@pytest.mark.parametrize("is_there", [True, False])
def test_an_erasure_makes_no_place_either(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    view = Mock(id="mysql:i")
    kept = Mock(spec=Holding, attach=Mock(return_value=frozenset(["mysql:i"] if is_there else [])))
    store = Mock(for_backfill=Mock(return_value=(kept, MagicMock())))
    monkeypatch.setattr(erase, "store_of", Mock(return_value=store))
    monkeypatch.setattr(erase, "transaction", MagicMock())
    monkeypatch.setattr(erase, "known_views", Mock(return_value={("us.0.mysql", "mysql:i"): Mock(id=3)}))
    note = Mock()
    monkeypatch.setattr(erase, "note_written", note)
    if is_there:
        erase._write_tombstone(Mock(), view, "us.0.mysql", ("us", 1), 9)
        assert note.call_args.args[2:] == ([3], 9)  # a store that loses it is noticed
    else:
        with pytest.raises(ViewtailError, match="view mysql:i: its place is not as it is declared"):
            erase._write_tombstone(Mock(), view, "us.0.mysql", ("us", 1), 9)
    assert kept.write.called == is_there
    kept.prepare.assert_not_called()


# --- Settings ---


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("views", None)


def settings(toml: str = "", **environ: str) -> Settings:
    Path("viewtail.toml").write_text(toml)
    return load(None, environ)


def test_named_sources_come_from_the_file_and_the_environment_which_wins() -> None:
    toml = '[sources.eu]\nurl = "mysql://a"\nserver_id = 7\npassword = "x"\n[sources.shard_1]\nurl = "mysql://s"\n'
    loaded = settings(toml, **ENVIRONMENT, VIEWTAIL_SOURCES__SHARD_1__PASSWORD="y")
    assert {*loaded.sources} == {"eu", "us", "shard_1"}
    eu = loaded.of_source("eu")
    assert eu.source_address().host == "eu" and eu.source.server_id == 7
    assert loaded.of_source("shard_1").source_address().password == "y"
    assert (eu.store_address().host, eu.store_database) == ("db", "viewtail")
    assert eu.source_access().name == "eu" and eu.servers().source_name == "eu" and eu.views == "views:views@eu"
    assert eu.servers().keeps("eu.0.redis") and not eu.servers().keeps("us.0.redis") and not eu.servers().keeps("redis")
    assert loaded.servers().keeps("redis") and not loaded.servers().keeps("eu.0.redis")
    assert BinlogKind().parts(eu.source_access(), [("shop", "user")]) == [("eu", 0)]


def test_views_of_named_sources_are_beside_the_source_without_a_name_where_mysql_has_no_url() -> None:
    loaded = settings('[source]\nurl = "mysql://me:pw@first"\n[sources.eu]\nurl = "mysql://you@eu"\n')
    address = loaded.of_source("eu").store_address()
    assert (address.host, address.user, address.password, address.database) == ("first", "me", "pw", "viewtail")
    with pytest.raises(SettingsError, match=r"no \[sources.us\]; there are eu"):
        loaded.of_source("us")
    with pytest.raises(SettingsError, match=r"VIEWTAIL_MYSQL__URL"):
        settings('[sources.eu]\nurl = "mysql://you@eu"\n').of_source("eu")


@pytest.mark.parametrize(
    ("toml", "environ", "said"),
    [
        ("[sources.EU]\nurl = 'mysql://a'", {}, "sources.EU: a source's name is in keys"),
        ("[sources.default]\nurl = 'mysql://a'", {}, "and not default"),
        ("[sources.a__b]\nurl = 'mysql://a'", {}, "single _ between them"),
        (f"[sources.{'a' * 64}]\nurl = 'mysql://a'", {}, "a source's name is in a column of each key: at most 63"),
        ("[sources.eu]\nurl = 'kafka://a'", {}, "reads their binlogs"),
        ("[sources.eu]\nurl = 'mysql://a'\nmode = 'poll'", {}, "reads their binlogs"),
        ("[sources.eu]\nuser = 'a'", {}, 'say url = "mysql://'),
        ("[sources.eu]\nurll = 'mysql://a'", {}, "viewtail.toml: sources.eu.urll is not a setting; did you mean url?"),
        ("[sources.eu]\nurl = 'mysql://a'\nserver_id = 0", {}, "viewtail.toml: sources.eu.server_id is 0"),
        ("[sources]\neu = 'mysql://a'", {}, "viewtail.toml: sources.eu is a group of settings"),
        ("sources = 'mysql://a'", {}, "write [sources.eu]"),
        ("source_name = 'eu'", {}, "source_name is not a setting"),
        ("", {"VIEWTAIL_SOURCES__EU__URLL": "x"}, "VIEWTAIL_SOURCES__EU__URLL is no setting of a source; did you mean"),
        ("", {"VIEWTAIL_SOURCES__EU": "mysql://a"}, "VIEWTAIL_SOURCES__EU is no setting of a source"),
        ("", {"VIEWTAIL_SOURCES__EU__URL": "mysql://a", "VIEWTAIL_SOURCES__EU__SERVER_ID": "x"},
         "VIEWTAIL_SOURCES__EU__SERVER_ID is 'x': must be a whole number"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_settings_of_a_source_names_its_place(toml: str, environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(toml, **environ)
    assert said in str(refused.value)


# --- Status ---


def _pipeline(name: str, *views: str) -> PipelineStatus:
    of = [
        ViewStatus(name=view, state=State.FILLED, reason=None, filled_percent=100, row_count=1, row_estimate=1,
                   rows_per_second=0, eta_s=None, parked=0)
        for view in views
    ]  # fmt: skip
    return PipelineStatus(
        name=name, state="running", position=None, gtid=None, lag_s=0, rows_per_second=0, applied_row_count=0,
        reconnect_count=0, error=None, owner="host:1", reported_s_ago=1, views=tuple(of),
    )  # fmt: skip


def test_status_tells_of_a_source_whose_view_no_run_has_seen() -> None:
    loaded = targets(VIEWS)[-1].settings
    declared = declarations.declared_sources(loaded)
    assert declared == {"redis:user": {"eu", "us"}, "redis:city": frozenset()}
    seen = [_pipeline("eu.0.redis", "redis:user"), _pipeline("redis", "redis:city")]
    findings = compared(Findings(pipelines=seen), declared, "viewtail", is_shared_out=False)
    assert findings.not_run == ["redis:user (us)"] and not findings.is_well and not findings.retired
    not_seen = "view redis:user (us) is declared, but no run has seen it yet"
    to_begin = "No viewtail that keeps it runs. Start one: viewtail run"
    assert f"{not_seen}. {to_begin}" in remarks(findings), "what runs is of another source"
    both = [*seen, _pipeline("us.0.redis", "redis:user")]
    assert compared(Findings(pipelines=both), declared, "viewtail", is_shared_out=False).is_well
    nobody = compared(Findings(pipelines=[]), declared, "viewtail", is_shared_out=False)
    assert nobody.not_run == ["redis:city", "redis:user (eu)", "redis:user (us)"]


def test_status_knows_a_view_that_each_source_keeps_by_its_own_declaration_from_one_that_changed() -> None:
    loaded = targets(VIEWS)[-1].settings
    hashes = declarations.declared_hashes(loaded)
    assert len(hashes["redis:user"]) == 2 and len(hashes["redis:city"]) == 1

    def kept(**of_eu: str) -> Sequence[str]:
        pipelines = []
        for declaration, name in zip(sorted(hashes["redis:user"]), ("eu", "us"), strict=True):
            pipeline = _pipeline(f"{name}.0.redis", "redis:user")
            (view,) = pipeline.views
            changes: Any = {"declaration": declaration, **(of_eu if name == "eu" else {})}
            pipelines.append(replace(pipeline, views=(replace(view, **changes),)))
        found = with_declarations(Findings(pipelines=pipelines), hashes)
        assert all(
            any(f"view {view} is kept as it" in line for line in remarks(found)) for view in found.kept_as_before
        )
        return found.kept_as_before

    assert kept() == []
    assert kept(declaration="another") == ["redis:user"]
    assert kept(declaration="another", state=State.PAUSED) == [], "a restart leaves it as it is"


def _asked(name: str, left_s: float | None = None, error: str = "") -> Any:
    def margins(_: Any, positions: Any, lags_s: Any) -> dict[str, Margin]:
        if error:
            raise SourceUnavailableError(error)
        assert positions.keys() == lags_s.keys()
        return {one: Margin(left_s=left_s or 0.0, keeps_s=10_000.0, limit="age") for one in positions}

    kind = Mock(margins=margins, risk=lambda _: None, waiting=lambda *_: {}, ages=lambda *_: {})
    return Mock(
        kind=kind, source_name=name, named_source="" if name == "default" else name,
        keeps=lambda pipeline: BinlogKind().keeps(name, pipeline),
    )  # fmt: skip


def test_a_pipeline_is_judged_by_its_own_source_and_each_source_that_is_away_is_told() -> None:
    names = ("redis", "eu.0.redis", "us.0.redis", "asia.0.redis")
    pipelines = [replace(_pipeline(name), lag_s=3600.0) for name in names]
    offsets = dict.fromkeys(names, BEFORE_ALL)
    answers = _SourceAnswers.of(_asked("default"), pipelines, (), {})
    for each in (
        _asked("default", 9000.0), _asked("eu", 4000.0), _asked("us", error="no route"), _asked("asia", error="refused")
    ):  # fmt: skip
        answers.ask_margins(each, pipelines, offsets)
    assert {name: margin.left_s for name, margin in answers.margins.items()} == {"redis": 9000.0, "eu.0.redis": 4000.0}
    assert answers.error == "source us: no route; source asia: refused"
    findings = Findings(pipelines=pipelines, margins=answers.margins)
    assert [pipeline.name for pipeline in findings.nearly_gone] == ["eu.0.redis"]
    assert "pipeline eu.0.redis: the source may remove what it needs next in 66.7 minutes" in " ".join(
        remarks(findings)
    )


def test_status_asks_each_source_that_views_draw_on(deployment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", "mysql://first")
    asked = list[str]()

    def collect(servers: Any, others: Any) -> Findings:
        asked.extend([each.source_name for each in (servers, *others)])
        assert [each.source().address().host for each in others] == ["eu", "us"]
        return Findings(pipelines=[])

    monkeypatch.setattr(composition, "collected", collect)
    assert status(deployment) == 1 and asked == ["default", "eu", "us"]


def test_a_search_tells_of_every_source_that_lacks_rows() -> None:
    entity = Entity("shop.user", sources=["eu", "us", "shard*"])
    view = SearchIndex("u", entity, fields={"email": "text"}).of_source("eu")

    def keeper(source: str, state: State) -> tuple[tuple[str], Any]:
        row = Mock(state=state, reason="no table", row_count=3, row_estimate=9)
        return (source,), Mock(pipeline=Mock(pause=None), row=row, __iter__=lambda of: iter((of.pipeline, of.row)))

    keepers: Any = dict([
        keeper("eu", State.FILLED), keeper("us", State.HALTED), keeper("shard1", State.BACKFILLING),
        keeper("gone", State.HALTED),
    ])  # fmt: skip
    assert _of_sources(keepers, view, "begin {}".format) == (
        "source shard1: view elasticsearch:u is only half backfilled (3 of about 9 rows): some are missing. "
        "source us: view elasticsearch:u is halted and gets no more changes: no table"
    )
    del keepers["us",], keepers["shard1",]
    assert _of_sources(keepers, view, "begin {}".format) == (
        "source us: view elasticsearch:u was never backfilled. begin us"
    )


@pytest.mark.usefixtures("deployment")
def test_what_one_source_answers_for_all_is_asked_of_the_next_where_the_first_is_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = {"eu"}

    def command(loaded: Settings) -> int:
        name = loaded.servers().source_name
        if name in away:
            raise SourceUnavailableError(f"cannot reach {name}")
        if name == "default":
            raise UnknownNameError("no view is called user")
        print(f"from {name}")
        return 0

    assert in_deployments(None, command) == 0
    assert capsys.readouterr() == ("from us\n", "")
    away.add("us")
    assert in_deployments(None, command) == 1
    said = capsys.readouterr().err
    assert "eu: cannot reach eu" in said and "us: cannot reach us" in said


# --- Which source a command is about ---

VIEWS = """
from viewtail import Entity, RedisHash
views = [
    RedisHash("user", Entity("shop.user", sources=["e*", "us"]), fields=["email"]),
    RedisHash("city", Entity("shop.city"), fields=["name"]),
]
"""


def targets(views: str, **environ: str) -> list[shards.Target]:
    Path("views.py").write_text(views)
    sys.modules.pop("views", None)
    Path("viewtail.toml").write_text("")
    found = load(None, {**ENVIRONMENT, **environ})
    return shards._of_sources(found)


def test_each_source_is_a_target_with_the_views_that_draw_on_it_and_one_more_has_the_others() -> None:
    found = targets(VIEWS, VIEWTAIL_SOURCE__URL="mysql://first", VIEWTAIL_SOURCES__ASIA__URL="mysql://asia")
    assert [target.shard for target in found] == ["default", "eu", "us"]
    views = {target.shard: declarations.load(target.settings.views) for target in found}
    assert {name: [view.id for view in of] for name, of in views.items()} == {
        "default": ["redis:city"], "eu": ["redis:user"], "us": ["redis:user"],
    }  # fmt: skip
    assert [view.entity.table for view in views["us"]] == ["{source=us}shop.user"]
    assert found[0].names("redis") == "redis" and found[1].names("eu.0.redis") == "eu.0.redis"
    assert declarations.all_ids(found[1].settings) == {"redis:user", "redis:city"}


def test_a_deployment_without_such_views_is_as_it_was() -> None:
    views = "from viewtail import Entity, RedisHash\nviews = [RedisHash('c', Entity('s.c'), fields=['n'])]"
    (only,) = targets(views)
    assert only.shard is None and only.settings.views == "views:views"


def test_views_that_cannot_be_loaded_leave_every_source_of_the_settings_to_choose() -> None:
    broken = targets("views = [", VIEWTAIL_SOURCE__URL="mysql://first")
    assert [target.shard for target in broken] == ["default", "eu", "us"]
    assert [target.shard for target in targets("views = [")] == ["eu", "us"]


def test_names_that_the_settings_do_not_have_are_told_with_those_that_there_are() -> None:
    with pytest.raises(DeclarationError, match="the settings have no source shard\\*; there are eu, us"):
        targets(VIEWS.replace('"e*"', '"shard*"'))
    with pytest.raises(SettingsError, match=r"VIEWTAIL_SOURCE__URL is that of topics"):
        targets(VIEWS, VIEWTAIL_SOURCE__URL="kafka://broker:9092")
    Path("views.py").write_text(VIEWS)
    sys.modules.pop("views", None)
    with pytest.raises(DeclarationError, match=r"\[sources.e1\] with url"):
        declarations.load("views:views")


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command line is given besides its arguments, where the views are of several sources."""
    Path("views.py").write_text(VIEWS)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return Mock(obj=None)


def test_views_of_different_sources_are_paused_and_resumed_together(
    deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", "mysql://first")
    done, asked = Mock(return_value=0), list[list[str]]()

    def outcomes(_: Any, views: Any, **__: Any) -> list[Mock]:
        asked.append([view.id for view in views])
        return [Mock(outcome=Outcome.NOT_NEEDED, view=view.id, before=Mock(paused="x", state="x")) for view in views]

    for name in ("pause_views", "resume_views"):
        monkeypatch.setattr(pausing_operation, name, outcomes)
    monkeypatch.setattr(pausing_command, "own_tables", done)
    assert pause(deployment, ["user", "city"]) == 0 and resume(deployment, ["city", "redis:user"]) == 0
    assert asked == [["redis:user", "redis:city"], ["redis:city", "redis:user"]]
    assert pause(deployment, ["user", "citi"]) != 0 and len(asked) == 2
    assert _row_estimate(Mock(), declarations.load("views:views@eu")[0]) is None


@pytest.mark.parametrize(
    ("command", "given", "option"),
    [
        (replay_command, {"view": ["user"], "begin": "binlog.000003:4"}, "--from"),
        (wait, {"view": "user", "position": "binlog.000003:4"}, "--position"),
        (wait, {"view": "user", "gtid": "0-1-7"}, "--gtid"),
    ],
)
def test_a_place_in_one_servers_binlog_is_not_given_to_several(
    deployment: Any, monkeypatch: pytest.MonkeyPatch, command: Callable[..., int], given: Any, option: str
) -> None:
    with pytest.raises(MisuseError, match=f"^{option} is a place in the binlog of one server.* VIEWTAIL_SHARD=us"):
        command(deployment, **given)
    monkeypatch.setenv("VIEWTAIL_SHARD", "us")
    require_one_source(None, option)


@pytest.mark.usefixtures("deployment")
def test_the_environment_chooses_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTAIL_SHARD", "us")
    (only,) = shards.targets(None)
    assert only.settings.source_address().host == "us"
    monkeypatch.setenv("VIEWTAIL_SHARD", "uss")
    with pytest.raises(MisuseError, match="no deployment; did you mean us"):
        _ = shards.targets(None)[0].settings


def test_of_the_views_that_a_command_names_each_source_takes_its_own() -> None:
    found = {target.shard: target.settings for target in targets(VIEWS, VIEWTAIL_SOURCE__URL="mysql://first")}
    chosen = {
        shard: [view.id for view in declarations.all_chosen(loaded, ["user", "city"])]
        for shard, loaded in found.items()
    }
    assert chosen == {"default": ["redis:city"], "eu": ["redis:user"], "us": ["redis:user"]}
    for loaded in found.values():
        with pytest.raises(UnknownNameError, match="no view is called 'userr'"):
            declarations.all_chosen(loaded, ["userr", "user"])
    with pytest.raises(UnknownNameError, match="no view is called 'user'"):
        declarations.all_chosen(found["default"], ["user"])
