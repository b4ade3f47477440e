"""`make screenshots`: the pictures of docs/console.md, of a real run over the world of the console's tests."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import stack.mysql
import stack.redis
from tests.support.browser import DESKTOP, Visitor, running, screenshot
from tests.support.console_world import console_world

_SHARP = replace(DESKTOP, width=1100, height=760, scale=2, still=True)


def main() -> None:
    """Start servers and a run, and write the pictures into docs/images/."""
    with ExitStack() as at_end:
        folder = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.mysql.start(folder / "mysql"), stack.redis.start(folder / "redis")
        for server in servers:
            at_end.callback(server.kill)
        (folder / "run").mkdir()
        world = at_end.enter_context(console_world(folder / "run", *servers))
        visitor = Visitor(at_end.enter_context(running()))
        page = visitor.page(_SHARP)
        page.goto(world.url)
        screenshot(page, "console-overview")
        world.sign_in(page)
        world.keys.hset("person:7", "email", "wrong@example.org")
        page.goto(f"{world.url}/view/redis/person/rows?count=20")
        screenshot(page.locator("article.entity", has_text="differs").first, "console-rows")
        page.goto(f"{world.url}/do/replay?name=redis:person")
        screenshot(page, "console-replay")
        page = visitor.page(replace(_SHARP, dark=True))
        page.goto(world.url)
        screenshot(page, "console-dark")
        visitor.close()


if __name__ == "__main__":
    main()
