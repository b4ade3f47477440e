"""Keeps event-sourced entities: an entity is the result of its commands, each of which took effect once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pymysql

from viewtail.changes.errors import MisuseError, StoreError, ViewtailError
from viewtail.entities.archives import Archive
from viewtail.entities.commands import MOST_NAME, Handler
from viewtail.entities.declared_requests import declared
from viewtail.entities.event_table import NOT_AS_MADE, EventTable, read_in_one_snapshot
from viewtail.entities.pushes import pushes_of
from viewtail.entities.worker import HANGS_AFTER_S, PATIENCE_S, CommandWorker
from viewtail.servers.facts import facts_of
from viewtail.servers.patience import QUESTION, WORK, Patience
from viewtail.servers.sessions import Connection, asking, create_database, number_of, open_session, session_error

if TYPE_CHECKING:
    from viewtail.servers.sessions import MySQLAddress
    from viewtail.settings import Settings


class State(NamedTuple):
    """An entity's state after its event of this version."""

    state: Any
    version: int


class EventSourced:
    """Entities of one table, and what handles their commands.

        def deposit(state, request):
            balance = (state or {"balance": 0})["balance"] + request["amount"]
            return {"balance": balance}, {"balance": balance}

        accounts = EventSourced("bank.account", {"deposit": deposit})
        accounts.create()
        with accounts.worker() as worker:
            command = Command(entity_id="ada", command_id="1", name="deposit", request={"amount": 5})
            answer = worker.submit(command).result()

    Args:
        table: with its database; on the source's primary, as the settings have it.
        handlers: by command name. The state of an entity without events is None. The type hint of the request, where
            there is one (a pydantic model, a TypedDict, a dataclass), is what each request is checked against.
        settings: by default the environment's and viewtail.toml's.
    """

    def __init__(self, table: str, handlers: Mapping[str, Handler], *, settings: Settings | None = None) -> None:
        self.table = EventTable(table)
        self.handlers = dict(handlers)
        for name, handler in self.handlers.items():
            if not isinstance(name, str) or not 1 <= len(name) <= MOST_NAME:
                raise MisuseError(f"{table}: the name of a command is text of 1 to {MOST_NAME} characters")
            if not callable(handler):
                raise MisuseError(f"{table}: the handler of {name} is no function")
            declared(handler)
        self._settings = settings

    def with_settings(self, settings: Settings) -> EventSourced:
        """The same entities with these settings, unless they were declared with their own."""
        return self if self._settings is not None else EventSourced(self.table.name, self.handlers, settings=settings)

    def create(self) -> bool:
        """Make the table where it is missing, and its database; return whether it was missing."""
        with asking(self._address, role="store") as connection:
            create_database(connection, self.table.schema_and_table[0])
            is_new = not self.table.exists(connection)
            with connection.cursor() as cursor:
                cursor.execute(self.table.ddl(facts_of(connection)))
            return is_new

    def ddl(self) -> str:
        """The statement that `create` runs, for the server as it is."""
        with asking(self._address, role="store") as connection:
            return self.table.ddl(facts_of(connection))

    def check(self, patience: Patience = QUESTION) -> None:
        """Check that the table can be read. Raises StoreUnavailableError, StoreError, SettingsError."""
        with closing(self._open(patience)()) as connection:
            try:
                self.table.look(connection)
            except pymysql.err.MySQLError as error:
                raise self._error(error) from None

    def worker(self, *, hangs_after_s: float = HANGS_AFTER_S, patience_s: float = PATIENCE_S) -> CommandWorker:
        """Return a worker, which handles commands until it is closed. Workers of any processes may share a table.

        What it commits is pushed to the views of the table that ask for it, in the views module of the settings.
        """
        patience = Patience(
            connect_s=min(WORK.connect_s, patience_s),
            login_s=min(WORK.login_s, patience_s),
            answer_s=min(WORK.answer_s, patience_s),
        )
        return CommandWorker(
            self.table,
            self.handlers,
            self._open(patience),
            hangs_after_s=hangs_after_s,
            patience_s=patience_s,
            pushes=pushes_of(self.table, self._loaded),
        )

    def state(self, entity_id: str, *, version: int | None = None) -> State | None:
        """The entity's state now, or at a version; None if it has no events, or none of that version.

        Raises StoreUnavailableError, SettingsError, and StoreError: also for an event in a file that is not here."""
        with closing(self._open(QUESTION)()) as connection:
            try:
                read_in_one_snapshot(connection)
                if version is None:
                    event = self.table.newest(connection, [entity_id]).get(entity_id)
                else:
                    event = self.table.at(connection, entity_id, version)
                    event = event or Archive(self.table).at(connection, entity_id, version)
            except pymysql.err.MySQLError as error:
                raise self._error(error) from None
        if event is None:
            return None
        at, state, _ = event
        return State(orjson.loads(state), at)

    def _error(self, error: pymysql.err.MySQLError) -> ViewtailError:
        if number_of(error) in NOT_AS_MADE:
            return StoreError(
                f"{self.table.name}: {number_of(error)} {error.args[1]}. Make the table: viewtail entities create"
            )
        return session_error(error, self._address, "store")

    @property
    def _loaded(self) -> Settings:
        if self._settings is None:
            from viewtail import settings

            self._settings = settings.load(None)
        return self._settings

    @property
    def _address(self) -> MySQLAddress:
        return replace(self._loaded.primary_address(), database=None)

    def _open(self, patience: Patience = WORK) -> Callable[[], Connection]:
        address = replace(self._loaded.asked_with(patience).primary_address(), database=None)
        return lambda: open_session(address, role="store")
