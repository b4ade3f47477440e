"""Each operators' command on what another version of viewtail left behind: amid a backfill, a halt, a rebuild.

tests/recorded/ holds the deployments (record.py beside them tells how). Each is put into servers of this machine, its
tables change as if viewtail were down, the commands are tried, and then `viewtail run` takes it over.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.recorded_views import HALTED, HALVES, OF_USERS, readers_find, wanted
from tests.support.recording import clear, restore
from tests.support.running import Run, addresses, wait_for
from tests.support.world import World

RECORDED = Path(__file__).parents[1] / "recorded"
WHILE_DOWN = (
    "INSERT INTO shop.user VALUES (101, 'new', 2, NULL)",
    "UPDATE shop.user SET email = 'later' WHERE id = 3",
    "DELETE FROM shop.user WHERE id = 4",
    *(f"UPDATE shop.{table} SET v = 'later' WHERE id IN (3, 90)" for table in HALVES.values()),
    *(f"DELETE FROM shop.{table} WHERE id IN (1, 91)" for table in HALVES.values()),
)

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.elasticsearch, pytest.mark.slow]
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One that an earlier version left, and the present one runs."""

    name: str
    world: World
    run: Run
    views: frozenset[str]  # that must equal their tables
    paused: str  # view that was paused before the present version ran
    states: Mapping[str, str]  # as recorded
    before: Mapping[str, Done]  # by command, what was answered before the present version ran

    def command(self, *arguments: str, code: int = 0) -> str:
        done = self.run.command(*arguments, timeout_s=60)
        said = done.stdout + done.stderr
        assert "Traceback" not in said and "a fault in viewtail" not in said, said
        assert done.returncode == code, said
        return done.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.command(*arguments, "--json", code=code))

    def status(self) -> dict[str, dict[str, Any]]:
        """By view."""
        done = self.run.command("status", "--json")
        return {view["name"]: view for one in json.loads(done.stdout)["pipelines"] for view in one["views"]}

    def wait_until_filled(self, *views: str) -> None:
        def states() -> bool:
            now = self.status()
            assert all(now[view]["state"] == "filled" for view in views), now
            return True

        wait_for(f"{', '.join(views)} filled", states, timeout_s=60)

    def wait_until_shown(self, *views: str) -> None:
        """What has been committed so far."""

        def differing() -> list[str]:
            must, found = wanted(self.world), readers_find(self.world, views)
            return [view for view in views if found[view] != must[view]]

        wait_for(f"{', '.join(views)} equal their tables", lambda: not differing())


@pytest.fixture(scope="module", params=["v0.11.0", "v0.12.0", "rebuilds"])
def upgraded(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
) -> Iterator[Deployment]:
    """Taken over, with every backfill that was amid its work finished, and one view paused before."""
    recording = RECORDED / request.param
    world = World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server)
    restore(world, recording)
    states = dict(ask(world.mysql, "SELECT name, state FROM viewtail.view"))
    views = OF_USERS | (HALVES.keys() & states.keys())
    paused = "mysql:ix_half" if "mysql:ix_half" in states else "mysql:ix_even"
    for statement in WHILE_DOWN:
        ask(world.mysql, statement)
    run = Run(
        tmp_path_factory.mktemp("upgrades"),
        declarations(recording, views),
        addresses(mysql_server, redis_server, elasticsearch_server),
    )
    before = {
        name: run.command(*arguments)
        for name, arguments in {
            "status": ("status", "--json"),
            "letters": ("dead-letters", "list", "--json"),
            "why": ("why", "redis:user", "7", "--json"),
            "verify": ("verify", "mysql:ix_email", "redis:document", "elasticsearch:user", "--json"),
            "replays": ("replays", "--json"),
            "pause": ("pause", paused, "--reason", "upgrade"),
        }.items()
    }
    run.start()
    found = Deployment(
        name=request.param, world=world, run=run, views=views, paused=paused, states=states, before=before
    )
    try:
        found.wait_until_filled(*(views - {paused}))
        yield found
    finally:
        print(run.log[-8000:])
        run.kill()
        clear(world)


def declarations(recording: Path, views: frozenset[str]) -> str:
    """Those of the recorded deployment: all that it kept."""
    kept = sorted(views | HALTED)
    return f"{(recording / 'views.py').read_text()}\nviews = [view for view in views if str(view.id) in {kept}]\n"


# --- Before the present version ran ---


def test_commands_answer_before_the_first_run_after_an_upgrade(upgraded: Deployment) -> None:
    said = {name: f"{done.stdout}{done.stderr}" for name, done in upgraded.before.items()}
    assert not [text for text in said.values() if "Traceback" in text or "a fault in viewtail" in text], said
    codes = {name: done.returncode for name, done in upgraded.before.items()}
    assert codes == {"status": 1, "letters": 0, "why": 1, "verify": 0, "replays": 0, "pause": 0}, said


def test_state_of_an_earlier_version_is_told_before_the_first_run(upgraded: Deployment) -> None:
    told = {name: json.loads(done.stdout) for name, done in upgraded.before.items() if name != "pause"}
    views = {view["name"]: view["state"] for one in told["status"]["pipelines"] for view in one["views"]}
    assert views == {name: state for name, state in upgraded.states.items() if "~" not in name}
    assert [(one["view"], one["key"]) for one in told["letters"]["letters"]] == [("redis:user", "7")]
    assert told["why"]["verdict"] == "parked"
    assert all(one["is_equal"] for one in told["verify"]["views"])


def test_a_view_that_was_paused_before_the_first_run_stays_paused(upgraded: Deployment) -> None:
    view = upgraded.status()[upgraded.paused]
    assert view["state"] == "paused"
    upgraded.command("resume", upgraded.paused)
    upgraded.wait_until_filled(upgraded.paused)
    upgraded.wait_until_shown(upgraded.paused)


# --- What it took over ---
