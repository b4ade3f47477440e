"""An index table that somebody emptied or dropped is noticed while nothing is written, in MySQL and in MariaDB."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest

from projectors.stores.index_tables import losses
from projectors.stores.index_tables.sink import MySQLSink
from stack.server import Server
from tests.contract.sinks import MySQLListOne, MySQLOne, MySQLTableOne, of_view
from tests.support.missing import missing
from viewtail.changes.errors import StoreUnavailableError
from viewtail.changes.writes import Key, Write

KINDS = {"index": MySQLOne, "list": MySQLListOne, "table": MySQLTableOne}
ROWS: dict[Key, Write] = {(key,): Write(5, (f"e{key}", "n")) for key in range(1, 6)}
EMPTIED = {
    "truncated": "TRUNCATE {table}",
    "deleted": "DELETE FROM {table}",
    "dropped": "DROP TABLE {table}",
    "made again": "CREATE TABLE {table}_2 LIKE {table}; DROP TABLE {table}; RENAME TABLE {table}_2 TO {table}",
}
KEPT = {
    "indexed": "ALTER TABLE {table} ADD INDEX theirs_idx ({column})",
    "rebuilt": "OPTIMIZE TABLE {table}",
    "at one end": "DELETE FROM {table} WHERE id = 1",
}


class Emptied:
    """A sink whose person view has rows that were seen, and the plain SQL of a stranger."""

    def __init__(self, store: MySQLOne) -> None:
        self.store, self.view = store, store.person
        self.table = f"{store.database}.{self.view.view.name}"
        self.sink: MySQLSink = store.sink(self.view)
        self.sink.prepare()
        self.write(ROWS)
        self.sink.settle()

    def write(self, writes: dict[Key, Write]) -> None:
        assert self.sink.write([of_view(self.view, writes)], None) == []
        self.store.finish(self.sink)

    def ask(self, statements: str) -> None:
        address = self.store.address
        with pymysql.connect(host=address.host, port=address.port, user="root", autocommit=True) as connection:
            for statement in statements.format(table=self.table, column=self.view.values[0].name).split("; "):
                connection.cursor().execute(statement)

    def close(self) -> None:
        self.sink.close()
        self.store.close()


@pytest.fixture(params=[(server, kind) for server in ("mysql", "mariadb") for kind in KINDS], ids="-".join)
def emptied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emptied]:
    server, kind = request.param
    monkeypatch.setattr(losses, "LOOK_EVERY_S", 0.0)
    found: Server = request.getfixturevalue(f"{server}_server")
    one = Emptied(KINDS[kind](found, f"emptied_{kind}"))
    yield one
    one.close()


@pytest.mark.parametrize("how", EMPTIED)
def test_a_table_that_somebody_emptied_is_missing_once(emptied: Emptied, how: str) -> None:
    emptied.ask(EMPTIED[how])
    with pytest.raises(StoreUnavailableError, match=r"somebody (emptied|dropped)"):
        emptied.sink.settle()
    assert missing(emptied.sink) == {emptied.view.id}
    emptied.sink.settle()
    emptied.write({key: Write(9, write.values) for key, write in ROWS.items()})
    emptied.sink.settle()
    emptied.sink.settle()
    assert missing(emptied.sink) == set()


def test_rows_that_come_behind_a_truncate_do_not_hide_it(emptied: Emptied) -> None:
    emptied.ask("TRUNCATE {table}")
    emptied.write({(3,): Write(9, ("e", "n")), (7,): Write(9, ("e", "n"))})
    with pytest.raises(StoreUnavailableError, match="somebody emptied"):
        emptied.sink.settle()
    assert missing(emptied.sink) == {emptied.view.id}


@pytest.mark.parametrize("how", KEPT)
def test_a_table_that_keeps_its_rows_is_not_filled_again(emptied: Emptied, how: str) -> None:
    emptied.ask(KEPT[how])
    emptied.sink.settle()
    assert missing(emptied.sink) == set()


def test_entities_that_are_deleted_or_show_nothing_are_no_loss(emptied: Emptied) -> None:
    emptied.write({key: Write(9, None) for key in ROWS})
    emptied.sink.settle()
    emptied.write({key: Write(11, (None, None)) for key in ROWS})
    emptied.sink.settle()
    emptied.sink.settle()
    assert missing(emptied.sink) == set()
