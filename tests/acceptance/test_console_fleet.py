"""The console of many views while a pipeline is halted: what is wrong comes first, and the page comes at once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import stack.mysql
from stack import Server
from tests.support.browser import violations
from tests.support.console_world import World, console_world
from tests.support.running import wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
VIEWS = """
from viewtail import Entity, IndexTable, RedisHash

person = Entity("console.person")
views = [RedisHash(f"person_{number:03}", person, fields=["name"], key=f"p{number:03}:{{id}}") for number in range(100)]
views.append(IndexTable("person_by_email", person, value="email"))
"""


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose history may end."""
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, own_mysql: Server, redis_server: Server) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("console")
    with console_world(folder, own_mysql, redis_server, VIEWS) as made:
        assert made.run.stop() == 0
        made.sql("INSERT INTO console.person VALUES (1000, 'written meanwhile', NULL, 0)")
        made.sql("RESET BINARY LOGS AND GTIDS")
        made.run.start()
        wait_for("halted pipelines", lambda: "halted</span>" in made.get("/")[1])
        yield made


def test_what_is_halted_comes_first_and_says_what_to_do(world: World, page: Page) -> None:
    began = time.monotonic()
    page.goto(world.url)
    assert time.monotonic() - began < 5
    states = page.get_by_role("region", name="Pipelines").locator("tbody tr").all()
    assert {row.locator(".state").inner_text() for row in states} == {"halted"}
    expect(page.get_by_text("Not everything is well")).to_be_visible()
    expect(page.locator("ul.lines")).to_contain_text("replay --new-history")
    assert page.get_by_role("region", name="Views").locator("tbody tr").count() == 101
    assert violations(page) == []
    page.get_by_role("link", name="redis", exact=True).click()
    expect(page.locator("dl.facts")).to_contain_text("replay --new-history")


def test_a_word_finds_a_view_among_many_and_holds_while_the_page_changes(world: World, page: Page) -> None:
    page.goto(world.url)
    expect(page.get_by_role("status")).to_contain_text("Live, as of", timeout=30_000)
    field = page.get_by_label("Only views with")
    field.fill("person_042")
    shown = page.get_by_role("region", name="Views").locator("tbody tr:visible")
    assert shown.count() == 1
    heard = page.locator("#live").get_attribute("data-heard")
    assert world.run.command("pause", "redis:person_001").returncode == 0
    page.wait_for_function(
        "heard => document.getElementById('live').dataset.heard !== heard", arg=heard, timeout=30_000
    )
    assert shown.count() == 1 and field.input_value() == "person_042"
    assert page.evaluate("document.activeElement.dataset.filter")
    page.keyboard.type("7")
    assert shown.count() == 0


def test_a_page_of_a_hundred_views_is_made_soon(world: World) -> None:
    world.get("/")
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        code, text, _ = world.get("/")
        taken.append(time.perf_counter() - began)
        assert code == 200 and len(re.findall("redis:person_", text)) >= 100
    assert sorted(taken)[10] < 0.5, taken
