"""What a statement means for a followed table where it writes the table's name in another case."""

from __future__ import annotations

import pytest

from ingest.binlog.statements import STRICT, judge
from viewtail import Entity, RedisHash
from viewtail.changes.batches import Followed, TableChangeKind
from viewtail.changes.tables import Column, Kind, Table
from viewtail.operations.contract import Contract
from viewtail.operations.sql_files import statements

COLUMNS = tuple(
    Column(name=name, kind=Kind.INTEGER, declared="int", is_nullable=name == "age") for name in ("id", "age")
)
MEANT = {
    "TRUNCATE Shop.USER": TableChangeKind.EMPTIED,
    "TRUNCATE TABLE USER": TableChangeKind.EMPTIED,  # of the default database
    "DROP TABLE SHOP.USER": None,
    "DROP DATABASE SHOP": None,
    "RENAME TABLE Shop.USER TO Shop.old, shop.New TO SHOP.User": TableChangeKind.REPLACED,
    "RENAME TABLE shop.user TO Shop.Old, Shop.NEW TO shop.USER": TableChangeKind.REPLACED,
    "RENAME TABLE shop.new TO shop.Tmp, shop.USER TO shop.old, shop.TMP TO shop.User": TableChangeKind.REPLACED,
    "ALTER TABLE SHOP.other EXCHANGE PARTITION p WITH TABLE Shop.USER": TableChangeKind.REPLACED,
    "ALTER TABLE Shop.USER DROP COLUMN AGE": None,
    "ALTER TABLE Shop.USER TRUNCATE PARTITION p": TableChangeKind.THINNED,
}


def user(schema: str = "shop", name: str = "user") -> Followed:
    return Followed(Table(schema=schema, name=name, columns=COLUMNS, primary_key=("id",)), ("id", "age"))


@pytest.mark.parametrize("statement", MEANT)
@pytest.mark.parametrize("table", [user(), user("Shop", "User")], ids=["setting-1", "setting-2"])
def test_where_case_tells_no_names_apart_the_statement_is_about_the_table(statement: str, table: Followed) -> None:
    (verdict,) = judge(statement, "SHOP", [table], STRICT, folds_names=True)
    assert verdict.kind is MEANT[statement]
    assert "differs in case" not in verdict.why


@pytest.mark.parametrize("statement", MEANT)
def test_where_case_tells_names_apart_the_statement_is_about_another_table(statement: str) -> None:
    found = judge(statement, "SHOP", [user()], STRICT, folds_names=False)
    if statement.startswith("RENAME TABLE shop.user"):
        assert [verdict.kind for verdict in found] == [None] and "is called Shop.Old now" in found[0].why
    else:
        assert found == []


@pytest.mark.parametrize("statement", MEANT)
def test_where_nobody_knows_the_setting_the_table_halts(statement: str) -> None:
    (verdict,) = judge(statement, "SHOP", [user()], STRICT)
    assert verdict.kind is None


def test_a_column_is_added_to_a_table_in_capitals() -> None:
    added = "ALTER TABLE Shop.USER ADD COLUMN town INT"
    assert [verdict.kind for verdict in judge(added, "", [user()], folds_names=True)] == [TableChangeKind.EXTENDED]
    assert judge(added, "", [user()], folds_names=False) == []


@pytest.mark.parametrize(("folds", "breaks"), [(True, [False]), (False, []), (None, [True])])
def test_the_contract_check_has_the_server_s_setting(folds: bool | None, breaks: list[bool]) -> None:
    views = [RedisHash("user", Entity("shop.user"), fields=["age"])]
    text = "USE Shop; CREATE TABLE Fresh LIKE shop.USER; RENAME TABLE USER TO gone, SHOP.fresh TO User;"
    contract = Contract(views, lambda *_: user().table, "shop", folds)
    assert [effect.breaks for effect in contract.check(statements(text))] == breaks
