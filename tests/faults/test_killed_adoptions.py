"""kill -9 at each step of `viewtail adopt`: readers miss nothing, what is half done is said, the same one finishes."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from projectors.failpoints import ADOPT_STEPS
from tests.support.other_tools import ALIAS, INDEX, SCHEMA, STORE, VIEWS, OtherTool, reading, run_of
from tests.support.running import Run, wait_for

ROWS = 300
TABLE, KEYS, SEARCH = ("by_email",), ("redis:person", "card"), (f"elasticsearch:{ALIAS}",)
BESIDE = f"""
from viewtail import Entity, SearchIndex

user = Entity("{SCHEMA}.user")
views = [SearchIndex("{ALIAS}", user, fields={{"name": "text", "email": "keyword", "visits": "long"}})]
"""
WITHOUT_SEARCH = "\n".join(line for line in VIEWS.splitlines() if "SearchIndex(" not in line)
KILLED = [  # the step, which time it is reached, and the views that the command takes over
    ("before taking", 1, TABLE),
    ("after taking", 1, TABLE),
    ("after claim", 1, KEYS),
    ("in marking", 2, KEYS),
    ("after taking", 2, KEYS),
    ("after block", 1, SEARCH),
    ("after clone", 1, SEARCH),
    ("before leading readers", 1, SEARCH),
    ("after taking", 1, SEARCH),
    ("after filling", 1, (*TABLE, *KEYS, *SEARCH)),
]
BLOCKED = {"after block", "after clone", "before leading readers"}


@contextmanager
def kept_by_another(
    request: pytest.FixtureRequest, folder: Path, names: Sequence[str]
) -> Iterator[tuple[Run, OtherTool]]:
    """With an index only where a name is of one: all takes longer with it."""
    mysql, redis_server = (request.getfixturevalue(f"{name}_server") for name in ("mysql", "redis"))
    search = request.getfixturevalue("elasticsearch_server") if {*SEARCH} & {*names} else None
    tool = OtherTool(mysql, redis_server, search)
    tool.end()
    tool.make(ROWS)
    tool.damage()
    tool.ask(f"ALTER TABLE {STORE}.by_email DROP COLUMN synced_at")
    yield run_of(folder, tool, redis_server, search, VIEWS if search else WITHOUT_SEARCH), tool
    tool.end()


def killed(run: Run, names: Sequence[str], step: str) -> None:
    command = run.background("adopt", *names, VIEWTAIL_FAILPOINT=step)
    assert command.wait() == -signal.SIGKILL, step


def adopted(run: Run, names: Sequence[str], *options: str) -> bool:
    """Give the command, which waits for nobody, as soon as the workers of a killed one have ended."""
    done = run.command("adopt", *names, *options)
    assert done.returncode == 0 or "is run by a viewtail" in done.stderr, done.stdout + done.stderr
    return done.returncode == 0


def test_a_command_is_killed_at_every_step() -> None:
    assert {step for step, *_ in KILLED} == {*ADOPT_STEPS}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("step", "at", "names"), KILLED, ids=[f"{step}-{names[0]}" for step, _, names in KILLED])
def test_an_adopt_that_was_killed_anywhere_is_finished_by_the_same_command(
    step: str, at: int, names: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with kept_by_another(request, tmp_path, names) as (run, tool):
        with reading(tool.readers(), range(100, ROWS - 10)) as missed:
            killed(run, names, f"{step}:{at}")
            if step in BLOCKED:
                the_block_is_said(run, tool)
            wait_for("the same command finishes", lambda: adopted(run, names, "--drop-extra"))
        assert not missed
        done = run.command("verify", *names)
        assert done.returncode == 0, done.stdout + done.stderr
        if {*SEARCH} & {*names}:
            assert blocked(tool) == []
            assert tool.indices() == [INDEX, f"viewtail-{ALIAS}"]


def blocked(tool: OtherTool) -> list[str]:
    """The indices that an adopt which did not end has refuse writes."""
    return sorted(tool.documents.indices.get_alias(name="viewtail.blocked-*"))


def the_block_is_said(run: Run, tool: OtherTool) -> None:
    assert blocked(tool) == [INDEX]
    said = f"the index {INDEX} refuses writes since a viewtail adopt, which is at work, or was cut off"
    done = run.command("audit", *SEARCH, "--again-after", "1s")
    assert said in done.stdout, done.stdout + done.stderr
    done = run.command("adopt", *SEARCH, "--dry-run", "--again-after", "1s")
    assert "which an adopt that was cut off had begun" in done.stdout
    done = run.command("check")
    assert f"{INDEX} is write-blocked" in done.stdout, done.stdout + done.stderr
    tool.documents.indices.put_alias(index=INDEX, name="other")
    done = run.command("adopt", *SEARCH)
    assert "has other aliases too: other" in done.stderr and said in done.stderr, "refused, and it says it"
    tool.documents.indices.delete_alias(index=INDEX, name="other")


def test_a_declaration_that_changed_meanwhile_takes_the_block_off(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with kept_by_another(request, tmp_path, SEARCH) as (run, tool):
        killed(run, SEARCH, "after clone:1")
        (run.folder / "views.py").write_text(BESIDE)
        wait_for("a copy is built", lambda: adopted(run, SEARCH))
        assert blocked(tool) == []
        assert "blocks" not in tool.documents.indices.get_settings(index=INDEX).body[INDEX]["settings"]["index"]
        assert tool.indices() == [INDEX, f"viewtail.2-{ALIAS}"]


def test_keys_that_are_half_taken_are_refused_to_run(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    names = ("redis:person",)
    with kept_by_another(request, tmp_path, names) as (run, tool):
        killed(run, names, "after claim:1")
        run.start()
        try:
            halted = f"SELECT reason FROM {STORE}.view WHERE state = 'halted' AND name = 'redis:person'"
            ((reason,),) = wait_for("the view is halted", lambda: tool.ask(halted))
            assert "half taken over" in reason and "viewtail adopt redis:person" in reason
        finally:
            run.kill()
        wait_for("the same command finishes", lambda: adopted(run, names))


def test_a_swap_that_was_asked_for_is_done_and_the_same_command_ends(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Its pipelines swap as they begin, so the view is filled before the command looks at it."""
    with kept_by_another(request, tmp_path, SEARCH) as (run, tool):
        (run.folder / "views.py").write_text(BESIDE)
        command = run.background("adopt", *SEARCH, VIEWTAIL_FAILPOINT="before swapping:1")
        wait_for("the swap is asked for", lambda: tool.ask(f"SELECT 1 FROM {STORE}.rebuild WHERE stage = 'swapping'"))
        command.kill()
        command.wait()
        wait_for("the same command finishes", lambda: adopted(run, SEARCH))
        assert tool.indices() == [INDEX, f"viewtail.2-{ALIAS}"]


def test_a_note_that_a_killed_adopt_left_gives_no_index_up_to_a_rebuild(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with kept_by_another(request, tmp_path, SEARCH) as (run, tool):
        (run.folder / "views.py").write_text(BESIDE)
        killed(run, SEARCH, "after taking:1")
        run.start()
        try:
            halted = f"SELECT 1 FROM {STORE}.view WHERE state = 'halted'"
            wait_for("the view is halted", lambda: tool.ask(halted))
            noted = f"SELECT note FROM {STORE}.rebuild WHERE note IS NOT NULL"
            command = run.background("rebuild", *SEARCH)
            ((note,),) = wait_for("the swap is refused", lambda: tool.ask(noted))
            assert "viewtail did not make" in note and "viewtail adopt" in note
            command.terminate()
            command.wait()
            done = run.command("rebuild", *SEARCH, "--abort", "--yes")
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            run.kill()
        left = tool.documents.indices.get_alias(index=INDEX).body[INDEX]["aliases"]
        assert list(left) == [ALIAS], "readers have it, and the note is gone"
