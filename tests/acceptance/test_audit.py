"""`viewtail audit` on what another tool keeps: damage is found, what is under way is not, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.support.other_tools import ALIAS, INDEX, SCHEMA, STORE, VIEWS, OtherTool, run_of
from tests.support.running import Run

NAMES = ("by_email", "redis:person", "card", "elasticsearch:person")


@pytest.fixture(scope="module")
def tool(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Iterator[OtherTool]:
    made = OtherTool(mysql_server, redis_server, elasticsearch_server)
    made.make()
    yield made
    made.ask(f"DROP DATABASE {SCHEMA}")
    made.ask(f"DROP DATABASE {STORE}")
    made.documents.indices.delete(index=INDEX)


@pytest.fixture(scope="module")
def run(
    tool: OtherTool, redis_server: Server, elasticsearch_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    return run_of(tmp_path_factory.mktemp("audit"), tool, redis_server, elasticsearch_server)


def everything(tool: OtherTool) -> list[Any]:
    """What the stores hold, and which tables there are."""
    keys = sorted(tool.redis.scan_iter())
    values = [tool.redis.hgetall(key) if key.startswith(b"person") else tool.redis.get(key) for key in keys]
    tables = tool.ask("SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema <> 'mysql'")
    indices = tool.documents.indices.get(index="*", expand_wildcards="all").body
    counted = tool.documents.indices.stats(index=ALIAS).body["_all"]["primaries"]["indexing"]["index_total"]
    return [keys, values, sorted(tables), indices, counted, tool.ask(f"CHECKSUM TABLE {STORE}.by_email")]


def audited(run: Run, *names: str, code: int) -> dict[str, dict[str, Any]]:
    done = run.command("audit", *names, "--json", "--again-after", "2s")
    assert done.returncode == code, done.stdout + done.stderr
    return {view["view"]: view for view in json.loads(done.stdout)["views"]}


def test_equal_views_are_equal_under_live_writes(run: Run, tool: OtherTool) -> None:
    with tool.following():
        views = audited(run, *NAMES, code=0)
    assert len(views) == 4
    for view in views.values():
        assert view["is_equal"], view
        assert view["rows"] == 3000


def test_damage_is_told_by_kind_key_and_field_and_nothing_is_written(run: Run, tool: OtherTool) -> None:
    tool.damage()
    before = everything(tool)
    views = audited(run, *NAMES, code=1)
    assert everything(tool) == before
    for name, view in views.items():
        assert view["differing"] == {"missing": 3, "extra": 2, "stale": 0, "wrong": 3}, (name, view)
        found = {(entity["key"], entity["difference"]): entity["fields"] for entity in view["entities"]}
        assert {key for key, kind in found if kind == "missing"} == {"11", "12", "13"}
        assert {key for key, kind in found if kind == "extra"} == {"9001", "9002"}
        fields = ["name"] if name == "redis:card" else ["email"]
        assert [found[str(key), "wrong"] for key in (21, 22)] == [fields, fields]
    done = run.command("audit", *NAMES, "--again-after", "1s")
    assert done.returncode == 1
    assert "DIFFERENT: 2 extra, 3 missing, 3 wrong" in done.stdout
    assert "wrong     21  email" in done.stdout
    assert "the declaration has not: _meta" in done.stdout
    assert "the declaration has not: synced_at" in done.stdout
    assert "example.org" not in done.stdout + done.stderr


def test_a_row_of_another_form_is_wrong_as_a_whole(run: Run, tool: OtherTool) -> None:
    tool.copy("TRUE")
    for number in (9001, 9002):
        tool.remove(number)
    tool.redis.delete("person:31", "card:31")
    tool.redis.set("person:31", "text")
    tool.redis.set("card:31", "[1, 2]")
    tool.redis.set("card:abc", "not a key")
    views = audited(run, *NAMES, code=1)
    for name in ("redis:person", "redis:card"):
        assert views[name]["entities"] == [{"key": "31", "difference": "wrong", "fields": []}]
    assert views["elasticsearch:person"]["is_equal"]
    assert views["mysql:by_email"]["is_equal"]
    tool.redis.delete("person:31", "card:abc")
    tool.copy("id = 31")


def test_bad_input_is_refused(
    tmp_path: Path, tool: OtherTool, redis_server: Server, elasticsearch_server: Server
) -> None:
    more = """
views += [
    RedisSet("of_visits", user, key="visits:{visits}"),
    SearchIndex("nobody", user, fields={"name": "text"}),
    IndexTable("by_nothing", user, value="name"),
]
"""
    run = run_of(tmp_path, tool, redis_server, elasticsearch_server, VIEWS + more)
    for name, said in {"of_visits": "is not compared", "absent": "absent"}.items():
        done = run.command("audit", name)
        assert done.returncode == 2, done.stdout + done.stderr
        assert said in done.stderr
    for name, said in {"nobody": "neither an index nor an alias nobody", "by_nothing": "there is no table"}.items():
        done = run.command("audit", name)
        assert done.returncode == 1, done.stdout + done.stderr
        assert said in done.stderr
    assert run.command("audit").returncode == 2
    assert run.command("audit", "card", "--again-after", "soon").returncode == 2


def test_rights_to_read_are_enough(
    tmp_path: Path, tool: OtherTool, redis_server: Server, elasticsearch_server: Server
) -> None:
    tool.ask("CREATE USER auditor IDENTIFIED BY 'only-reads'")
    for database in (SCHEMA, STORE):
        tool.ask(f"GRANT SELECT ON {database}.* TO auditor")
    tool.redis.acl_setuser(
        "auditor", enabled=True, passwords=["+only-reads"], categories=["+@read", "+@connection"], keys=["*"]
    )
    run = run_of(tmp_path, tool, redis_server, elasticsearch_server)
    own = f"mysql://auditor:only-reads@{tool.mysql.host}:{tool.mysql.port}"
    environment = {
        **run.environment(),
        "VIEWTAIL_SOURCE__URL": own,
        "VIEWTAIL_MYSQL__URL": f"{own}/{STORE}",
        "VIEWTAIL_REDIS__URL": f"redis://auditor:only-reads@{redis_server.host}:{redis_server.port}/0",
    }
    reader = Run(tmp_path, VIEWS, environment)
    try:
        views = audited(reader, *NAMES, code=0)
        assert all(view["is_equal"] and view["rows"] == 3000 for view in views.values())
        assert reader.command("adopt", "redis:person").returncode == 1  # it may not write
    finally:
        tool.ask("DROP USER auditor")
        tool.redis.acl_deluser("auditor")
