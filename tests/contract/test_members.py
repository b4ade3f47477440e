"""Who is there, who hangs, and who owned a pipeline: as the server says it, on MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from offsets import Owner, members, owners, schema
from offsets.members import Membership
from stack import Server
from viewtail.servers.sessions import Connection, MySQLAddress, open_session, quote

DATABASE = "members_contract"


class Place:
    """viewtail's own tables, made anew."""

    def __init__(self, server: Server) -> None:
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        with closing(self.open()) as session, session.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            schema.create(session, self.address, DATABASE, schema.STORE_TABLES, role="store")
            cursor.execute(f"INSERT INTO {DATABASE}.pipeline (id, name, fence) VALUES (1, 't.0.redis', 0)")
            session.commit()

    def open(self) -> Connection:
        return open_session(self.address, role="store")

    def silent(self) -> dict[str, bool]:
        with closing(self.open()) as session, session.cursor() as cursor:
            return {one.name: one.is_silent for one in members.read(cursor, DATABASE)}

    @contextmanager
    def member(self, name: str) -> Iterator[Membership]:
        with closing(self.open()) as session:
            found = Membership(session, DATABASE, name)
            found.begin("redis", is_in_group=True)
            yield found

    def take(self, monkeypatch: pytest.MonkeyPatch, name: str, fence: int) -> str | None:
        monkeypatch.setattr(owners, "this_process", lambda: name)
        with closing(self.open()) as session, session.cursor() as cursor:
            cursor.execute(f"UPDATE {DATABASE}.pipeline SET fence = %s", (fence,))
            return owners.took(lambda: session, DATABASE, self.owner(fence))

    def owner(self, fence: int) -> Owner:
        return Owner(quote(DATABASE, "pipeline"), 1, fence)

    def owned(self) -> list[Any]:
        with closing(self.open()) as session, session.cursor() as cursor:
            return [(one.process, one.fence, one.is_fenced) for one in owners.read(cursor, DATABASE)]


@pytest.fixture(params=["mysql", "mariadb"])
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.getfixturevalue(f"{request.param}_server"))


def test_a_member_whose_session_ended_is_silent_until_it_comes_again(place: Place) -> None:
    with place.member("a:1") as first:
        with place.member("b:2"):
            assert (place.silent(), first.count("redis")) == ({"a:1": False, "b:2": False}, 2)
        assert (place.silent(), first.count("redis"), first.count("kafka")) == ({"a:1": False, "b:2": True}, 1, 0)
        with place.member("b:2") as again:
            assert place.silent() == {"a:1": False, "b:2": False}
            again.end()
        assert place.silent() == {"a:1": False}


def test_a_silent_member_is_forgotten_after_a_while(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.member("b:2"):
        pass
    with place.member("a:1") as first:
        first.count("redis")
        assert place.silent() == {"a:1": False, "b:2": True}
        monkeypatch.setattr(members, "FORGET_AFTER_S", -1)
        first.count("redis")
        assert place.silent() == {"a:1": False}


def test_who_took_a_pipeline_from_one_that_had_not_given_it_up_is_known(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.take(monkeypatch, "a:1", 1) is None
    assert place.take(monkeypatch, "b:2", 2) == "a:1"
    assert place.owned() == [("a:1", 1, True), ("b:2", 2, False)]
    with closing(place.open()) as session:
        assert owners.gave_up(lambda: session, DATABASE, place.owner(1)), "another one has it"
        assert not owners.gave_up(lambda: session, DATABASE, place.owner(2))
    assert place.owned() == [("a:1", 1, False), ("b:2", 2, False)]
    assert place.take(monkeypatch, "c:3", 3) is None, "it was free"
    assert place.take(monkeypatch, "c:3", 4) is None, "it had it"
    for fence in range(5, 20):
        place.take(monkeypatch, f"d:{fence}", fence)
    assert len(place.owned()) == owners.KEPT
