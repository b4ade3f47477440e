"""Views of entities whose key is a unique key, not the primary one: they halt when nothing makes it unique any more."""

from __future__ import annotations

from typing import Any

import pytest

from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from tests.support.pipelines import deployed, owned

VIEW = IndexTable("ix_keyed", Entity("keyed.item", key=("ext",)), value="name")
TABLE = (
    "CREATE TABLE keyed.item (id INT PRIMARY KEY, ext VARCHAR(20) NOT NULL, code INT NOT NULL, name VARCHAR(40), "
    "UNIQUE KEY by_ext (ext), UNIQUE KEY by_code (code), KEY by_name (name))"
)


class Item:
    """The table keyed.item, and what the index table shows of it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.execute("DROP DATABASE IF EXISTS keyed", "DROP DATABASE IF EXISTS viewtail")
        self.execute("CREATE DATABASE keyed", TABLE, "INSERT INTO keyed.item VALUES (1, 'a', 1, 'one')")

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self._rows(statement)

    def shown(self) -> dict[str, str]:
        return dict(self._rows("SELECT ext, name FROM viewtail.ix_keyed WHERE name IS NOT NULL"))  # type: ignore[arg-type]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return ask(self._server, query)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE keyed.item DROP INDEX by_ext, ADD INDEX by_ext (ext)",
        "DROP INDEX BY_EXT ON keyed.item",
        "ALTER TABLE keyed.item RENAME INDEX by_ext TO renamed",
        "ALTER TABLE keyed.item MODIFY ext VARCHAR(20), ALGORITHM=INPLACE",
    ],
)
def test_a_view_halts_with_the_unique_key_that_it_relies_on(statement: str, mysql_server: Server) -> None:
    item = Item(mysql_server)
    catalog = deployed([VIEW], mysql_server)
    with owned(catalog, "mysql") as owner:
        owner.fill_all()
        item.execute(statement)
        if "DROP" in statement:
            item.execute("INSERT INTO keyed.item VALUES (2, 'a', 2, 'shares the key')")
        if "MODIFY" in statement:
            item.execute("INSERT INTO keyed.item VALUES (2, NULL, 2, 'has no key')")
        item.execute("INSERT INTO keyed.item VALUES (3, 'c', 3, 'behind it')")
        owner.pass_everything()
        record = owner.own.life.states.read(VIEW.id)
        assert record.state == "halted" and record.reason is not None
        for words in (statement[:30], "unique key (ext)", f"viewtail replay {VIEW.id}"):
            assert words in record.reason
        assert item.shown() == {"a": "one"}
    if "RENAME" not in statement:
        missing = "may be NULL" if "MODIFY" in statement else "no unique key"
        assert missing in (catalog.misfit(VIEW) or ""), "a replay says what is missing"


def test_other_indexes_may_come_and_go(mysql_server: Server) -> None:
    item = Item(mysql_server)
    with owned(deployed([VIEW], mysql_server), "mysql") as owner:
        owner.fill_all()
        item.execute(
            "ALTER TABLE keyed.item DROP INDEX by_name, RENAME INDEX by_code TO renamed",
            "DROP INDEX renamed ON keyed.item",
            "ALTER TABLE keyed.item MODIFY ext VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL COMMENT 'a key'",
            "INSERT INTO keyed.item VALUES (3, 'c', 1, 'behind it')",
        )
        owner.pass_everything()
        assert owner.state(VIEW.id) == "filled"
        assert item.shown() == {"a": "one", "c": "behind it"}


def test_a_swapped_in_table_is_known_by_its_own_indexes(mysql_server: Server) -> None:
    """The pipeline is taken anew for it: by the description of before, a DROP of their names meant nothing."""
    item = Item(mysql_server)
    with owned(deployed([VIEW], mysql_server), "mysql") as owner:
        owner.fill_all()
        item.execute(
            "CREATE TABLE keyed.other LIKE keyed.item",
            "ALTER TABLE keyed.other RENAME INDEX by_ext TO ext_unique",
            "INSERT INTO keyed.other SELECT * FROM keyed.item",
            "RENAME TABLE keyed.item TO keyed.gone, keyed.other TO keyed.item",
        )
        owner.pass_everything()
        assert owner.to_fill() == [VIEW.id] and owner.own.life.projections.is_halted(VIEW.id)
    with owned(deployed([VIEW], mysql_server), "mysql") as owner:
        owner.fill_all()
        item.execute("DROP INDEX ext_unique ON keyed.item")
        owner.pass_everything()
        assert owner.state(VIEW.id) == "halted"
