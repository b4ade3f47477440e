"""Each operators' command on what another version of viewtail left behind: amid a backfill, a halt, a rebuild.

tests/recorded/ holds the deployments (record.py beside them tells how). Each is put into servers of this machine, its
tables change as if viewtail were down, the commands are tried, and then `viewtail run` takes it over.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from stack import Server
from stack.server import free_port
from tests.support.asking import ask
from tests.support.recorded_views import HALTED, HALVES, OF_USERS, readers_find, wanted
from tests.support.recording import clear, restore
from tests.support.running import CLEANING, Run, addresses, wait_for
from tests.support.world import World

RECORDED = Path(__file__).parents[1] / "recorded"
WHILE_DOWN = (
    "INSERT INTO shop.user VALUES (101, 'new', 2, NULL)",
    "UPDATE shop.user SET email = 'later' WHERE id = 3",
    "DELETE FROM shop.user WHERE id = 4",
    *(f"UPDATE shop.{table} SET v = 'later' WHERE id IN (3, 90)" for table in HALVES.values()),
    *(f"DELETE FROM shop.{table} WHERE id IN (1, 91)" for table in HALVES.values()),
)

RUNNING_REBUILDS = "SELECT view_name FROM viewtail.rebuild WHERE stage <> 'ended'"

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.elasticsearch, pytest.mark.slow]
pytestmark += [pytest.mark.one_in(3, of="file")]  # the deployment goes through all of them
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
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

    def pipelines(self) -> dict[str, dict[str, Any]]:
        """By name, what status says."""
        return {one["name"]: one for one in json.loads(self.run.command("status", "--json").stdout)["pipelines"]}

    def status(self) -> dict[str, dict[str, Any]]:
        """By view."""
        return {view["name"]: view for one in self.pipelines().values() for view in one["views"]}

    def halted_now(self) -> list[str]:
        return sorted(name for name, view in self.status().items() if view["state"] == "halted")

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
) -> Iterator[Catalog]:
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
    found = Catalog(name=request.param, world=world, run=run, views=views, paused=paused, states=states, before=before)
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


def test_commands_answer_before_the_first_run_after_an_upgrade(upgraded: Catalog) -> None:
    said = {name: f"{done.stdout}{done.stderr}" for name, done in upgraded.before.items()}
    assert not [text for text in said.values() if "Traceback" in text or "a fault in viewtail" in text], said
    codes = {name: done.returncode for name, done in upgraded.before.items()}
    assert codes == {"status": 1, "letters": 0, "why": 1, "verify": 0, "replays": 0, "pause": 0}, said


def test_state_of_an_earlier_version_is_told_before_the_first_run(upgraded: Catalog) -> None:
    told = {name: json.loads(done.stdout) for name, done in upgraded.before.items() if name != "pause"}
    views = {view["name"]: view["state"] for one in told["status"]["pipelines"] for view in one["views"]}
    assert views == upgraded.states
    assert [(one["view"], one["key"]) for one in told["letters"]["letters"]] == [("redis:user", "7")]
    assert told["why"]["verdict"] == "parked"
    assert all(one["is_equal"] for one in told["verify"]["views"])


def test_a_view_that_was_paused_before_the_first_run_stays_paused(upgraded: Catalog) -> None:
    view = upgraded.status()[upgraded.paused]
    assert view["state"] == "paused"
    upgraded.command("resume", upgraded.paused)
    upgraded.wait_until_filled(upgraded.paused)
    upgraded.wait_until_shown(upgraded.paused)


# --- What it took over ---


def test_views_of_an_earlier_version_are_equal_in_verify(upgraded: Catalog) -> None:
    """All of them are asked about; halted ones keep no other from being compared."""
    upgraded.wait_until_shown(*(upgraded.views - {"redis:user", upgraded.paused}))
    found = upgraded.json("verify", code=1)
    assert HALTED <= found["failed"].keys() <= HALTED | {upgraded.paused}, found["failed"]
    views = upgraded.views - {upgraded.paused}
    compared = {one["view"]: one for one in found["views"] if one["view"] in views}
    assert {name for name, one in compared.items() if one["is_equal"]} >= views - {"redis:user"}
    differing = [one["key"] for one in compared["redis:user"]["entities"]]
    assert set(differing) <= {"7"}, "it is parked: somebody else has its key"
    proven = upgraded.status()
    assert all(proven[view]["proven_through"] for view in views - {"redis:user"})


def test_halted_views_of_an_earlier_version_stay_halted(upgraded: Catalog) -> None:
    now = upgraded.status()
    assert {name for name, view in now.items() if view["state"] == "halted"} == HALTED
    assert all(now[name]["reason"] for name in HALTED)


def test_damage_in_views_of_an_earlier_version_is_found_and_mended(upgraded: Catalog) -> None:
    world, views = upgraded.world, ["mysql:ix_email", "redis:document", "elasticsearch:user"]
    is_half = HALVES.keys() <= upgraded.views
    ask(world.mysql, "UPDATE viewtail.ix_email SET email = 'damaged' WHERE id = 13")
    cache = redis.Redis(port=world.redis.port)
    cache.delete("document:14")
    index = next(iter(world.search("GET", "/user")))
    world.search("DELETE", f"/{index}/_doc/15?refresh=true")
    damaged = {"mysql:ix_email": ["13"], "redis:document": ["14"], "elasticsearch:user": ["15"]}
    if is_half:
        views += ["redis:half", "elasticsearch:half"]
        cache.hset("half:40", "v", "damaged")
        world.search("DELETE", "/viewtail-half/_doc/41?refresh=true")
        damaged |= {"redis:half": ["40"], "elasticsearch:half": ["41"]}
    for options, code, keys in (((), 1, damaged), (("--repair",), 0, damaged), ((), 0, {})):
        found = upgraded.json("verify", *views, *options, code=code)["views"]
        assert {one["view"]: [entity["key"] for entity in one["entities"]] for one in found if one["entities"]} == keys
    upgraded.wait_until_shown(*views)


def test_why_knows_the_entities_of_an_earlier_version(upgraded: Catalog) -> None:
    for view in sorted(upgraded.views - {upgraded.paused}):
        there = upgraded.json("why", view, "12" if view in HALVES else "6")
        assert there["verdict"] == "current" and there["shown"]["version"], there
        gone = upgraded.json("why", view, "91" if view in HALVES else "4")
        assert gone["verdict"] == "rightly absent" and not gone["row"]["is_there"], gone
    halted = upgraded.json("why", "redis:moved", "3", code=1)
    assert (halted["verdict"], halted["next"]) == ("halted", "viewtail replay redis:moved"), halted


def test_status_of_an_earlier_version_goes_on(upgraded: Catalog) -> None:
    states = {name: one["state"] for name, one in upgraded.pipelines().items()}
    assert states == dict.fromkeys(("mysql", "redis", "elasticsearch"), "running")
    assert "epoch" not in upgraded.run.log, "the history goes on"
    upgraded.command("status", code=1)  # for the halted views


def test_waiting_knows_the_entities_of_an_earlier_version(upgraded: Catalog) -> None:
    ask(upgraded.world.mysql, "UPDATE shop.user SET n = n + 2 WHERE id = 21")
    for view in ("mysql:ix_email", "redis:user", "elasticsearch:user"):
        upgraded.command("wait", view, "21")
    upgraded.wait_until_shown("mysql:ix_even", "redis:document", "elasticsearch:user")


def test_dead_letters_of_an_earlier_version_are_listed_and_redriven(upgraded: Catalog) -> None:
    (letter,) = upgraded.json("dead-letters", "list", "redis:user")["letters"]
    assert (letter["view"], letter["key"]) == ("redis:user", "7") and letter["cause"]
    assert letter["cause"] in upgraded.command("dead-letters", "show", "redis:user", "7")
    upgraded.command("dead-letters", "redrive", "redis:user", "7", "--yes", code=1)
    redis.Redis(port=upgraded.world.redis.port).delete("user:7")
    upgraded.command("dead-letters", "redrive", "redis:user", "--yes")
    assert upgraded.json("dead-letters", "list")["count"] == 0
    upgraded.wait_until_shown("redis:user")


def test_entities_and_halted_views_of_an_earlier_version_are_replayed(upgraded: Catalog) -> None:
    world = upgraded.world
    for view in ("mysql:ix_even", "redis:user", "elasticsearch:even"):
        upgraded.command("replay", view, "--key", "10", "--key", "4", "--yes")
        upgraded.command("replay", view, "--where", "id BETWEEN 22 AND 24", "--yes")
    ((since,),) = ask(world.mysql, "SELECT DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%s')")
    ask(world.mysql, "UPDATE shop.user SET n = n + 2 WHERE id = 28")
    upgraded.command("wait", "mysql:ix_even", "28")
    ask(world.mysql, "UPDATE viewtail.ix_even SET n = 0 WHERE id = 28")
    upgraded.command("replay", "mysql:ix_even", "--since", since, "--yes")
    upgraded.command("replay", "redis:moved", "--yes")
    upgraded.wait_until_filled("redis:moved")
    cache = redis.Redis(port=world.redis.port, decode_responses=True)
    rows = ask(world.mysql, "SELECT id, v FROM shop.moved")
    assert {key: cache.hget(f"moved:{key}", "v") for key, _ in rows} == dict(rows)
    upgraded.wait_until_shown("mysql:ix_even", "redis:user", "elasticsearch:even")
    assert upgraded.json("verify", "redis:moved", "mysql:ix_even", "elasticsearch:even")["failed"] == {}


def test_views_and_pipelines_of_an_earlier_version_are_paused_and_resumed(upgraded: Catalog) -> None:
    paused = ("redis:document", "elasticsearch:user")
    upgraded.command("pause", "redis:document", "--reason", "a test")
    seen = '"view":"redis:document","event":"view paused"'  # another one was paused before the first run
    wait_for("its process has seen it", lambda: seen in upgraded.run.log)
    upgraded.command("pause", "--pipeline", "elasticsearch")
    wait_for("it is paused", lambda: upgraded.pipelines()["elasticsearch"]["state"] == "paused")
    ask(upgraded.world.mysql, "UPDATE shop.user SET email = 'not yet', n = n + 2 WHERE id = 25")
    upgraded.wait_until_shown("mysql:ix_email", "redis:user")
    assert not [view for view in paused if readers_find(upgraded.world, [view])[view] == wanted(upgraded.world)[view]]
    upgraded.command("resume", "redis:document")
    upgraded.command("resume", "--pipeline", "elasticsearch")
    upgraded.wait_until_shown(*paused, "elasticsearch:even")


def test_views_of_an_earlier_version_are_rebuilt_and_given_back(upgraded: Catalog) -> None:
    """One that was amid its rebuild is finished, one that was swapped goes on as that."""
    views = ["mysql:ix_email", "redis:half" if "redis:half" in upgraded.views else "redis:document"]
    views.append("elasticsearch:user")
    for options, email in (((), "rebuilt"), (("--rollback",), "given back")):
        with ThreadPoolExecutor() as beside:
            for done in [beside.submit(upgraded.command, "rebuild", view, *options) for view in views]:
                done.result()
        ask(upgraded.world.mysql, f"UPDATE shop.user SET email = '{email}' WHERE id = 26")
        upgraded.wait_until_shown(*views)
    found = upgraded.json("verify", *views)
    assert all(one["is_equal"] for one in found["views"])
    for view in views:
        upgraded.command("rebuild", view, "--abort", "--yes")
    wait_for("the copies are dropped", lambda: not ask(upgraded.world.mysql, RUNNING_REBUILDS))


def test_the_cleaner_mends_views_of_an_earlier_version_and_the_probe_names_what_it_left_halted(
    upgraded: Catalog,
) -> None:
    world, run, port = upgraded.world, upgraded.run, free_port()
    halted = [{"view": name, "pipeline": name.partition(":")[0]} for name in upgraded.halted_now()]
    assert run.stop() == 0
    run.start(VIEWTAIL_METRICS__PORT=str(port), **CLEANING)

    def is_told() -> bool:
        code, body = ready(port)
        assert (code, body["down"], body["halted"]) == (503 if halted else 200, [], halted)
        return True

    wait_for("all pipelines run, and what is halted is named", is_told)
    ask(world.mysql, "UPDATE viewtail.ix_email SET email = 'damaged' WHERE id = 16")
    redis.Redis(port=world.redis.port).delete("document:17")
    index = next(iter(world.search("GET", "/user")))
    world.search("DELETE", f"/{index}/_doc/18?refresh=true")
    upgraded.wait_until_shown("mysql:ix_email", "redis:document", "elasticsearch:user")
    assert "the cleaner wrote entities again" in run.log
    assert run.stop() == 0
    run.start()
    upgraded.wait_until_filled(*(upgraded.views - {upgraded.paused}))


def ready(port: int) -> tuple[int, Any]:
    """What /readyz answers."""
    ask_it = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    try:
        with ask_it(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_an_entity_in_views_of_an_earlier_version_is_erased(upgraded: Catalog) -> None:
    ask(upgraded.world.mysql, "DELETE FROM shop.user WHERE id = 30")
    proof = upgraded.json("forget", "shop.user", "30")
    assert proof["is_erased"]
    upgraded.wait_until_shown("mysql:ix_email", "redis:document", "elasticsearch:user")


def test_a_changed_declaration_is_previewed_and_built_beside_what_an_earlier_version_made(upgraded: Catalog) -> None:
    world, run = upgraded.world, upgraded.run
    assert run.stop() == 0
    path = run.folder / "views.py"
    text = path.read_text()
    for before, after in (('row["n"] % 2 == 0', 'row["n"] % 2 == 1'), ("[:3]", "[:2]")):
        assert text.count(before) == 1
        text = text.replace(before, after)
    path.write_text(text)
    found = upgraded.json("preview", "mysql:ix_even", "--sample", "1000")
    assert found["same"] == 0 and not found["refused"]
    assert {(one["before"] is None, one["after"] is None) for one in found["differences"]} == {
        (True, False),
        (False, True),
    }, "the even ones go, the others come"
    run.start(VIEWTAIL_RUN__ON_CHANGE="beside")

    def wanted_now() -> dict[str, dict[int, Any]]:
        users = ask(world.mysql, "SELECT id, email, n FROM shop.user")
        documents = {key: {"email": email, "n": n, "tag": (email or "")[:2]} for key, email, n in users}
        odd = {key: n for key, _, n in users if n % 2}
        of_odd = {key: documents[key] for key in odd}
        return {"mysql:ix_even": odd, "redis:document": documents, "elasticsearch:even": of_odd}

    def is_swapped() -> bool:
        must = wanted_now()
        found = readers_find(world, must)
        assert [view for view in must if found[view] != must[view]] == []
        return not ask(world.mysql, RUNNING_REBUILDS)

    wait_for("readers have the copies, and the former ones are dropped", is_swapped)
    ((count,),) = ask(
        world.mysql,
        "SELECT COUNT(*) FROM viewtail.rebuild WHERE swapped_at IS NOT NULL "
        "AND view_name IN ('mysql:ix_even', 'redis:document', 'elasticsearch:even')",
    )
    assert count >= len(wanted_now())
    compared = upgraded.json("verify", *wanted_now())["views"]
    assert all(one["is_equal"] for one in compared)


def test_views_of_an_earlier_version_are_forgotten(upgraded: Catalog) -> None:
    """A halted one, one of each store, and one that this version was amid a backfill of."""
    world, run = upgraded.world, upgraded.run
    dropped = {"mysql:ix_gone", "mysql:ix_even", "redis:document", "elasticsearch:even"}
    dropped |= {"redis:half"} & upgraded.views
    kept = sorted((upgraded.views | HALTED) - dropped)
    assert run.stop() == 0
    text = (run.folder / "views.py").read_text()
    (run.folder / "views.py").write_text(f"{text}views = [view for view in views if str(view.id) in {kept}]\n")
    run.start()
    upgraded.wait_until_filled(*(set(kept) - HALTED))
    for view in sorted(dropped):
        # A process that is only starting has not said yet which views it keeps.
        wait_for(f"{view} is forgotten", lambda: upgraded.command("forget", view, "--yes") or True)  # noqa: B023
    tables = {name for (name,) in ask(world.mysql, "SHOW TABLES FROM viewtail LIKE 'ix\\_%'")}
    assert not [name for name in tables if name.startswith(("ix_even", "ix_gone"))], tables
    cache = redis.Redis(port=world.redis.port, decode_responses=True)
    assert not [key for key in cache.scan_iter() if key.startswith("document:")]
    assert not [index for index in world.search("GET", "/viewtail*") if "even" in index]
    assert not dropped & {name for (name,) in ask(world.mysql, "SELECT name FROM viewtail.view")}
    upgraded.wait_until_shown(*(set(kept) - HALTED))
