"""Views with push=True show what a worker committed at once, with the pipelines beside, stopped, or away."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

import stack.redis
from projectors import failpoints
from stack import Server
from tests.support.asking import ask
from tests.support.indices import Indices
from tests.support.pushed import VIEWS, Pushed, held, pushed
from tests.support.running import wait_for
from tests.support.serving import Served
from viewtail.entities import CommandWorker

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]

ODD = {"text": 'ü "quoted" \\ \u2028 \U0001f600', "n": [(1 << 64) - 1, -(1 << 63), 0.1, 1e-7, 2.5e300, 1.0, None, True]}
_INSERT = (
    "INSERT INTO bank.account (entity_id, version, command_id, command_name, request, response, state) "
    """VALUES ('ada', 2, 'x', 'deposit', '{}', '{}', '{"balance": %s, "tags": []}')"""
)
MODES = {"tailed": {}, "polled": {"VIEWTAIL_SOURCE__MODE": "poll"}}


@pytest.fixture
def bank(
    mysql_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pushed]:
    with pushed(mysql_server, redis_server, tmp_path, monkeypatch) as found:
        yield found


@pytest.mark.parametrize("mode", MODES)
def test_what_is_committed_is_shown_while_no_pipeline_runs_as_the_pipeline_will_show_it(
    mysql_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with pushed(mysql_server, redis_server, tmp_path, monkeypatch, more=MODES[mode]) as bank:
        assert bank.run.stop() == 0
        with bank.accounts.worker() as worker:
            bank.send(worker, "ada", 5)
            bank.wait_until_shown("ada", 5, 1)
            bank.send(worker, "ada", 3, **ODD)
            bank.send(worker, "first", 1)
            bank.wait_until_shown("ada", 8, 2)
            bank.wait_until_shown("first", 8, 2)
            bank.send(worker, "eve", 1)
            worker.submit(bank.command("eve", name="close")).result(20)
            wait_for("it left", lambda: bank.indexed("eve") == (None, 2) and bank.document("eve") is None)
        shown = {entity: bank.everything(entity) for entity in ("ada", "eve", "first")}
        assert bank.unpushed("ada") is None, "it is shown to who asks for it alone"
        bank.run.start()
        wait_for("the pipeline came", lambda: bank.unpushed("eve") == 2)
        for command in (("wait", "mysql:account_by_balance"), ("wait", "redis:account"), ("verify",), ("status",)):
            done = bank.run.command(*command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert {entity: bank.everything(entity) for entity in shown} == shown


def test_a_push_that_comes_behind_the_pipeline_changes_nothing(bank: Pushed) -> None:
    with bank.accounts.worker() as worker:
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 1, 1)
        with held(worker):
            bank.send(worker, "ada", 1)
            wait_for("the pipeline was first", lambda: bank.shows("ada", 2, 2) and bank.unpushed("ada") == 2)
            ask(bank.mysql, "UPDATE viewtail.account_by_balance SET balance = 77 WHERE entity_id = 'ada'")
        bank.send(worker, "bob", 1)
        bank.wait_until_shown("bob", 1, 1)
        assert bank.indexed("ada") == (77, 2), "what has that version was written again"


def test_what_waits_is_pushed_once_an_entity_and_with_its_newest_version(bank: Pushed) -> None:
    assert bank.run.stop() == 0
    with bank.accounts.worker() as worker:
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 1, 1)
        written = _written(worker)
        with held(worker):
            for _ in range(50):
                bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 51, 51)
    # What was under way when the first of them came, and one push of all others; to each of two stores.
    assert [version for store, version in written if store == "redis"][-1] == 51
    assert len([one for one in written if one[0] == "redis"]) <= 2 * 2, written


def _written(worker: CommandWorker) -> list[tuple[str, int]]:
    """From now on: by store, the versions that are pushed to one of its views."""
    found: list[tuple[str, int]] = []
    pushers: Any = worker._pushes._pushing
    for pusher in pushers:
        sink, name = pusher._opened.sink, pusher._store.name

        def push(writes: Any, before: Any = sink.push, name: str = name) -> None:
            found.extend((name, write[0] // 2) for one in writes[:1] for write in one.writes.values())
            before(writes)

        sink.push = push
    return found


def test_redis_has_what_is_committed_before_the_thread_that_pushes_wakes_up(bank: Pushed) -> None:
    assert bank.run.stop() == 0
    with bank.accounts.worker() as worker, bank.client() as connection, connection.cursor() as cursor:
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 1, 1)
        pushers: Any = worker._pushes._pushing
        (pusher,) = (one for one in pushers if one._store.name == "redis")
        handle, queue, wakes = pusher._handle, pusher._queue, threading.Event()

        def handle_later(taken: Any) -> None:
            if taken.handed:
                wakes.wait(30)
            handle(taken)

        pusher._handle = handle_later
        cursor.execute(_INSERT, (5,))
        newest = {"ada": 2}
        worker._pushes.announce(newest)
        wait_for("it is ready", lambda: queue._ready is not None and queue._ready.prepared.newest is newest)
        assert bank.document("ada")["balance"] == 1, "it is not committed"
        connection.commit()
        worker._pushes.hand(newest)
        wait_for("Redis has it", lambda: bank.document("ada")["balance"] == 5, 10)
        wakes.set()
        bank.wait_until_shown("ada", 5, 2)


def test_a_worker_that_is_closed_pushes_what_it_committed(bank: Pushed) -> None:
    assert bank.run.stop() == 0
    with bank.accounts.worker() as worker:
        for number in range(1, 30):
            worker.submit(bank.command(f"e{number % 3}")).result(20)
    assert bank.shows("e1", 10, 10) and bank.shows("e2", 10, 10) and bank.shows("e0", 9, 9)


def test_views_that_are_halted_or_paused_get_nothing_until_they_are_filled_again(bank: Pushed) -> None:
    with bank.accounts.worker() as worker:
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 1, 1)
        assert bank.run.command("pause", "redis:account").returncode == 0
        ask(bank.mysql, "UPDATE viewtail.view SET state = 'halted' WHERE name = 'mysql:account_by_balance'")
        assert bank.run.stop() == 0
        bank.send(worker, "ada", 1)  # within the second in which it may be pushed
        wait_for("it was asked again", lambda: _is_open_for(worker, {"mysql:account_by_tag", "redis:account_state"}))
        bank.send(worker, "bob", 5)
        wait_for("the others get it", lambda: bank.everything("bob")[1] and bank.everything("bob")[5])
        assert (bank.indexed("bob"), bank.document("bob")) == (None, None)
        bank.run.start()
        for command in (("resume", "redis:account"), ("replay", "mysql:account_by_balance", "--yes")):
            done = bank.run.command(*command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        bank.wait_until_shown("bob", 5, 1)
        bank.wait_until_filled()
        assert bank.run.stop() == 0
        wait_for("it was asked again", lambda: {"mysql:account_by_balance", "redis:account"} <= _open_for(worker))
        bank.send(worker, "bob", 1)
        bank.wait_until_shown("bob", 6, 2)


def _open_for(worker: CommandWorker) -> set[str]:
    """The views that are pushed to now."""
    pushers: Any = worker._pushes._pushing
    opened = [pusher._opened for pusher in pushers if pusher._opened is not None]
    return {view.id for one in opened for reading in one.readings for view in reading.views}


def _is_open_for(worker: CommandWorker, views: set[str]) -> bool:
    found = _open_for(worker)
    return views <= found and not found & {"mysql:account_by_balance", "redis:account"}


def test_a_view_that_another_declaration_keeps_gets_nothing_of_this_one(bank: Pushed) -> None:
    with bank.accounts.worker() as worker:
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 1, 1)
        assert bank.run.stop() == 0
        (bank.run.folder / "views.py").write_text(VIEWS.replace('"by": row', '"of": row'))
        bank.run.start()
        wait_for("it is filled again", lambda: "of" in bank.document("ada"))
        wait_for("the pipelines run", bank.run.is_well)
        for number in range(2, 8):
            bank.send(worker, "ada", 1)
            bank.wait_until_shown("ada", number, number)
        wait_for("it was asked again", lambda: "redis:account" not in _open_for(worker))
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 8, 8)
        assert bank.document("ada")["of"] == "deposit" and "by" not in bank.document("ada")
        assert "mysql:account_by_balance" in _open_for(worker)


def test_a_store_that_hangs_or_is_down_delays_no_command_and_comes_back(
    mysql_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis").mkdir()
    (tmp_path / "run").mkdir()
    cache = stack.redis.start(tmp_path / "redis")
    try:
        with pushed(mysql_server, cache, tmp_path / "run", monkeypatch) as bank:
            assert bank.run.stop() == 0
            with bank.accounts.worker() as worker:
                bank.send(worker, "ada", 1)
                bank.wait_until_shown("ada", 1, 1)
                cache.pause()
                assert _longest(bank, worker, 40) < 2
                wait_for("the other store gets it", lambda: bank.indexed("ada") == (41, 41))
                cache.resume()
                bank.wait_until_shown("ada", 41, 41)
                cache.kill()
                assert _longest(bank, worker, 40) < 2
                wait_for("the other store gets it", lambda: bank.indexed("ada") == (81, 81))
                assert bank.accounts.state("ada") == ({"balance": 81, "tags": ["t81", "all"]}, 81)
                cache.start()
                wait_for("it is pushed to again", lambda: "redis:account" in _open_for(worker))
                bank.send(worker, "ada", 1)
                bank.wait_until_shown("ada", 82, 82)
                cache.pause()
                bank.send(worker, "ada", 1)
                began = time.monotonic()
            assert time.monotonic() - began < 5, "the end waited for a store that hangs"
            cache.resume()
    finally:
        cache.kill()


def _longest(bank: Pushed, worker: CommandWorker, count: int) -> float:
    """Of so many commands, in seconds."""
    longest = 0.0
    for _ in range(count):
        began = time.monotonic()
        bank.send(worker, "ada", 1)
        longest = max(longest, time.monotonic() - began)
    return longest


def test_a_view_whose_place_was_dropped_is_pushed_to_again_once_it_is_filled_again(bank: Pushed) -> None:
    with bank.accounts.worker() as worker:
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 1, 1)
        assert bank.run.stop() == 0
        ask(bank.mysql, "DROP TABLE viewtail.account_by_balance")
        bank.send(worker, "ada", 1)
        wait_for("the others are pushed to", lambda: "mysql:account_by_tag" in _open_for(worker) and _gone(worker))
        there = "SELECT 1 FROM information_schema.tables WHERE table_name = 'account_by_balance'"
        assert ask(bank.mysql, there) == [], "a table that it made would hide the loss"
        bank.run.start()
        bank.wait_until_shown("ada", 2, 2, 60)
        bank.wait_until_filled()
        wait_for("it is pushed to", lambda: "mysql:account_by_balance" in _open_for(worker))
        assert bank.run.stop() == 0
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 3, 3)


def _gone(worker: CommandWorker) -> bool:
    return "mysql:account_by_balance" not in _open_for(worker)


def test_what_was_announced_and_not_committed_is_not_shown(bank: Pushed) -> None:
    assert bank.run.stop() == 0
    with bank.accounts.worker() as worker:
        bank.send(worker, "ada", 1)
        bank.wait_until_shown("ada", 1, 1)
        pushers: Any = worker._pushes._pushing
        with bank.client() as connection, connection.cursor() as cursor:
            cursor.execute(_INSERT, (666,))
            given_up = {"ada": 2}
            worker._pushes.announce(given_up)
            wait_for("it was read", lambda: all(one._ahead and one._ahead[-1].newest is given_up for one in pushers))
            assert all(one._ahead[-1].writes for one in pushers)
            connection.rollback()
            cursor.execute(_INSERT, (5,))
            connection.commit()
        worker._pushes.hand({"ada": 2})  # equal, and another transaction
        bank.wait_until_shown("ada", 5, 2)


def test_no_command_takes_versions_that_are_ahead_of_a_pipeline_for_damage(bank: Pushed) -> None:
    is_over = threading.Event()

    def send() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            bank.send(worker, f"e{number % 20}", 1)

    with bank.accounts.worker() as worker:
        sender = threading.Thread(target=send)
        sender.start()
        try:
            wait_for("they are pushed", lambda: bank.indexed("e1") is not None)
            for command in (
                ("verify",),
                ("status",),
                ("wait", "mysql:account_by_balance"),
                ("why", "redis:account", "e1"),
                ("verify", "--repair"),
                ("replay", "mysql:account_by_balance", "--key", "e1"),
                ("status",),
            ):
                done = bank.run.command(*command)
                assert done.returncode == 0, (command, done.stdout, done.stderr)
            assert bank.run.command("pause", "--pipeline", "redis").returncode == 0
            wait_for("it is paused", lambda: "paused" in bank.run.command("status").stdout)
            before = bank.document("e1")["balance"]
            wait_for("it is pushed to all the same", lambda: bank.document("e1")["balance"] > before + 3)
            assert bank.run.command("resume", "--pipeline", "redis").returncode == 0
            wait_for("it goes on", lambda: "paused" not in bank.run.command("status").stdout)
            wait_for("all is well", bank.run.is_well)
            done = bank.run.command("verify")
            assert done.returncode == 0, (done.stdout, done.stderr)
        finally:
            is_over.set()
            sender.join()
    assert ask(bank.mysql, "SELECT * FROM viewtail.dead_letter") == []


def test_commands_are_handled_where_the_views_cannot_be_loaded_and_the_log_says_why(
    bank: Pushed, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in ("views = 5 +", "import nothing_like_it", "views = []", "raise SystemExit(3)"):
        (bank.run.folder / "wrong.py").write_text(wrong)
        settings = bank.accounts._loaded.model_copy(update={"views": "wrong:views"})
        caplog.clear()
        accounts = type(bank.accounts)("bank.account", bank.accounts.handlers, settings=settings)
        with accounts.worker() as worker:
            bank.send(worker, "ada", 1)
        assert "nothing is pushed" in caplog.text and "wrong.py" in caplog.text


def test_a_worker_that_is_killed_between_its_commit_and_its_push_loses_nothing(bank: Pushed) -> None:
    folder = bank.run.folder
    environment = {name: value for name, value in bank.run.environment().items() if name.startswith("VIEWTAIL_")}
    served = Served(folder, bank.mysql.port, **environment)
    (folder / "views.py").write_text(VIEWS.replace('row["state"]["tags"]', '["all"]'))  # as these handlers write it
    assert bank.run.stop() == 0
    bank.run.start()
    bank.wait_until_filled()
    assert bank.run.stop() == 0
    try:
        served.start(VIEWTAIL_FAILPOINT=f"{failpoints.PUSH_STEP}:3")
        assert served.post("ada", "deposit", "1", amount=5).status == 200
        bank.wait_until_shown("ada", 5, 1)
        with suppress(OSError, HTTPException):  # each of two stores has been pushed to; the third time is the end
            served.post("ada", "deposit", "2", amount=3)
        assert served.ended() == -signal.SIGKILL
        assert ask(bank.mysql, "SELECT MAX(version) FROM bank.account WHERE entity_id = 'ada'") == [(2,)]
        shown = bank.indexed("ada"), (bank.document("ada") or {}).get("balance")
        assert shown != ((8, 2), 8), "it was pushed before the process was killed"
        bank.run.start()
        bank.wait_until_shown("ada", 8, 2, 60)
        wait_for("all is well", bank.run.is_well)
        served.start()
        assert served.post("ada", "deposit", "2", amount=3).body["is_repeated"]
        assert bank.run.stop() == 0
        assert served.post("ada", "deposit", "3", amount=1).status == 200
        bank.wait_until_shown("ada", 9, 3)
    finally:
        served.kill()


@pytest.mark.elasticsearch
def test_search_documents_are_pushed_too(
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indices = Indices(elasticsearch_server)
    indices.drop(["pushed"])
    views = VIEWS.replace(
        "views = [",
        'views = [SearchIndex("pushed", account, fields={"balance": "long", "by": "keyword", "at": "date"}, '
        "document=lambda row: {**shown(row), 'at': row['committed_at'][:10]}, where=is_open, push=True),",
    )
    views = views.replace("import Entity,", "import Entity, SearchIndex,")
    more = {"VIEWTAIL_ELASTICSEARCH__URL": elasticsearch_server.url}
    with pushed(mysql_server, redis_server, tmp_path, monkeypatch, views=views, more=more) as bank:
        assert bank.run.stop() == 0
        with bank.accounts.worker() as worker:
            bank.send(worker, "ada", 5)
            bank.send(worker, "eve", 2)
            bank.send(worker, "ada", 1)
            worker.submit(bank.command("eve", name="close")).result(20)

            def stored() -> bool:
                found = indices.stored("pushed", ["ada", "eve"])
                return found[0]["_source"].get("balance") == 6 and found[1]["_source"] == {"viewtail_deleted": True}

            wait_for("documents are pushed", stored)
        bank.run.start()
        wait_for("the pipeline came", lambda: bank.unpushed("eve") == 2)
        done = bank.run.command("verify")
        assert done.returncode == 0, (done.stdout, done.stderr)
    indices.drop(["pushed"])
