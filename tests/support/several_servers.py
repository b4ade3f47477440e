"""A table that two servers have, and the views over both: a MySQL (eu) and a MariaDB (us) that can be cut off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from stack import Server
from tests.support import running as support
from tests.support.asking import ask
from tests.support.indices import Indices
from tests.support.proxy import Proxy
from tests.support.running import Run, addresses, running

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash

user = Entity("shop.user", sources=["eu", "us"])
views = [IndexTable("user_by_email", user, value="email"), RedisHash("user", user, fields=["email", "source"])]
"""
# And some in which a key is of one source at a time.
WITH_ONCE = f"""{VIEWS}
once = Entity("shop.user", sources=["eu", "us"], unique_over_sources=True)
views += [IndexTable("user_once", once, value="email"), RedisHash("user_once", once, fields=["email"])]
"""
WITH_SEARCH = f"""{WITH_ONCE}
from viewtail import SearchIndex

views.append(SearchIndex("user_once", once, fields={{"email": "keyword"}}))
"""
ONCE = ("mysql:user_once", "redis:user_once", "elasticsearch:user_once")
USER = "(id INT PRIMARY KEY, email VARCHAR(40), note VARCHAR(40))"
Rows = dict[tuple[str, int], str]


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """As that of `running`, for what several processes do on a busy machine."""
    support.wait_for(what, condition, 300)


class Servers:
    """`viewtail run` over both; its own tables and the index tables are beside those of eu."""

    def __init__(
        self, eu: Server, us: Server, cut: Proxy, redis_server: Server, run: Run, search: Server | None
    ) -> None:
        self.servers = {"eu": eu, "us": us}
        self.cut, self.run, self.redis_server = cut, run, redis_server
        self.search = None if search is None else Indices(search)
        self.once = ONCE if search is not None else ONCE[:2]
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)

    def ask(self, source: str, *statements: str) -> Sequence[Any]:
        """The rows of the last one."""
        return [ask(self.servers[source], statement) for statement in statements][-1]

    def begin_again(self) -> None:
        """The rows that there are at the beginning, in the views too."""
        for name in self.servers:
            self.ask(name, "TRUNCATE TABLE shop.user", _rows(name))
        wait_for("all begins again", self.is_equal)

    def rows(self) -> Rows:
        """Of both servers."""
        return {
            (name, number): email
            for name in self.servers
            for number, email in self.ask(name, "SELECT id, email FROM shop.user")
        }

    def shown(self) -> Rows:
        found = self.ask("eu", "SELECT source, id, email FROM viewtail.user_by_email WHERE email IS NOT NULL")
        return {(source, number): email for source, number, email in found}

    def shown_once(self, view: str = ONCE[0]) -> Rows:
        """What a view shows in which a key is of one source at a time."""
        if view == ONCE[1]:
            names = [str(name) for name in self.redis.scan_iter(match="user_once:*")]
            rows = {int(name.partition(":")[2]): self.redis.hgetall(name) for name in names}
            return {(row["_source"], number): row["email"] for number, row in rows.items() if row}
        if view == ONCE[2]:
            assert self.search is not None
            documents = self.search.contents(["user_once"])[view]
            return {(doc["viewtail_source"], int(name)): doc["email"] for name, doc in documents.items()}
        found = self.ask("eu", "SELECT source, id, email FROM viewtail.user_once WHERE email IS NOT NULL")
        shown = {(source, number): email for source, number, email in found}
        assert len({number for _, number in shown}) == len(shown), shown
        return shown

    def parked(self, view: str = ONCE[0]) -> dict[tuple[str, int], str]:
        """Why keys of such a view are parked, by the source whose row it is, and key."""
        letters = self.ask(
            "eu",
            "SELECT p.source, d.rendered_key, d.reason FROM viewtail.dead_letter d "
            "JOIN viewtail.view v ON v.id = d.view_id JOIN viewtail.pipeline p ON p.id = v.pipeline_id "
            f"WHERE v.name = '{view}'",
        )
        return {(source, int(key)): reason for source, key, reason in letters}

    def is_once(self) -> bool:
        """Each key is shown of one server that has it, as it is there; the row of the other one is parked."""
        return all(self._is_once(view) for view in self.once)

    def waits_for_nothing(self) -> bool:
        """As `is_once`, and no key is on both."""
        return self.is_once() and not any(self.parked(view) for view in self.once)

    def _is_once(self, view: str) -> bool:
        rows, shown = self.rows(), self.shown_once(view)
        assert shown.items() <= rows.items(), (shown, rows)
        assert {number for _, number in shown} == {number for _, number in rows}
        parked = self.parked(view)
        assert parked.keys() == rows.keys() - shown.keys()
        for (source, _), reason in parked.items():
            other = "us" if source == "eu" else "eu"
            assert reason.startswith(f"its key lives on the source {other}, and this row is on {source}."), reason
        return True

    def shown_in_redis(self) -> Rows:
        found: Rows = {}
        for name in self.redis.scan_iter(match="user:*"):
            _, source, number = name.split(":")
            fields = self.redis.hgetall(name)
            assert fields["source"] == source
            found[source, int(number)] = fields["email"]
        return found

    def is_equal(self) -> bool:
        rows = self.rows()
        assert self.shown() == rows
        assert self.shown_in_redis() == rows
        return True

    def pipelines(self) -> dict[str, dict[str, Any]]:
        """By name, as `status` has them."""
        found = json.loads(self.run.command("status", "--json").stdout)["pipelines"]
        return {pipeline["name"]: pipeline for pipeline in found}

    def is_filled(self) -> bool:
        """Whether every view of both sources is filled; keys may be parked."""
        pipelines = self.pipelines()
        states = {view["state"] for pipeline in pipelines.values() for view in pipeline["views"]}
        return {name.partition(".")[0] for name in pipelines} == {"eu", "us"} and states == {"filled"}

    def view(self, pipeline: str) -> dict[str, Any]:
        """The only view of a pipeline."""
        (view,) = self.pipelines()[pipeline]["views"]
        return dict(view)


def _rows(name: str) -> str:
    values = ", ".join(f"({number}, '{name}{number}@x', '')" for number in (1, 2, 3))
    return f"INSERT INTO shop.user VALUES {values}"


def settings_of(eu: Server, us_port: int, redis_server: Server, search: Server | None) -> dict[str, str]:
    """Of a deployment beside eu."""
    settings = addresses(eu, redis_server, search)
    del settings["VIEWTAIL_SOURCE__URL"]
    return settings | {
        "VIEWTAIL_CLEANER__SHARE": "0",
        "VIEWTAIL_MYSQL__URL": f"{eu.url}/viewtail",
        "VIEWTAIL_SOURCES__EU__URL": eu.url,
        "VIEWTAIL_SOURCES__US__URL": f"mysql://root@127.0.0.1:{us_port}",
    }


@contextmanager
def servers(
    eu: Server,
    us: Server,
    redis_server: Server,
    folder: Path,
    views: str = VIEWS,
    settings: Mapping[str, str] | None = None,
    search: Server | None = None,
) -> Iterator[Servers]:
    """Three rows on each, two of them under the same key, and all of it filled."""
    for name, server in (("eu", eu), ("us", us)):
        ask(server, "DROP DATABASE IF EXISTS viewtail")
        ask(server, "DROP DATABASE IF EXISTS shop")
        ask(server, "CREATE DATABASE shop")
        ask(server, f"CREATE TABLE shop.user {USER}")
        ask(server, _rows(name))
    redis.Redis(host="127.0.0.1", port=redis_server.port).flushall()
    if search is not None:
        Indices(search).drop_all()
    with Proxy(us.port) as cut:
        given = {**settings_of(eu, cut.port, redis_server, search), **(settings or {})}
        with running(folder, views, given) as run:
            world = Servers(eu, us, cut, redis_server, run, search)
            wait_for("all is filled", world.is_filled)
            yield world
