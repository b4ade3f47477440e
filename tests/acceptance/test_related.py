"""Rows with rows of other tables, as a user declares them: each kind of relation, every command, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.related_world import CHANGES, VIEWS, RelatedWorld
from tests.support.running import Run, addresses, running, wait_for

pytestmark = [pytest.mark.redis, pytest.mark.slow]
REFUSED = {
    'Entity("bad.root", related={"one": One("bad.other", on="code")})': (
        "column code of bad.root is VARCHAR(10) and column id of bad.other INT",
        "give both columns one type",
    ),
    'Entity("bad.root", related={"one": One("bad.other", on="code", to="code")})': (
        "the collations utf8mb4_bin and utf8mb4_general_ci differ",
    ),
    'Entity("bad.root", related={"one": One("bad.other", on="other")})': ("has no column other",),
    'Entity("bad.root", related={"one": One("bad.other", on="id", to="name")})': (
        "to (name) is no primary key and no unique key",
        "say Many",
    ),
    'Entity("bad.root", related={"one": One("bad.keyless", on="id", to="id")})': ("bad.keyless has no primary key",),
    'Entity("bad.root", related={"one": One("bad.missing", on="id")})': ("bad.missing",),
    'Entity("bad.root", related={"code": One("bad.other", on="id")})': ("bad.root has a column of that name",),
    'Entity("bad.root", related={"one": One("bad.other", on=["id", "code"])})': ("are not equally many columns",),
    'Entity("bad.root", related={"one": Sum("bad.other", "name", by="id")})': ("only sums of integers and DECIMALs",),
    'Entity("bad.root", related={"one": Count("bad.other", by="id", where="id = (SELECT 1)")})': ("where=",),
    'Entity("bad.root", related={"one": Many("bad.other", by="id", order_by="missing")})': ("has no column missing",),
}


# Beside the views of the world: a function that takes a related row for granted.
TAKEN = """
views.append(RedisJson("taken", seat, document=lambda row: {"id": row["tickets"][0]["id"]}, key="taken:{hall}:{row_no}",
                       where=lambda row: row["hall"] == 1 and row["row_no"] == 1))
"""


class Case:
    """A world, and the viewtail that keeps its views."""

    def __init__(self, world: RelatedWorld, run: Run) -> None:
        self.world, self.run = world, run
        self.redis = redis.Redis(port=world.redis_server.port, decode_responses=True)

    def settle(self) -> None:
        wait_for("every view holds what the joins say", self.world.is_equal, timeout_s=30)

    def succeeds(self, *arguments: str) -> str:
        done = self.run.command(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def finds(self, *arguments: str) -> str:
        """The output of a command that is to find something wrong."""
        done = self.run.command(*arguments)
        assert done.returncode == 1, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def case(request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path) -> Iterator[Case]:
    world = RelatedWorld(request.getfixturevalue(f"{request.param}_server"), redis_server)
    world.make()
    environment = addresses(world.server, redis_server)
    environment["VIEWTAIL_SOURCE__URL"] = f"mysql://root@127.0.0.1:{world.server.port}"
    with running(tmp_path, VIEWS, environment) as run:
        wait_for("the views are filled", run.is_filled)
        yield Case(world, run)


def test_every_kind_of_relation_shows_what_the_joins_say_after_every_kind_of_change(case: Case) -> None:
    case.settle()
    for changes in CHANGES.values():
        for statement in changes:
            case.world.do(statement)
        case.settle()
    case.world.do("DELETE FROM rel.person WHERE id = 4")
    case.world.do("DELETE FROM rel.author")
    case.settle()
    case.succeeds("status")
    case.succeeds("verify")


def test_every_change_is_shown_by_itself(case: Case) -> None:
    """Not by another one that came with it."""
    case.settle()
    for statement in (statement for changes in CHANGES.values() for statement in changes):
        case.world.do(statement)
        try:
            case.settle()
        except AssertionError as error:
            raise AssertionError(f"after {statement}: {error}") from None


def test_every_command_knows_such_views(case: Case) -> None:
    case.settle()
    shown = json.loads(case.succeeds("get", "redis:person", "1", "--json"))
    assert shown["content"]["tags"] == case.world.expected()["person"]["1"]["tags"]
    found = json.loads(case.succeeds("find", "mysql:person_paid", "Chile", "--json"))
    assert [row["id"] for row in found["rows"]] == [1]
    assert json.loads(case.succeeds("why", "redis:person", "1", "--json"))["verdict"] == "current"
    for command in (("check",), ("preview", "redis:person"), ("verify",)):
        case.succeeds(*command)
    case.redis.delete("person:1")
    case.redis.copy("person:2", "person:77")
    case.redis.set("seat:1:1", case.redis.get("seat:1:2") or "")
    ask(case.world.server, "UPDATE viewtail.person_paid SET country = 'wrong' WHERE id = 1")
    assert "person" in case.finds("verify")
    case.succeeds("verify", "--repair")
    case.settle()
    case.redis.delete("person:2")
    case.succeeds("replay", "redis:person", "--key", "2")
    case.settle()
    case.succeeds("replay", "mysql:person_paid")
    case.succeeds("rebuild", "redis:person")
    case.settle()
    case.world.do("UPDATE rel.country SET name = 'after' WHERE id = 1")
    case.settle()
    case.succeeds("verify")


def test_no_proof_is_given_while_a_document_that_had_the_row_is_parked(case: Case) -> None:
    """Its function takes a related row for granted, so that the delete parks the document, which shows it on."""
    views = case.run.folder / "views.py"
    restart(case, VIEWS + TAKEN)
    shown = case.redis.get("taken:1:1")
    assert shown is not None
    case.world.do("DELETE FROM rel.ticket")
    wait_for("parked", lambda: "redis:taken" in case.run.command("dead-letters", "list").stdout)
    assert case.redis.get("taken:1:1") == shown
    looked = case.finds("forget", "rel.ticket", "1")
    assert "LEFT  redis:taken, rows that had it among theirs: 1 key is parked" in looked
    assert "Erased" not in looked and "viewtail dead-letters list redis:taken" in looked
    case.succeeds("dead-letters", "drop", "redis:taken", "--yes")
    assert case.redis.get("taken:1:1") == shown
    looked = case.finds("forget", "rel.ticket", "1")
    assert "LEFT  redis:taken, rows that had it among theirs: dead letters were dropped at 2" in looked
    assert "Erased" not in looked and "viewtail verify redis:taken --repair, then this command again" in looked
    case.world.do("DELETE FROM rel.seat WHERE hall = 1 AND row_no = 1")
    wait_for("the delete came", lambda: case.redis.get("taken:1:1") is None)
    assert "LEFT  redis:taken" in case.finds("forget", "rel.ticket", "1")
    case.succeeds("verify", "redis:taken")
    ok = "ok    redis:taken, rows that had it among theirs: written again without it by the stream; not compared"
    told = case.succeeds("forget", "rel.ticket", "1")
    assert ok in told and "redis:taken is proven through a moment after this proof's (now: 2" in told
    assert "redis:seat is proven through a moment after this proof's (now: never): viewtail verify redis:seat" in told
    parked_again(case)
    case.succeeds("dead-letters", "drop", "redis:taken", "--yes")
    assert "dead letters were dropped" in case.finds("forget", "rel.ticket", "1")
    case.succeeds("replay", "redis:taken", "--yes", "--wait")
    assert "redis:taken, rows that had it among theirs: 1 key is parked" in case.finds("forget", "rel.ticket", "1")
    restart(case, VIEWS)
    proof = json.loads(case.succeeds("forget", "rel.ticket", "1", "--json"))
    assert any("redis:taken left" in rest["what"] for rest in proof["rests"])
    assert views.read_text() == VIEWS


def parked_again(case: Case) -> None:
    """The same key of the view `taken`, by a row that never had what its function takes for granted."""
    case.world.do("INSERT INTO rel.seat (hall, row_no, name) VALUES (1, 1, 'again')")
    wait_for("parked", lambda: "redis:taken" in case.run.command("dead-letters", "list").stdout)


def restart(case: Case, views: str) -> None:
    assert case.run.stop() == 0
    (case.run.folder / "views.py").write_text(views)
    case.run.start()
    wait_for("the views are filled", case.run.is_filled)


def test_an_erased_row_is_in_no_document_of_others_and_a_view_that_cannot_say_so_is_named(case: Case) -> None:
    case.settle()
    assert "DELETE FROM `rel`.`person` WHERE `id` = 1" in case.run.command("forget", "rel.person", "1").stderr
    refused = case.run.command("forget", "rel.currency", "1").stderr
    assert "Rows of redis:price have rows of it among theirs, and are written again when one is deleted" in refused
    case.succeeds("pause", "redis:seat")
    case.world.do("DELETE FROM rel.ticket WHERE id = 1")
    looked = case.finds("forget", "rel.ticket", "1")
    assert "LEFT  redis:seat, rows that had it among theirs: no proof while the view is paused" in looked
    assert "viewtail resume redis:seat; when the view is filled, this command again" in looked
    case.succeeds("resume", "redis:seat")
    wait_for("the views are filled", case.run.is_filled)
    assert "ok    redis:seat, rows that had it among theirs: written" in case.succeeds("forget", "rel.ticket", "1")
    case.world.do("UPDATE rel.person SET name = 'a name that nobody else has' WHERE id = 1")
    case.settle()
    case.world.do("DELETE FROM rel.person WHERE id = 1")
    proof = json.loads(case.succeeds("forget", "rel.person", "1", "--json"))
    assert proof["is_erased"]
    of_others = {place["view"] for place in proof["looked"] if "among theirs" in place["place"]}
    assert of_others == {"redis:person", "redis:paid", "mysql:person_paid"}
    values = [case.redis.get(key) or "" for key in case.redis.scan_iter("person:*")]
    assert values and not any("a name that nobody else has" in value for value in values)
    case.settle()
    case.world.do("DELETE FROM rel.person WHERE id = 2")
    case.run.stop()
    late = case.run.command("forget", "rel.person", "2", "--timeout", "0.5").stderr
    (waiting, *troubles) = late.splitlines()
    assert all(view in waiting for view in of_others), late
    assert troubles[:2] == [
        f"viewtail: waiting: no viewtail runs pipeline {store}. Start one: viewtail run" for store in ("mysql", "redis")
    ], late


def test_why_names_the_row_by_whose_change_a_document_was_written_last(case: Case) -> None:
    case.settle()

    def row() -> str:
        found = json.loads(case.succeeds("why", "redis:person", "1", "--json"))
        return str(found["last_change"]["of"])

    case.world.do("FLUSH BINARY LOGS")  # in the one before, tables of the same names were dropped
    case.world.do("UPDATE rel.country SET name = 'after' WHERE id = 1")
    case.settle()
    assert row() == "rel.country 1"
    case.world.do("UPDATE rel.payment SET amount = amount + 1")  # many rows, of other persons too
    case.settle()
    of_person = ask(case.world.server, "SELECT id FROM rel.payment WHERE person_id = 1")
    assert row() in {f"rel.payment {number}" for (number,) in of_person}
    case.world.do("UPDATE rel.person SET name = 'other' WHERE id = 1")
    case.settle()
    assert row() == "rel.person 1"


def test_what_is_done_to_a_table_of_others_changes_their_views_and_no_more(case: Case) -> None:
    case.settle()
    case.world.do("ALTER TABLE rel.country ADD COLUMN more INT, MODIFY name VARCHAR(60)")
    case.world.do("ALTER TABLE rel.person_tag ADD COLUMN more INT FIRST")
    case.world.do("UPDATE rel.country SET name = 'a country with a much longer name than it could have' WHERE id = 1")
    case.world.do("TRUNCATE TABLE rel.payment")
    case.world.do("TRUNCATE TABLE rel.person_tag")
    case.world.do("TRUNCATE TABLE rel.currency")
    wait_for("every view holds what the joins say", case.world.is_equal)
    case.world.do("INSERT INTO rel.payment VALUES (1, 1, 5, 5, NULL, 'cash')")
    case.world.do("INSERT INTO rel.currency VALUES (1, 'EUR', 'Euro')")
    case.settle()
    case.world.do("RENAME TABLE rel.seat TO rel.seat_gone")
    case.world.do("UPDATE rel.tag SET name = 'others go on' WHERE id = 1")
    case.world.do("UPDATE rel.address SET city = 'too' WHERE id = 1")

    def states() -> dict[str, str]:
        pipelines = json.loads(case.run.command("status", "--json").stdout)["pipelines"]
        return {view["name"]: view["state"] for pipeline in pipelines for view in pipeline["views"]}

    wait_for("the views of a table that is gone are halted", lambda: states()["redis:ticket"] == "halted")
    assert {view for view, state in states().items() if state != "filled"} == {"redis:ticket", "redis:seat"}
    person = case.world.people()
    wait_for("the others go on", lambda: case.world.actual()["person"] == person)
    case.world.do("RENAME TABLE rel.seat_gone TO rel.seat")
    for view in ("redis:seat", "redis:ticket"):
        case.succeeds("replay", view)
    wait_for("all views are back", case.run.is_filled)
    case.settle()


def test_what_has_too_many_or_too_large_related_rows_is_parked_with_the_reason(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    world = RelatedWorld(mysql_server, redis_server)
    world.make()
    views = """
from viewtail import Entity, Many, RedisJson

few = Entity("rel.person", related={"payments": Many("rel.payment", by="person_id", limit=3)})
small = Entity("rel.person", related={"notes": Many("rel_too.note", by="person_id")}, max_bytes=300)
views = [
    RedisJson("few", few, document=lambda row: {"payments": row["payments"]}),
    RedisJson("small", small, document=lambda row: {"notes": row["notes"]}),
]
"""
    with running(tmp_path, views, addresses(mysql_server, redis_server)) as run:
        wait_for("the views are filled", run.is_filled)
        world.do("INSERT INTO rel.payment (id, person_id) VALUES (50, 1), (51, 1)")
        world.do(f"INSERT INTO rel_too.note VALUES (50, 2, '{'x' * 400}')")

        def letters() -> dict[str, str]:
            listed = json.loads(run.command("dead-letters", "list", "--json").stdout)
            rows = listed["letters"]
            return {f"{row['view']} {row['key']}": row["cause"] for row in rows}

        wait_for("both are parked", lambda: len(letters()) == 2)
        reasons = letters()
        assert "limit=3" in reasons["redis:few 1"], reasons
        assert "max_bytes=300" in reasons["redis:small 2"], reasons
        world.do("DELETE FROM rel.payment WHERE id >= 50")
        world.do("DELETE FROM rel_too.note WHERE id >= 50")
        wait_for("a later change clears them", lambda: letters() == {})


def test_a_search_finds_by_what_belongs_to_a_row(
    mysql_server: Server, elasticsearch_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    world = RelatedWorld(mysql_server, redis_server)
    world.make()
    views = """
from viewtail import Entity, Many, One, SearchIndex

person = Entity("rel.person", related={
    "billing": One("rel.address", on="billing_id"),
    "tags": Many("rel.tag", through="rel.person_tag", by="person_id", to="tag_id"),
})
views = [SearchIndex("people", person, fields={"city": "text", "tags": "text"}, document=lambda row: {
    "city": row["billing"] and row["billing"]["city"], "tags": [tag["name"] for tag in row["tags"]]})]
"""
    with running(tmp_path, views, addresses(mysql_server, elasticsearch=elasticsearch_server)) as run:
        wait_for("the view is filled", run.is_filled)

        def found(words: str) -> list[str]:
            done = run.command("search", "people", words, "--json")
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            return sorted(hit["key"] for hit in answer["hits"])

        wait_for("a city is found", lambda: found("Arica") == ["1"])
        world.do("UPDATE rel.address SET city = 'Talca' WHERE id = 1")
        wait_for("by its new name", lambda: found("Talca") == ["1"] and found("Arica") == [])
        world.do("INSERT INTO rel.person_tag (person_id, tag_id) VALUES (4, 2)")
        wait_for("by a tag", lambda: found("vip") == ["1", "2", "4"])


def test_what_cannot_work_is_refused_with_what_to_do(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    collations = "code VARCHAR(10) CHARACTER SET utf8mb4 COLLATE"
    for statement in (
        "DROP DATABASE IF EXISTS bad",
        "DROP DATABASE IF EXISTS viewtail",
        "CREATE DATABASE bad",
        f"CREATE TABLE bad.root (id INT PRIMARY KEY, {collations} utf8mb4_bin)",
        f"CREATE TABLE bad.other (id INT PRIMARY KEY, name VARCHAR(10), {collations} utf8mb4_general_ci NOT NULL)",
        "CREATE UNIQUE INDEX code ON bad.other (code)",
        "CREATE TABLE bad.keyless (id INT)",
    ):
        ask(mysql_server, statement)
    imports = "from viewtail import Count, Entity, Many, One, RedisJson, Sum\n"
    declared = [f'RedisJson("v{at}", {entity}, document=lambda row: dict(row))' for at, entity in enumerate(REFUSED)]
    run = Run(tmp_path, f"{imports}views = [\n    {(',' + chr(10) + '    ').join(declared)},\n]\n", {})
    run._environment |= addresses(mysql_server, redis_server)
    done = run.command("check")
    told = done.stdout + done.stderr
    assert done.returncode != 0
    for at, parts in enumerate(REFUSED.values()):
        lines = [line for line in told.splitlines() if f"v{at}:" in line]
        for part in parts:
            assert any(part in line for line in lines), f"{part!r} is not in {lines}"
