"""Names with braces: which tables match, what a statement about one of them means, and many of them as one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.binlog import statements
from ingest.binlog.kind import BinlogKind
from ingest.canonical import tables
from ingest.canonical.parts import of_parts
from projectors.catalog import bound_for, check_apart
from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity, Group
from viewtail.changes.batches import Followed, TableChangeKind
from viewtail.changes.errors import DeclarationError
from viewtail.changes.masks import Masks
from viewtail.changes.patterns import Part, Pattern, pattern_of
from viewtail.changes.tables import Column, Kind, Table, full_name, names_of

INVOICE, USER = "app.org{account_id:int}_invoice", "tenant_{tenant}.user"


def pattern(text: str) -> Pattern:
    found = pattern_of(*names_of(text) or ("", ""))
    assert found is not None
    return found


def column(name: str, declared: str = "int", kind: Kind = Kind.INTEGER, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=False, **more)


def table(name: str, *columns: Column, key: tuple[str, ...] = ("id",)) -> Table:
    unique = {"unique_keys": (("number",),), "unique_names": ("invoice_number_key",)}
    return Table(schema="app", name=name, columns=columns, primary_key=key, **unique)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "schema", "name", "values"),
    [
        (INVOICE, "app", "org12_invoice", (12,)),
        (INVOICE, "app", "org0_invoice", (0,)),
        (INVOICE, "app", "org9223372036854775807_invoice", (2**63 - 1,)),
        (INVOICE, "app", "org9223372036854775808_invoice", None),
        (INVOICE, "app", "org012_invoice", None),
        (INVOICE, "app", "org-1_invoice", None),
        (INVOICE, "app", "org_invoice", None),
        (INVOICE, "app", "org12_invoices", None),
        (INVOICE, "app", "_org12_invoice", None),
        (INVOICE, "other", "org12_invoice", None),
        (USER, "tenant_a_b", "user", ("a_b",)),
        (USER, "tenant_", "user", None),
        (USER, "tenant_a", "users", None),
        ("m{x}.user", "mysql", "user", None),
        ("t_{a}.org{b:int}_c", "t_x", "org3_c", ("x", 3)),
        ("bank.account_##", "bank", "account_07", ()),
        ("bank.account_##", "bank", "account_7", None),
    ],
)
def test_a_name_matches_as_a_whole_and_gives_its_values(text: str, schema: str, name: str, values: Any) -> None:
    part = pattern(text).part(schema, name)
    assert (None if part is None else part.values) == values
    if values:
        assert pattern(text).of(values) == part


@given(
    st.text(st.characters(min_codepoint=1, max_codepoint=0xFFFF), min_size=1, max_size=12), st.integers(0, 2**63 - 1)
)
def test_values_lead_to_one_table_and_back(tenant: str, account: int) -> None:
    several = pattern("t_{tenant}.org{account:int}_x")
    part = several.of((tenant, account))
    assert part is not None and several.part(part.schema, part.name) == part
    two = pattern("t_{a}_{b}.user")
    if (found := two.of((tenant, f"{account}"))) is not None:
        assert found.values == (tenant, f"{account}"), "values that no name gives back have no table"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Entity("app.{x}"), "would be every name there is"),
        (lambda: Entity("app.o{x}{y}"), "nothing says where one value ends"),
        (lambda: Entity("app.o{x y}"), "{x y} is no column"),
        (lambda: Entity("app.o{x:text}"), "{x:text} is no column"),
        (lambda: Entity("app.o{x}_{x}"), "two braces are called x"),
        (lambda: Entity("app.o{x}_#"), "it has braces and #"),
        (lambda: Entity("a{x}_{y}.o{z}"), "it has 3 braces; 2 at most"),
        (lambda: Entity(INVOICE, key=["allowed_id"]), "key=['account_id', 'allowed_id']"),
        (lambda: Entity(INVOICE, key=["allowed_id", "account_id"]), "key=['account_id', 'allowed_id']"),
        (lambda: Entity(INVOICE, dropped="never"), "dropped is 'delete' or 'keep', not 'never'"),
        (lambda: Entity("app.user", dropped="keep"), "dropped='keep' is for many tables"),
        (lambda: Entity(INVOICE, version="account_id"), "version: account_id is in the tables' names"),
        (lambda: Group(INVOICE, by="a", values={}), "without braces or #"),
    ],
)
def test_what_cannot_be_many_tables_is_refused(declare: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(message)):
        declare()


def test_braces_in_backticks_are_part_of_a_name() -> None:
    assert Entity("app.`org{x}`").pattern is None and Entity("app", "org{x}").pattern is None
    assert names_of(full_name("a#{b}", "c{d}")) == ("a#{b}", "c{d}") and pattern_of("a#{b}", "c{d}") is None
    assert Entity("app", "org{x}").table == "app.`org{x}`" and Entity(INVOICE).table == INVOICE


def test_many_tables_have_the_columns_that_all_have_as_wide_as_the_widest() -> None:
    several = pattern(INVOICE)
    one = table("org1_invoice", column("id"), column("number", "varchar(10)", Kind.TEXT, length=10), column("old"))
    other = table("org2_invoice", column("id", "bigint"), column("number", "varchar(40)", Kind.TEXT, length=40))
    found = of_parts(several, [one, other])
    assert [(item.name, item.declared) for item in found.columns] == [
        ("account_id", "bigint"), ("id", "bigint"), ("number", "varchar(40)"),
    ]  # fmt: skip
    assert found.primary_key == ("account_id", "id") and found.unique_keys == (("account_id", "number"),)
    assert found.lacking == {"old": "app.org2_invoice has no column old"}
    text = table("org3_invoice", column("id"), column("number"))
    assert "org3_invoice has another column number" in of_parts(several, [one, text]).lacking["number"]
    for wrong, why in (
        (table("org4_invoice", column("id"), key=("number",)), "the primary key of app.org4_invoice"),
        (table("org5_invoice", column("id"), column("Account_ID")), "app.org5_invoice has a column Account_ID"),
    ):
        with pytest.raises(DeclarationError, match=why):
            of_parts(several, [one, wrong])


ORG = of_parts(pattern(INVOICE), [table("org1_invoice", column("id"), column("number"), column("spare"))])
FOLLOWED = Followed(ORG, ("account_id", "id", "number"))
MEMBER = Followed(of_parts(pattern(USER), [table("user", column("id"))]), ("tenant", "id"))
EMPTIED, LEFT, REPLACED = TableChangeKind.EMPTIED, TableChangeKind.LEFT, TableChangeKind.REPLACED
REDEFINED = TableChangeKind.REDEFINED


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE TABLE org7_invoice (id INT PRIMARY KEY)", [(REDEFINED, 7)]),
        ("CREATE TABLE IF NOT EXISTS org7_invoice LIKE org1_invoice", [(REDEFINED, 7)]),
        ("CREATE TABLE org7_invoice SELECT * FROM other.t", [(REDEFINED, 7)]),
        ("CREATE TABLE org7_invoice (id INT PRIMARY KEY) START TRANSACTION", [(REDEFINED, 7)]),
        ("CREATE OR REPLACE TABLE org7_invoice LIKE org1_invoice", [(LEFT, 7), (REDEFINED, 7)]),
        ("CREATE TEMPORARY TABLE org7_invoice LIKE org1_invoice", []),
        ("CREATE TABLE org007_invoice LIKE org1_invoice", []),
        ("TRUNCATE TABLE org7_invoice", [(EMPTIED, 7)]),
        ("TRUNCATE other.org7_invoice", []),
        ("DROP TABLE IF EXISTS app.`org7_invoice`, app.org8_invoice, org07_invoice", [(LEFT, 7), (LEFT, 8)]),
        ("DROP DATABASE app", [(LEFT, None)]),
        ("RENAME TABLE org1_invoice TO gone", [(LEFT, 1)]),
        ("RENAME TABLE staged TO org3_invoice", [(REPLACED, 3)]),
        ("RENAME TABLE org1_invoice TO org2_invoice", [(LEFT, 1), (REPLACED, 2)]),
        ("RENAME TABLE org1_invoice TO _old, _new TO org1_invoice", [(REPLACED, 1)]),
        ("ALTER TABLE org1_invoice RENAME TO app.org9_invoice", [(LEFT, 1), (REPLACED, 9)]),
        ("ALTER TABLE org1_invoice DROP COLUMN spare", []),
        ("ALTER TABLE org1_invoice ADD COLUMN more INT", [(TableChangeKind.EXTENDED, 1)]),
        ("ALTER TABLE org1_invoice MODIFY number BIGINT NOT NULL", [(TableChangeKind.WIDENED, 1)]),
        ("ALTER TABLE org1_invoice DROP PRIMARY KEY", [(None, 1)]),
        ("ALTER TABLE unread_org1 FORCE", []),
    ],
)
def test_a_statement_about_one_table_is_judged_for_that_one(statement: str, expected: list[Any]) -> None:
    verdicts = statements.judge(statement, "app", [FOLLOWED], statements.STRICT, folds_names=False)
    found = [(verdict.kind, *(verdict.part.values if verdict.part else ())) for verdict in verdicts]
    assert found == [(kind, *(() if value is None else (value,))) for kind, value in expected]


def test_a_dropped_schema_takes_the_tables_that_were_in_it() -> None:
    (verdict,) = statements.judge("DROP DATABASE tenant_a", "", [MEMBER], folds_names=False)
    assert (verdict.kind, verdict.part) == (LEFT, Part("tenant_a", "", ("a",)))
    assert statements.judge("DROP DATABASE other", "", [MEMBER], folds_names=False) == []
    (verdict,) = statements.judge("TRUNCATE TENANT_A.USER", "", [MEMBER], folds_names=True)
    assert verdict.part == Part("tenant_a", "user", ("a",))


def test_a_statement_that_cannot_be_read_halts_only_what_it_may_name() -> None:
    unread = "ALTER TABLE org1_invoice FLY TO THE MOON"
    (verdict,) = statements.judge(unread, "app", [FOLLOWED], folds_names=False)
    assert verdict.kind is None
    assert statements.judge(unread.replace("org1", "organisation"), "app", [FOLLOWED], folds_names=False) == []


class Server:
    """Stands for `Descriptions` of what its tables are now."""

    def __init__(self, *tables: Table) -> None:
        self._tables = {(each.schema, each.name): each for each in tables}

    def __call__(self, connection: Any, names: Any) -> Server:
        return self

    def has(self, schema: str, name: str) -> bool:
        return (schema, name) in self._tables

    def table(self, schema: str, name: str) -> Table:
        return self._tables[schema, name]


def test_a_part_is_compared_with_what_the_tables_have_not_with_their_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = column("number", "varchar(10)", Kind.TEXT, charset="utf8mb4", length=10, tags=("PPI",))
    several = of_parts(pattern(INVOICE), [table("org1_invoice", column("id"), text)])
    masks = Masks(secret=b"s" * 32)
    masked = masks.table(several, {}, [])
    assert masked.column("number") != several.column("number")
    wider = replace(text, declared="varchar(20)", length=20)
    monkeypatch.setattr(tables, "Descriptions", Server(table("org2_invoice", column("id"), wider)))
    now = tables.with_part(Mock(), masked, Part("app", "org2_invoice", (2,)))
    assert now.lacking == {} and now.column("number") == wider


def test_the_largest_next_number_is_that_of_tables_in_their_own_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    several = of_parts(pattern(USER), [table("user", column("id"))], [Part("tenant_a", "user", ("a",))])
    numbers = {("tenant_a", "user"): [("tenant_a", "user", 78)]}
    monkeypatch.setattr(tables, "facts_of", Mock())
    monkeypatch.setattr(
        tables,
        "_by_table",
        lambda connection, facts, asked, *rest: {name: rows for name, rows in numbers.items() if name in asked},
    )
    assert tables.next_number(Mock(), several) == 78


@pytest.mark.parametrize("name", ["invoice_lines__2", "invoice_lines__viewtail_3"])
def test_a_table_that_a_view_makes_beside_its_own_is_none_of_a_pattern(name: str) -> None:
    assert pattern("vt.{any}_lines__{number:int}").part("vt", "invoice_lines__2")
    several = Entity("vt.invoice_lines__{number}", key=["number", "id"])
    assert several.pattern is not None and several.pattern.part("vt", name) is not None
    with pytest.raises(DeclarationError, match="the view mysql:invoice_lines there, or a table"):
        check_apart(
            "vt",
            [
                IndexTable("lines", several, value="text"),
                IndexTable("invoice_lines", Entity("shop.line"), value="text"),
            ],
        )


def test_a_view_of_many_tables_is_not_pushed() -> None:
    log = Entity(INVOICE, key=["account_id", "id"], version="id2", append_only=True)
    with pytest.raises(DeclarationError, match="push=True is of one table"):
        IndexTable("pushed", log, value="number", push=True)


def test_a_table_of_two_patterns_is_named_at_the_start() -> None:
    first, second = Entity("app.{tenant}_invoice"), Entity("app.org_{org}")
    views = [IndexTable("first", first, value="number"), IndexTable("second", second, value="number")]
    check_apart("viewtail", views)
    by_entity = {}
    for entity, name in ((first, "org_x_invoice"), (second, "org_x_invoice"), (second, "org_y")):
        assert entity.pattern is not None
        by_entity.setdefault(entity.schema_and_table, []).append(entity.pattern.part("app", name))

    def described(schema: str, name: str) -> Table:
        found = pattern_of(schema, name)
        assert found is not None
        return of_parts(found, [table("org_x_invoice", column("id"), column("number"))], by_entity[schema, name])

    with pytest.raises(
        DeclarationError, match=r"the table app\.org_x_invoice is one of app\.\{tenant\}_invoice and of"
    ):
        bound_for(BinlogKind(), views, described)
