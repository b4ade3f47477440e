"""`viewtail adopt` of an index that cannot be the view's: a copy is built beside it, and takes its place at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import Server
from tests.support.other_tools import ALIAS, INDEX, SCHEMA, STORE, OtherTool, reading, run_of
from tests.support.running import Run, wait_for

ROWS = 600
VIEW = f"elasticsearch:{ALIAS}"
VIEWS = f"""
from viewtail import Entity, SearchIndex

user = Entity("{SCHEMA}.user")
views = [SearchIndex("{ALIAS}", user, fields={{"name": "text", "email": "keyword", "visits": "integer"}})]
"""


@pytest.fixture
def tool(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Iterator[OtherTool]:
    made = OtherTool(mysql_server, redis_server, elasticsearch_server)
    made.end()
    made.make(ROWS)
    made.damage()
    yield made
    made.end()


@pytest.fixture
def run(tool: OtherTool, redis_server: Server, elasticsearch_server: Server, tmp_path: Path) -> Iterator[Run]:
    made = run_of(tmp_path, tool, redis_server, elasticsearch_server, VIEWS)
    yield made
    made.kill()


def is_kept(run: Run, tool: OtherTool) -> None:
    """A run goes on from there, and a rebuild of the view is one like all others."""
    run.start()
    wait_for("all is well", run.is_filled)
    tool.insert([30_000])
    wait_for("a new row is there", lambda: tool.readers()["index"](30_000))
    done = run.command("verify", VIEW)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alias_leads_to_the_copy_once_that_is_whole(run: Run, tool: OtherTool) -> None:
    before = tool.documents.count(index=ALIAS)["count"]
    done = run.command("adopt", VIEW, "--dry-run", "--again-after", "1s")
    assert f"build a new index from the table, beside {INDEX}" in done.stdout, done.stdout + done.stderr
    assert "field name is keyword there, and text as declared" in done.stdout
    assert tool.indices() == [INDEX]
    with reading({"index": tool.readers()["index"]}, range(100, ROWS)) as missed:
        done = run.command("adopt", VIEW)
        assert done.returncode == 0, done.stdout + done.stderr
        is_kept(run, tool)
    assert not missed
    assert tool.documents.search(index=ALIAS, query={"match": {"name": "21"}})["hits"]["hits"][0]["_id"] == "21"
    assert list(tool.documents.indices.get_alias(name=ALIAS)) == [f"viewtail.2-{ALIAS}"]
    left = tool.documents.indices.get(index=INDEX).body[INDEX]
    assert left["aliases"] == {} and "blocks" not in left["settings"]["index"], "it stays as it was"
    assert tool.documents.count(index=INDEX)["count"] == before
    assert run.stop() == 0
    done = run.command("adopt", VIEW)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was taken over and filled before" in done.stderr


def test_an_index_of_the_views_name_goes_where_that_is_asked_for(run: Run, tool: OtherTool) -> None:
    """As pgsync makes it, where `viewtail run` met it before; a worker is killed as readers were led away."""
    tool.documents.indices.delete(index=INDEX)
    tool.documents.indices.create(index=ALIAS, mappings={"properties": {"name": {"type": "keyword"}}})
    tool.copy_documents(tool.rows("TRUE"))
    done = run.command("adopt", VIEW)
    assert done.returncode == 1
    assert "viewtail adopt elasticsearch:person --drop-extra" in done.stderr
    run.start()
    halted = f"SELECT 1 FROM {STORE}.view WHERE state = 'halted' AND name = '{VIEW}'"
    wait_for("the view is halted", lambda: tool.ask(halted))
    assert run.stop() == 0
    with reading({"index": tool.readers()["index"]}, range(100, ROWS)) as missed:
        command = run.background("adopt", VIEW, "--drop-extra", VIEWTAIL_FAILPOINT="after swapping:1")
        wait_for("readers were led away", lambda: tool.documents.indices.exists_alias(name=ALIAS))
        command.kill()
        command.wait()
        wait_for("the same command finishes", lambda: is_finished(run))
        is_kept(run, tool)
    assert not missed
    assert list(tool.documents.indices.get_alias(name=ALIAS)) == [f"viewtail.2-{ALIAS}"]


def is_finished(run: Run) -> bool:
    done = run.command("adopt", VIEW, "--drop-extra")
    assert done.returncode == 0 or "is run by a viewtail" in done.stderr, done.stdout + done.stderr
    return done.returncode == 0


def test_a_view_that_run_met_before_and_that_was_declared_otherwise_since(run: Run, tool: OtherTool) -> None:
    """With run.on_change "beside" the run began a copy; nobody but an adopt gives the index up for one."""
    beside = {"VIEWTAIL_RUN__ON_CHANGE": "beside"}
    run.start(**beside)
    wait_for("the view is halted", lambda: tool.ask(f"SELECT 1 FROM {STORE}.view WHERE state = 'halted'"))
    assert run.stop() == 0
    (run.folder / "views.py").write_text(VIEWS.replace("keyword", "text"))
    run.start(**beside)
    wait_for("a copy is filled", lambda: tool.ask(f"SELECT 1 FROM {STORE}.view WHERE state = 'filled'"))
    assert run.stop() == 0
    assert list(tool.documents.indices.get_alias(name=ALIAS)) == [INDEX]
    command = run.background("adopt", VIEW, **beside)
    assert command.wait() == 0, command.communicate()
    assert list(tool.documents.indices.get_alias(name=ALIAS)) == [f"viewtail.2-{ALIAS}"]
