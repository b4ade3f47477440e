"""The console of `viewtail run`, as a person sees it in a browser, and as one who should not act tries to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from stack import Server
from tests.support.browser import DESKTOP, PHONE, Visitor, violations
from tests.support.console_world import HOSTILE, TOKEN, VIEWS, World, console_world
from tests.support.running import wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
PAGES = (
    "/",
    "/view/redis/card",
    "/view/redis/card/rows?count=5",
    "/view/redis/card/why?key=7",
    "/view/redis/card/letters",
    "/view/redis/card/preview?sample=20",
    "/pipeline/redis",
    "/record?all=1",
    "/do/replay?name=redis:card",
    "/do/redrive?name=redis:card",
    "/do/pause-pipeline?name=redis",
    "/sign-in",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, redis_server: Server) -> Iterator[World]:
    with console_world(tmp_path_factory.mktemp("console"), mysql_server, redis_server) as made:
        yield made


def _rows(page: Page, label: str) -> dict[str, list[str]]:
    """The cells of a table, by its first column."""
    found = page.get_by_role("region", name=label).locator("tbody tr").all()
    return {row.locator("th").inner_text(): [cell.inner_text() for cell in row.locator("td").all()] for row in found}


def test_pipelines_and_views_are_seen_and_change_without_a_reload(world: World, page: Page) -> None:
    page.goto(world.url)
    assert {name: row[0] for name, row in _rows(page, "Pipelines").items()} == {"mysql": "running", "redis": "running"}
    views = _rows(page, "Views")
    assert {name: (row[0], row[1], row[2]) for name, row in views.items()} == {
        "mysql:person_by_email": ("filled", "100 %", "20"),
        "redis:card": ("filled", "100 %", views["redis:card"][2]),
        "redis:person": ("filled", "100 %", "20"),
    }
    assert views["redis:card"][3] == "1 parked"
    expect(page.get_by_text("Not everything is well")).to_be_visible()
    expect(page.get_by_text("1 key could not be applied")).to_be_visible()

    expect(page.get_by_role("status")).to_contain_text("Live, as of", timeout=30_000)
    assert world.run.command("pause", "--pipeline", "redis", "--reason", "the cache moves").returncode == 0
    expect(page.get_by_text("the cache moves")).to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Stop refreshing").click()
    assert world.run.command("resume", "--pipeline", "redis").returncode == 0
    page.wait_for_timeout(2500)
    expect(page.get_by_text("the cache moves")).to_be_visible()
    page.get_by_role("button", name="Go on refreshing").click()
    expect(page.get_by_text("the cache moves")).not_to_be_visible(timeout=30_000)


def test_without_javascript_the_tables_are_there(world: World, visitor: Visitor) -> None:
    page = visitor.page(replace(DESKTOP, javascript=False))
    page.goto(world.url)
    assert set(_rows(page, "Views")) == {"mysql:person_by_email", "redis:card", "redis:person"}
    expect(page.get_by_text("Load the page again for newer figures")).to_be_visible()
    expect(page.get_by_role("button", name="Stop refreshing")).not_to_be_visible()
    page.get_by_role("link", name="redis:person").click()
    page.get_by_role("link", name="Rows").click()
    expect(page.get_by_role("heading", name="In the table").first).to_be_visible()


def test_a_view_shows_its_declaration_and_leads_to_what_can_be_done(world: World, page: Page) -> None:
    page.goto(f"{world.url}/view/redis/card")
    expect(page.locator("pre code")).to_have_text('RedisJson("card", person, document=card, key="card:{id}")')
    offered = [link.inner_text() for link in page.locator(".actions a").all()]
    assert offered == [
        "Verify…", "Verify and repair…", "Replay…", "Replay one entity…", "Redrive dead letters…", "Rebuild…",
        "Pause the view…",
    ]  # fmt: skip


def test_rows_stand_beside_what_the_store_has_and_a_hostile_value_is_text(world: World, page: Page) -> None:
    world.keys.hset("person:7", "email", "wrong@example.org")
    page.goto(f"{world.url}/view/redis/person/rows?count=20")
    entities = {
        entity.locator("h2 a").inner_text(): entity.inner_text() for entity in page.locator("article.entity").all()
    }
    assert len(entities) == 20
    assert "7@example.org" in entities["7"] and "wrong@example.org differs" in entities["7"].replace("\n", " ")
    assert entities["8"].count("8@example.org") == 2 and "right" in entities["8"]
    assert entities["3"].count(HOSTILE) == 2
    assert page.title() != "owned" and page.locator("article img, article script").count() == 0
    world.keys.hset("person:7", "email", "7@example.org")


def test_why_leads_to_the_command_that_mends(world: World, page: Page) -> None:
    world.keys.hset("person:9", "name", "wrong")
    page.goto(f"{world.url}/view/redis/person/why")
    page.get_by_label("Key").fill("9")
    page.get_by_role("button", name="Why?").click()
    expect(page.locator(".verdict")).to_contain_text("wrong:")
    page.get_by_role("link", name="Do that…").click()
    world.sign_in(page)
    expect(page.get_by_text("viewtail replay --yes --key=9 redis:person")).to_be_visible()
    expect(page.get_by_role("heading", name="What it would do now")).to_be_visible()
    page.get_by_role("button", name="Replay one entity").click()
    expect(page.locator("#live .state")).to_have_text(re.compile("done|ended"), timeout=30_000)
    expect(page.locator("#live .state")).to_have_text("done")
    assert world.keys.hget("person:9", "name") == b"name 9"
    page.goto(f"{world.url}/view/redis/person/why?key=9")
    expect(page.locator(".verdict")).to_contain_text("current:")
    page.goto(f"{world.url}/record")
    assert any(
        row[0].startswith("replay") and row[1] == "redis:person" and row[2].startswith("ada@")
        for row in _rows(page, "Record").values()
    )


def test_a_dead_letter_is_redriven_from_its_row(world: World, page: Page) -> None:
    page.goto(f"{world.url}/view/redis/card/letters")
    world.sign_in(page)
    page.get_by_role("link", name="Redrive 5").click()
    expect(page.get_by_label("Only this key")).to_have_value("5")
    page.get_by_role("button", name="Redrive dead letters").click()
    expect(page.locator("#live .state")).to_have_text("ended with code 1", timeout=30_000)
    expect(page.locator("pre.output")).to_contain_text("raised ValueError at views.py")
    world.sql("UPDATE console.person SET name = 'taken back' WHERE id = 5")
    wait_for("the letter ended", lambda: not world.get("/view/redis/card/letters")[1].count("raised ValueError at"))
    world.sql("UPDATE console.person SET name = 'refused' WHERE id = 5")
    wait_for("the letter is back", lambda: world.get("/view/redis/card/letters")[1].count("raised ValueError at"))


def test_preview_reads_the_edited_file(world: World, page: Page) -> None:
    file = world.run.folder / "views.py"
    file.write_text(VIEWS.replace('"points": row["points"]', '"points": row["points"] + 1'))
    try:
        page.goto(f"{world.url}/view/redis/card/preview")
        page.get_by_role("button", name="Preview").click()
        expect(page.locator(".verdict")).to_contain_text("19 would differ", timeout=30_000)
        expect(page.locator("article.entity").first).to_contain_text("+ points:")
        file.write_text("views = [")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert")).to_contain_text("views.py", timeout=30_000)
    finally:
        file.write_text(VIEWS)


def test_an_edited_views_py_is_told_where_the_run_has_the_older_one(world: World) -> None:
    since, file = "views.py has changed since this console read it", world.run.folder / "views.py"
    pages = ("/", "/view/redis/card/why?key=7")
    wait_for("a word about no edited file", lambda: since not in world.get("/")[1])
    assert "has an older one" not in world.get("/view/redis/card")[1]
    file.write_text(VIEWS.replace('key="card:{id}"', 'key="card:{id}", where=lambda row: row["id"] < 3'))
    try:
        for path in pages:
            wait_for("what changed is told", lambda path=path: since in world.get(path)[1])
        text = world.get("/view/redis/card")[1]
        assert "line 16, as views.py is now; the running viewtail has an older one" in text, text
        # One that read the new file knows which views differ.
        beside = world.run.background("console", "--port", "0")
        try:
            log = wait_for(
                "its address", lambda: re.search(r'"url":"(http://[^"]+)","event":"console"', beside.errors_so_far())
            )
            read = {path: world.ask(urllib.request.Request(f"{log[1]}{path}"))[1] for path in ("", "view/redis/card")}
        finally:
            beside.terminate()
        assert "view redis:card is kept as it was declared before. Restart" in read[""] and since not in read[""]
        assert "the running viewtail has an older one" in read["view/redis/card"]
        assert "view redis:person is kept" not in read[""]
    finally:
        file.write_text(VIEWS)
    wait_for("it is as it was", lambda: since not in world.get("/")[1])


def test_what_is_paused_is_not_called_well(world: World, tmp_path: Path) -> None:
    """`only` has one view, so that nothing else is wrong in it."""
    well, paused = "Everything is well.", "Nothing is wrong, and something is paused: see below."
    only = VIEWS.replace("    RedisJson(", "    # ")
    (world.run.folder / "only.py").write_text(only)
    beside = world.run.background("console", "--port", "0", VIEWTAIL_VIEWS="only:views")
    try:
        log = wait_for(
            "its address", lambda: re.search(r'"url":"(http://[^"]+)","event":"console"', beside.errors_so_far())
        )

        def overview() -> str:
            return world.ask(urllib.request.Request(log[1]))[1]

        wait_for("all is well", lambda: well in overview())
        assert paused not in overview()
        for what in (("redis:person",), ("--pipeline", "redis")):
            assert world.run.command("pause", *what).returncode == 0
            wait_for("it is told", lambda: paused in overview())
            assert well not in overview()
            assert world.run.command("resume", *what).returncode == 0
            wait_for("all is well again", lambda: well in overview())
    finally:
        beside.terminate()


def test_each_page_is_accessible_light_and_dark_wide_and_narrow(world: World, visitor: Visitor) -> None:
    for look in (DESKTOP, replace(DESKTOP, dark=True), PHONE, replace(PHONE, dark=True)):
        page = visitor.page(replace(look, still=True))
        for path in PAGES:
            page.goto(world.url + path)
            assert violations(page) == [], path
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"{path} is {wider} px wider than the window"
        world.sign_in(page)
        page.goto(f"{world.url}/do/rebuild?name=redis:card")
        assert violations(page) == []


def test_the_keyboard_reaches_everything_and_focus_stays_when_the_page_changes(world: World, page: Page) -> None:
    page.goto(world.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("status")).to_contain_text("Live, as of", timeout=30_000)
    page.get_by_role("link", name="redis:person", exact=True).focus()
    heard = page.locator("#live").get_attribute("data-heard")
    world.sql("UPDATE console.person SET points = points + 1 WHERE id = 1")
    page.wait_for_function("heard => document.getElementById('live').dataset.heard !== heard", arg=heard)
    assert page.evaluate("document.activeElement.textContent") == "redis:person"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("redis:person")


# --- Who must not act ---


def _jobs(world: World) -> int:
    return len(re.findall(r'href="/job/', world.get("/record")[1]))


def test_nothing_is_done_without_the_token(world: World, visitor: Visitor) -> None:
    before = _jobs(world)
    page = visitor.page()
    page.goto(f"{world.url}/do/pause?name=redis:person")
    assert page.get_by_role("button", name="Pause the view").count() == 0
    page.get_by_role("link", name="Sign in to do it").click()
    page.get_by_label("Your name, for the record").fill("eve")
    page.get_by_label("Token").fill("not-the-token-at-all")
    with visitor.expecting("status of 403"):
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not that of the setting")
    form = {"of": "", "name": "redis:person", "form_key": ""}
    assert world.post("/do/pause", form)[0] == 403
    assert world.post("/do/pause", form, Cookie="viewtail-console=ZXZl.99999999999.00")[0] == 403
    assert _jobs(world) == before
    assert "paused" not in world.run.command("status").stdout


def test_a_session_is_no_use_to_another_site(world: World) -> None:
    cookie, key = world.session()
    before = _jobs(world)
    form = {"of": "", "name": "redis:person", "form_key": key}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        code, text, _ = world.post("/do/pause", form, **cookie, **headers)
        assert code == 403 and "another site" in text, headers
    for wrong in ("", "0" * 64, "é"):
        assert world.post("/do/pause", {**form, "form_key": wrong}, **cookie)[0] == 403
    assert world.post("/job/1/stop", {"form_key": ""}, **cookie)[0] == 403
    assert _jobs(world) == before


def test_a_name_that_leads_here_is_not_answered(world: World) -> None:
    code, text, _ = world.get("/", Host=f"rebound.example:{world.port}")
    assert code == 421 and "VIEWTAIL_CONSOLE__URL" in text and "redis" not in text
    assert world.get("/", Host=f"localhost:{world.port}")[0] == 200


def test_every_answer_has_the_headers_that_keep_others_out(world: World) -> None:
    for path in (*PAGES, "/static/console.js", "/nothing", "/view/redis/nothing", "/job/999"):
        _, _, headers = world.get(path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy, path
        assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff", path


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("/view/redis/persom", 404, "did you mean redis:person"),
        ("/pipeline/rediss", 404, "did you mean redis"),
        ("/view/redis/person/rows?count=0", 400, "from 1 to"),
        ("/view/redis/person/rows?count=x", 400, "from 1 to"),
        ("/view/redis/person/why?key=x", 200, "x"),
        ("/do/nothing?name=redis:person", 404, "no such action"),
        ("/do/verify?name=redis:nothing", 404, "no run has seen"),
        ("/view/redis/person?of=eu", 404, "no deployment"),
        ("/sign-in?to=https://evil.example/", 200, 'value="/"'),
        ("/sign-in?to=//evil.example/", 200, 'value="/"'),
        ("/sign-in?to=//%5B", 200, 'value="/"'),
        (f"/view/redis/person/rows?count={'9' * 5000}", 400, "from 1 to 50"),
        (f"/job/{'9' * 5000}", 404, "no such command"),
        ("/do/verify?name=redis:person&source=asia", 404, "does not draw on a source"),
        ("/view/redis/person/rows/events", 404, "no such page"),
        ("/view/redis/person/preview/events?sample=5", 404, "no such page"),
    ],
)
def test_what_is_asked_wrongly_is_said(world: World, path: str, code: int, says: str) -> None:
    found, text, _ = world.get(path)
    assert found == code and says in text


def test_a_command_cannot_be_made_of_another(world: World) -> None:
    cookie, key = world.session()
    for name, wrong in (("reason", "two\nlines"), ("reason", "x" * 1001)):
        form = {"of": "", "name": "redis:person", "form_key": key, name: wrong}
        code, text, _ = world.post("/do/pause", form, **cookie)
        assert code == 400 and "one line" in text
    assert world.post("/do/pause", {"name": "--all", "form_key": key}, **cookie)[0] == 404
    code, _, headers = world.post("/do/replay-key", {"name": "redis:person", "key": "--all", "form_key": key}, **cookie)
    assert code == 303
    job = headers["Location"]
    wait_for("the command ended", lambda: "ended with code" in world.get(job)[1])
    assert "viewtail replay --yes --key=--all redis:person" in world.get(job)[1]


def test_a_command_under_way_is_stopped_as_with_ctrl_c(world: World, page: Page) -> None:
    assert world.run.command("pause", "--pipeline", "redis").returncode == 0
    try:
        page.goto(f"{world.url}/do/rebuild?name=redis:person")
        world.sign_in(page)
        page.get_by_role("button", name="Rebuild").click()  # nobody fills the copy
        expect(page.get_by_role("button", name="Stop it")).to_be_visible()
        page.wait_for_timeout(1500)
        page.get_by_role("button", name="Stop it").click()
        expect(page.locator("#live .state")).to_have_text("stopped", timeout=30_000)
        page.goto(f"{world.url}/view/redis/person")
        page.get_by_role("link", name="Drop the other copy").click()
    finally:
        assert world.run.command("resume", "--pipeline", "redis").returncode == 0
    page.get_by_role("button", name="Drop the other copy").click()
    expect(page.locator("#live .state")).to_have_text("done", timeout=30_000)


# --- The process ---


def test_the_console_comes_back_after_a_kill_and_ends_with_its_run(world: World) -> None:
    def console() -> int:
        found = subprocess.run(["pgrep", "-f", f"viewtail.console.process .* {world.run.process.pid}"],
                               capture_output=True, text=True, check=False).stdout.split()  # fmt: skip
        return int(found[0]) if found else 0

    first = wait_for("a console", console)
    os.kill(first, signal.SIGKILL)
    wait_for("another console", lambda: console() not in (0, first))
    assert world.get("/")[0] == 200
    assert "the console ended, starting it again" in world.run.log


def test_viewtail_console_serves_a_fleet_without_a_run(world: World, tmp_path: Path) -> None:
    beside = world.run.background("console", "--port", "0")
    try:
        log = wait_for(
            "its address", lambda: re.search(r'"url":"(http://[^"]+)","event":"console"', beside.errors_so_far())
        )
        text = world.ask(urllib.request.Request(log[1]))[1]
        assert "redis:person" in text
    finally:
        beside.terminate()
    assert TOKEN not in world.run.log


def test_a_views_page_says_why_views_py_cannot_be_loaded(world: World) -> None:
    (world.run.folder / "broken.py").write_text("views = [\n")
    beside = world.run.background("console", "--port", "0", VIEWTAIL_VIEWS="broken:views")
    try:
        log = wait_for(
            "its address", lambda: re.search(r'"url":"(http://[^"]+)","event":"console"', beside.errors_so_far())
        )
        text = world.ask(urllib.request.Request(f"{log[1]}view/redis/card"))[1]
        assert "cannot be loaded" in text and "broken.py:1" in text and "is not declared" not in text
    finally:
        beside.terminate()


# --- What commands say beside it ---


def test_wait_says_how_many_keys_are_parked(world: World) -> None:
    done = world.run.command("wait", "redis:card")
    assert done.returncode == 0 and "1 key is parked" in done.stderr and "dead-letters list redis:card" in done.stderr
    assert "parked" not in world.run.command("wait", "redis:person").stderr


def test_a_list_of_peoples_columns_that_is_empty_says_how_to_tag_one(world: World) -> None:
    done = world.run.command("check", "--people")
    assert done.returncode == 0 and "#PPI" in done.stdout and "masked=" in done.stdout
