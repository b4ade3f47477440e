"""A bank with old events, on a server of the stack, and what is in its table and its archive."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from projectors.throttle import Throttles
from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses
from viewtail import settings
from viewtail.entities import Command, EventSourced, Refusal
from viewtail.entities.archive_steps import ArchiveSteps
from viewtail.entities.event_table import EventTable
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

Steps = TypeVar("Steps", bound=ArchiveSteps)

COLUMNS = "event_id, entity_id, version, command_id, command_name, request, response, state, committed_at"
OLD = "90d"


def deposit(state: Any, request: Any) -> tuple[Any, Any]:
    balance = (0 if state is None else state["balance"]) + request["amount"]
    if balance < 0:
        raise Refusal("not enough")
    return {"balance": balance}, {"balance": balance}


class OldBank:
    """`entities` of them, each with `events`, all a year old; event v of an entity added v to its balance."""

    def __init__(
        self, server: Server, folder: Path, *, entities: int = 4, events: int = 300, views: str = "views = []"
    ):
        self.server, self.folder = server, folder
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        environment = addresses(server)
        self.accounts = EventSourced("bank.account", {"deposit": deposit}, settings=settings.load(None, environment))
        for database in ("bank", "viewtail", "old"):
            ask(server, f"DROP DATABASE IF EXISTS {database}")
        ask(server, "CREATE DATABASE old")
        ask(server, "CREATE DATABASE viewtail")
        self.accounts.create()
        ask(
            server,
            "INSERT INTO bank.account (entity_id, version, command_id, command_name, request, response, state, "
            "committed_at) WITH RECURSIVE v AS (SELECT 1 AS v UNION ALL SELECT v + 1 FROM v WHERE v < "
            f"{events}), e AS (SELECT 1 AS e UNION ALL SELECT e + 1 FROM e WHERE e < {entities}) "
            """SELECT CONCAT('e', e), v, CONCAT('c', v), 'deposit', CONCAT('{"amount":', v, '}'), """
            """CONCAT('{"balance":', v * (v + 1) DIV 2, '}'), CONCAT('{"balance":', v * (v + 1) DIV 2, '}'), """
            "CURRENT_TIMESTAMP(6) - INTERVAL 400 DAY + INTERVAL v HOUR FROM v JOIN e ORDER BY v, e",
        )
        self.run = Run(folder, views, environment)
        self.all = self.live()

    def live(self) -> list[tuple[Any, ...]]:
        return ask(self.server, f"SELECT {COLUMNS} FROM bank.account ORDER BY event_id")

    def archived(self, columns: str = COLUMNS, table: str = "bank.account_archive") -> list[tuple[Any, ...]]:
        """Nothing where there is no archive yet."""
        schema, name = table.split(".")
        there = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{schema}' AND table_name = '{name}'"
        return ask(self.server, f"SELECT {columns} FROM {table} ORDER BY event_id") if ask(self.server, there) else []

    def check_nothing_is_lost_or_twice(self) -> None:
        """Each event is in one of both places, and of each entity those in the table have no gap."""
        live, archived = [row[0] for row in self.live()], [row[0] for row in self.archived()]
        assert sorted(live + archived) == [row[0] for row in self.all]
        gaps = ask(
            self.server,
            "SELECT entity_id FROM bank.account GROUP BY entity_id HAVING COUNT(*) <> MAX(version) - MIN(version) + 1",
        )
        assert gaps == []

    def newest(self) -> set[tuple[str, int]]:
        rows = ask(self.server, "SELECT entity_id, MAX(version) FROM bank.account GROUP BY entity_id")
        return {(entity, version) for entity, version in rows}

    def archive(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run.command("archive", "bank.account", "--older-than", OLD, "--keep-last", "--yes", *arguments)

    def restore(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run.command("restore", "bank.account", "--yes", *arguments)

    @contextmanager
    def steps(self, kind: type[Steps]) -> Iterator[Steps]:
        """In this process."""
        with closing(self.session()) as connection:
            stop = threading.Event()
            steps = kind(connection=connection, table=EventTable("bank.account"), throttle=Throttles(), stop=stop)
            steps.check()
            yield steps

    def session(self) -> Connection:
        return open_session(self.address, role="store")


def sent(entity: str, number: int, amount: int | None = None) -> Command:
    """As it was sent when event `number` of the entity came of it."""
    request = {"amount": number if amount is None else amount}
    return Command(entity_id=entity, command_id=f"c{number}", name="deposit", request=request)
