"""What `viewtail contract check` says of a migration, with and without knowing the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.stores.topics.views import Topic
from projectors.views import Entity, Group, View
from viewtail import Count, Many, Min, One, Sum
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.operations.contract import Contract, Effect
from viewtail.operations.sql_files import Statement, statements


def _column(name: str, kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=name != "id", **more)


USER = Table(
    schema="shop",
    name="user",
    columns=(
        _column("id", Kind.INTEGER, "int"),
        _column("email", Kind.TEXT, "varchar(60)", charset="utf8mb4", length=60),
        _column("name", Kind.TEXT, "varchar(60)", charset="utf8mb4", length=60),
        _column("unused", Kind.INTEGER, "int"),
    ),
    primary_key=("id",),
)
VIEWS: list[View] = [
    IndexTable("by_email", Entity("shop.user"), value="email"),
    RedisHash("user", Entity("shop.user"), fields=["name"]),
]


def describe(schema: str, name: str) -> Table:
    if (schema, name) != ("shop", "user"):
        raise DeclarationError(f"table {schema}.{name} does not exist")
    return USER


def effects(sql: str, views: list[View] = VIEWS, *, is_offline: bool = False) -> list[Effect]:
    return list(Contract(views, None if is_offline else describe, "shop").check(statements(sql)))


def broken(sql: str, views: list[View] = VIEWS, *, is_offline: bool = False) -> set[str]:
    return {effect.view for effect in effects(sql, views, is_offline=is_offline) if effect.breaks}


EMAIL, NAME = "mysql:by_email", "redis:user"


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("ALTER TABLE user DROP COLUMN email", {EMAIL}),
        ("ALTER TABLE shop.user RENAME COLUMN name TO full_name", {NAME}),
        ("ALTER TABLE user MODIFY email INT", {EMAIL}),
        ("ALTER TABLE user CHANGE email mail VARCHAR(60), DROP COLUMN name", {EMAIL, NAME}),
        ("ALTER TABLE user DROP PRIMARY KEY, ADD PRIMARY KEY (id, email)", {EMAIL, NAME}),
        ("ALTER TABLE user CONVERT TO CHARACTER SET latin1", {EMAIL, NAME}),
        ("ALTER TABLE user EXPLODE email", {EMAIL, NAME}),
        ("TRUNCATE TABLE user", {EMAIL, NAME}),
        ("DROP TABLE other, user", {EMAIL, NAME}),
        ("DROP DATABASE shop", {EMAIL, NAME}),
        ("CREATE OR REPLACE DATABASE shop", {EMAIL, NAME}),
        ("ALTER IGNORE TABLE user ADD UNIQUE (unused)", {EMAIL, NAME}),
        ("ALTER TABLE user ADD SYSTEM VERSIONING", {EMAIL, NAME}),
        ("ALTER TABLE user CONVERT PARTITION p0 TO TABLE more", {EMAIL, NAME}),
        ("ALTER ONLINE TABLE user ADD more INT", set()),
        ("RENAME TABLE user TO person", {EMAIL, NAME}),
        ("ALTER TABLE user DROP COLUMN unused", set()),
        ("ALTER TABLE user ADD COLUMN age INT, ADD INDEX (email)", set()),
        ("ALTER TABLE user DROP PARTITION p0", set()),
        ("USE other; TRUNCATE TABLE user; DROP TABLE email", set()),
        ("INSERT INTO log VALUES ('email')", set()),
        (("CREATE TABLE new LIKE user; ALTER TABLE new ADD COLUMN age INT;"
         "RENAME TABLE user TO old, new TO user; DROP TABLE old"), set()),
        (("CREATE TABLE new LIKE user; ALTER TABLE new DROP COLUMN name;"
         "RENAME TABLE user TO old, new TO user"), {NAME}),
        ("CREATE TABLE new (id INT PRIMARY KEY, email VARCHAR(90)); RENAME TABLE user TO old, new TO user", {NAME}),
        ("RENAME TABLE user TO old, unknown TO user", {EMAIL, NAME}),
    ],
)  # fmt: skip
def test_a_statement_breaks_the_views_that_use_what_it_changes(sql: str, views: set[str], is_offline: bool) -> None:
    if is_offline and "LIKE user" in sql:
        views = {EMAIL, NAME}  # what the table has beside what views name is not known
    assert broken(sql, is_offline=is_offline) == views


@pytest.mark.parametrize(
    ("sql", "is_broken"),
    [
        ("ALTER TABLE user MODIFY email VARCHAR(90)", False),
        ("ALTER TABLE user MODIFY email VARCHAR(20)", True),
        ("CREATE TABLE n LIKE user; ALTER TABLE n MODIFY email VARCHAR(20); RENAME TABLE user TO o, n TO user", False),
        ("CREATE TABLE n LIKE user; ALTER TABLE n MODIFY email INT; RENAME TABLE user TO o, n TO user", True),
        ("CREATE TABLE n LIKE user; ALTER TABLE n MODIFY id BIGINT; RENAME TABLE user TO o, n TO user", False),
        (("CREATE TABLE n LIKE user; ALTER TABLE n DROP PRIMARY KEY, ADD PRIMARY KEY (id, email);"
         "RENAME TABLE user TO o, n TO user"), True),
    ],
)  # fmt: skip
def test_types_are_compared_with_those_of_the_table_as_it_is(sql: str, is_broken: bool) -> None:
    assert (EMAIL in broken(sql)) is is_broken


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_unique_key_that_a_view_relies_on_is_part_of_the_contract(is_offline: bool) -> None:
    """Offline any index may be the one behind it."""
    keyed = replace(
        USER,
        columns=tuple(replace(column, is_nullable=False) for column in USER.columns),
        unique_keys=(("email",), ("unused",)),
        unique_names=("by_email", "by_unused"),
    )
    views: list[View] = [
        IndexTable("by_name", Entity("shop.user", key=("email",)), value="name"),
        RedisHash("user", Entity("shop.user"), fields=["name"]),
    ]

    def broken_by(sql: str) -> set[str]:
        contract = Contract(views, None if is_offline else lambda schema, name: keyed, "shop")
        return {effect.view for effect in contract.check(statements(sql)) if effect.breaks}

    assert broken_by("DROP INDEX by_email ON user") == {"mysql:by_name"}
    assert broken_by("ALTER TABLE user RENAME KEY by_email TO x") == {"mysql:by_name"}
    assert broken_by("CREATE OR REPLACE UNIQUE INDEX by_email ON user (name)") == {"mysql:by_name"}
    assert broken_by("ALTER TABLE user DROP INDEX by_unused") == ({"mysql:by_name"} if is_offline else set())
    assert broken_by("ALTER TABLE user ADD UNIQUE INDEX more (name)") == set()


def test_a_wider_column_is_told_of_index_tables_alone_and_breaks_nothing() -> None:
    views: list[View] = [VIEWS[0], RedisHash("user", Entity("shop.user"), fields=["email"])]
    (effect,) = effects("ALTER TABLE user MODIFY email VARCHAR(90), MODIFY id INT(11)", views)
    assert (effect.view, effect.breaks) == (EMAIL, False) and "made wider" in effect.why


def test_a_function_that_may_look_at_every_column_is_broken_by_each() -> None:
    views: list[View] = [RedisJson("card", Entity("shop.user"), document=lambda row: {"n": row["unused"]})]
    for is_offline in (False, True):
        assert broken("ALTER TABLE user DROP COLUMN unused", views, is_offline=is_offline) == {"redis:card"}
    assert broken("ALTER TABLE user ADD COLUMN other INT", views) == set()


@pytest.mark.parametrize(
    ("sql", "is_broken"),
    [
        ("UPDATE user SET email = NULL; DELETE FROM user; INSERT INTO user SELECT * FROM other", False),
        ("SET SESSION sql_log_bin = 0; UPDATE user SET email = NULL", True),
        ("SET sql_log_bin=OFF; DELETE FROM user; SET sql_log_bin=ON", True),
        ("SET sql_log_bin = 0; SET sql_log_bin = 1; DELETE FROM user", False),
        ("SET @@session.binlog_format = 'STATEMENT'; DELETE FROM user", True),
        ("SET GLOBAL binlog_format = ROW; DELETE FROM user", False),
    ],
)
def test_statements_that_the_source_logs_as_rows_break_nothing(sql: str, is_broken: bool) -> None:
    assert (EMAIL in broken(sql)) is is_broken


def test_each_effect_names_line_statement_view_and_reason() -> None:
    (effect,) = effects("-- first\n\nALTER TABLE other ADD a INT;\n  ALTER TABLE user\n  DROP COLUMN email;\n")
    assert effect == Effect(
        line=4,
        statement="ALTER TABLE user DROP COLUMN email",
        view=EMAIL,
        breaks=True,
        why="column email was dropped",
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a; b", [("a", 1), ("b", 1)]),
        ("a\n;\n\nb;", [("a", 1), ("b", 4)]),
        ("x ';' y; `;`; \"a;\"", [("x ';' y", 1), ("`;`", 1), ('"a;"', 1)]),
        ("-- a;\nb /* ; */ c; # d;\n", [("b /* ; */ c", 2)]),
        ("/*!80000 a; */ b", [("/*!80000 a; */ b", 1)]),
        ("DELIMITER //\na; b;//\nDELIMITER ;\nc;", [("a; b;", 2), ("c", 4)]),
        ("; ;\n", []),
        ("use other\n\\u more\na;", [("USE other", 1), ("USE more", 2), ("a", 3)]),
        ("DELIMITER //\nUSE a//\nb;//", [("USE a", 2), ("b;", 3)]),
        ("a\\G\nb \\g c;", [("a", 1), ("b", 2), ("c", 2)]),
        ("source more.sql\n\\. x\n\\! ls\na;", [("source more.sql", 1), ("\\. x", 2), ("\\! ls", 3), ("a", 4)]),
        ("warnings\n\\W\ntee out\na;\nquit\n", [("a", 4)]),
        ("/*M!999999\\- enable the sandbox mode */\na;", [("a", 2)]),
    ],
)
def test_a_file_is_split_as_the_mysql_client_does(sql: str, expected: list[tuple[str, int]]) -> None:
    assert statements(sql) == [Statement(text, line) for text, line in expected]


CODED = replace(
    USER,
    columns=(
        *USER.columns,
        Column(name="code", kind=Kind.TEXT, declared="varchar(9)", is_nullable=False, charset="utf8mb4", length=9),
    ),
    unique_keys=(("code",),),
    unique_names=("by_code",),
)
BY_CODE = IndexTable("by_code", Entity("shop.user", key="code"), value="name")
SWAP = "; RENAME TABLE user TO _old, nw TO user"
COLUMNS = "email VARCHAR(60), name VARCHAR(60)"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (f"CREATE TABLE nw (id INT, {COLUMNS}, code VARCHAR(9) NOT NULL UNIQUE)", "no primary key"),
        ("CREATE TABLE nw LIKE user; ALTER TABLE nw DROP PRIMARY KEY", "no primary key"),
        (
            f"CREATE TABLE nw (id INT PRIMARY KEY, {COLUMNS}, code VARCHAR(9) NOT NULL)",
            "no unique key (code)",
        ),
        ("CREATE TABLE nw LIKE user; ALTER TABLE nw DROP INDEX by_code", "no unique key (code)"),
        (
            f"CREATE TABLE nw (id INT PRIMARY KEY, {COLUMNS}, code VARCHAR(9) NOT NULL, UNIQUE (code, (lower(name))))",
            "no unique key (code)",
        ),
        (
            "CREATE TABLE nw LIKE user; ALTER TABLE nw MODIFY name VARCHAR(60) AS (email) STORED",
            "its column name is now computed",
        ),
        (
            f"CREATE TABLE nw (id INT KEY, {COLUMNS} AS (UPPER(email)), code VARCHAR(9) NOT NULL UNIQUE)",
            "its column name is now computed",
        ),
    ],
)
def test_a_swapped_in_table_must_have_the_keys_and_the_kind_of_columns_that_the_view_has(sql: str, why: str) -> None:
    found = list(Contract([BY_CODE], lambda *_: CODED, "shop").check(statements(sql + SWAP)))
    assert [effect.breaks for effect in found] == [True] and why in found[0].why


@pytest.mark.parametrize(
    "sql",
    [
        f"CREATE TABLE nw (id INT AUTO_INCREMENT KEY, {COLUMNS}, code VARCHAR(9) NOT NULL, UNIQUE KEY x (code))",
        f"CREATE TABLE nw (ID INT, {COLUMNS}, code VARCHAR(9) NOT NULL UNIQUE KEY, PRIMARY KEY (ID))",
        "CREATE TABLE nw LIKE user; ALTER TABLE nw RENAME INDEX by_code TO renamed",
    ],
)
def test_a_swapped_in_table_with_the_same_keys_is_followed(sql: str) -> None:
    found = list(Contract([BY_CODE], lambda *_: CODED, "shop").check(statements(sql + SWAP)))
    assert [effect.breaks for effect in found] == [False]


def test_a_column_wider_than_an_index_can_be_breaks_its_index_table() -> None:
    assert broken("ALTER TABLE user MODIFY email VARCHAR(1000), MODIFY name VARCHAR(1000)") == {EMAIL}


@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("SET sql_mode = ''; ALTER TABLE user MODIFY email VARCHAR(80)", {EMAIL}),
        ("SET @a = 1, SESSION sql_mode = 'NO_ZERO_DATE'; ALTER TABLE user MODIFY email VARCHAR(80)", {EMAIL}),
        ("SET sql_mode = ''; SET sql_mode = @old; ALTER TABLE user MODIFY email VARCHAR(80)", set()),
        ("SET sql_mode = 'STRICT_ALL_TABLES'; ALTER TABLE user MODIFY email VARCHAR(80)", set()),
        ("""SET sql_mode = 'ANSI_QUOTES'; ALTER TABLE "user" DROP COLUMN "email" """, {EMAIL}),
        ("SET @a = 1, sql_log_bin = 0; DELETE FROM user", {EMAIL, NAME}),
    ],
)
def test_what_the_file_says_of_its_session_is_heeded(sql: str, views: set[str]) -> None:
    assert broken(sql) == views


def test_a_view_breaks_alone_with_its_column_and_together_with_others_of_its_store_with_its_key() -> None:
    views = [*VIEWS, IndexTable("by_name", Entity("shop.user"), value="name")]
    assert broken("ALTER TABLE user DROP COLUMN email", views) == {EMAIL}
    assert broken("TRUNCATE user", views) == {EMAIL, NAME, "mysql:by_name"}, "each for itself"
    by_code = IndexTable("by_email", Entity("shop.user", key="code"), value="code")
    found = {
        one.view: one.why
        for one in Contract([by_code, views[2]], lambda *_: CODED, "shop").check(
            statements("ALTER TABLE user DROP INDEX by_code")
        )
    }
    assert set(found) == {by_code.id, "mysql:by_name"}
    assert f"halts with {by_code.id}" in found["mysql:by_name"]


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_function_breaks_with_the_columns_that_it_asks_for(is_offline: bool) -> None:
    """As in `viewtail check`: where any column may be asked for, each one counts."""
    narrow = IndexTable("narrow", Entity("shop.user"), value="id", where=lambda row: row["email"] == "x")
    wide = IndexTable("wide", Entity("shop.user"), value="id", where=lambda row: any(row.values()))
    views: list[View] = [narrow, wide]
    rename = "ALTER TABLE user RENAME COLUMN {} TO other"
    assert broken(rename.format("email"), views, is_offline=is_offline) == {"mysql:narrow", "mysql:wide"}
    assert broken(rename.format("name"), views, is_offline=is_offline) == {"mysql:wide"}


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_column_that_only_the_previous_declaration_has_is_needed_too(is_offline: bool) -> None:
    """Readers may still have the copy that it keeps."""
    before = IndexTable("by_email", Entity("shop.user"), value="name")
    views: list[View] = [IndexTable("by_email", Entity("shop.user"), value="email", previous=before)]
    assert broken("ALTER TABLE user DROP COLUMN name", views, is_offline=is_offline) == {EMAIL}
    assert broken("ALTER TABLE user DROP COLUMN unused", views, is_offline=is_offline) == set()


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize(
    ("sql", "may_break"),
    [
        ("ALTER TABLE user ADD COLUM foo INT", True),
        ("ALTER TABLE other ADD COLUM foo INT", False),
        ("ALTER TABLE user EXPLODE email", True),
        ("ALTERT TABLE other ADD foo INT", True),
        ("import os", True),
        ("CALL upgrade()", True),
        ("SET STATEMENT max_statement_time = 1 FOR ALTER TABLE user ADD COLUM foo INT", True),
    ],
)
def test_a_statement_that_cannot_be_read_is_named_and_counts_unless_it_defines_what_no_view_has(
    sql: str, may_break: bool, is_offline: bool
) -> None:
    contract = Contract(VIEWS, None if is_offline else describe, "shop")
    list(contract.check(statements(f"SELECT 1;\n{sql};\nALTER TABLE user ADD more INT")))
    ((line, statement, found),) = [(one.line, one.statement, one.may_break) for one in contract.unread]
    assert (line, found) == (2, may_break) and statement in sql


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("ALTER TABLE user ALTER email SET DEFALT 'x'", "DEFAULT"),
        ("ALTER TABLE user ALTER COLUMN email DORP DEFAULT", "DROP"),
        ("ALTER TABLE user ADD foo INT DEFALT 1", "DEFAULT"),
        ("ALTER TABLE user ADD foo INT UNSINGED", "UNSIGNED"),
        ("ALTER TABLE user ENGIN = InnoDB", "ENGINE"),
    ],
)
def test_a_misspelt_word_is_told_with_the_one_that_is_meant(sql: str, meant: str) -> None:
    contract = Contract(VIEWS, describe, "shop")
    list(contract.check(statements(sql)))
    (unread,) = contract.unread
    assert unread.why.endswith(f"; did you mean {meant}?"), unread.why


def test_a_table_of_which_a_statement_could_not_be_read_is_unknown_when_it_takes_anothers_place() -> None:
    swap = "CREATE TABLE nw LIKE user; ALTER TABLE nw {} ; RENAME TABLE user TO old, nw TO user"
    assert broken(swap.format("ADD more INT")) == set()
    assert broken(swap.format("EXPLODE email")) == {EMAIL, NAME}


def test_a_statement_with_settings_of_its_own_is_judged_too() -> None:
    assert broken("SET STATEMENT lock_wait_timeout = 1 FOR ALTER TABLE user DROP COLUMN email") == {EMAIL}


def test_a_database_that_the_client_is_told_to_use_is_that_of_the_names_behind_it() -> None:
    assert broken("use other\nALTER TABLE user DROP COLUMN email;") == set()
    assert broken("use shop\nALTER TABLE user DROP COLUMN email;") == {EMAIL}


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize(
    ("sql", "is_read"),
    [
        ("DROP TABLE user", False),
        ("TRUNCATE user", False),
        ("ALTER TABLE user DROP COLUMN name", False),
        ("RENAME TABLE user TO users", False),
        ("ALTER TABEL user DROP COLUMN name", False),
        ("USE shop; ALTER TABLE user ADD COLUMN note INT", True),
        ("ALTER TABLE shop.user ADD COLUMN note INT", True),
        ("CREATE TABLE other (id INT)", True),
        ("ALTER TABLE other ADD COLUMN note INT", True),
        ("DROP TABLE other", True),
        ("CREATE INDEX i ON other (a)", True),
        ("INSERT INTO user (id) VALUES (1)", True),
    ],
)
def test_a_statement_without_a_database_that_may_be_about_a_view_is_unread_where_none_is_given(
    sql: str, is_read: bool, is_offline: bool
) -> None:
    """As where views are of two databases: a file that could not be judged must not pass."""
    views = [*VIEWS, *([RedisHash("person", Entity("crm.person"), fields=["name"])] if is_offline else [])]
    contract = Contract(views, None if is_offline else describe, "")
    found = list(contract.check(statements(sql)))
    assert not any(effect.breaks for effect in found)
    assert [one.why.startswith("it names no database") or "ALTER TABEL" in one.why for one in contract.unread] == (
        [] if is_read else [True]
    )
    assert all(one.may_break for one in contract.unread)


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_group_depends_on_what_makes_it_and_its_values_and_on_no_other_column(is_offline: bool) -> None:
    entity = Group("shop.user", by="name", values={"least": Min("unused"), "mails": Count(where="email IS NOT NULL")})
    views: list[View] = [
        RedisJson("names", entity, document=lambda row: dict(row)),
        RedisHash("mails", entity, fields=["mails"]),
    ]
    both = {view.id for view in views}
    assert broken("ALTER TABLE user DROP COLUMN name", views, is_offline=is_offline) == both
    assert "redis:names" in broken("ALTER TABLE user DROP COLUMN unused", views, is_offline=is_offline)
    assert broken("ALTER TABLE user ADD COLUMN note INT, DROP COLUMN id", views, is_offline=is_offline) == set()
    if not is_offline:
        assert broken("ALTER TABLE user DROP COLUMN unused", views) == {"redis:names"}
        assert broken("ALTER TABLE user DROP COLUMN email", views) == both


ORDER = Table(
    schema="shop",
    name="order",
    columns=(_column("id", Kind.INTEGER, "int"), _column("user_id", Kind.INTEGER, "int")),
    primary_key=("id",),
)
LINE = Table(
    schema="shop",
    name="line",
    columns=(
        *(_column(name, Kind.INTEGER, "int") for name in ("id", "order_id", "line_no", "amount", "unused")),
        _column("title", Kind.TEXT, "varchar(60)", charset="utf8mb4", length=60),
    ),
    primary_key=("id",),
)
TAG, ORDER_TAG = replace(LINE, name="tag"), replace(LINE, name="order_tag")
OF_ORDER = Entity(
    "shop.order",
    related={
        "who": One("shop.user", on="user_id"),
        "lines": Many("shop.line", by="order_id", order_by="-line_no"),
        "tags": Many("shop.tag", through="shop.order_tag", by="order_id", to="line_no", columns=["title"]),
        "total": Sum("shop.line", "amount", by="order_id"),
    },
)
OF_TABLES: list[View] = [
    RedisJson("who", OF_ORDER, document=lambda row: {"name": row["who"]["name"]}),
    RedisJson("titles", OF_ORDER, document=lambda row: [line["title"] for line in row["lines"]]),
    RedisJson("tags", OF_ORDER, document=lambda row: {"tags": row["tags"]}),
    RedisJson("total", OF_ORDER, document=lambda row: {"total": row["total"]}),
    RedisJson("any", OF_ORDER, document=lambda row: {"lines": row["lines"]}),
]
ARCHIVED = Entity("shop.user", append_only=True, version="unused")
KEEPS = "the view keeps what it shows: it takes that for archiving"
DROPPED = "ALTER TABLE {} DROP PARTITION p0"


@pytest.mark.parametrize(
    ("sql", "view", "is_broken", "what"),
    [
        ("TRUNCATE {}", RedisHash("u", Entity("shop.user"), fields=["name"]), True, "empties the view too"),
        ("TRUNCATE {}", OF_TABLES[0], True, "empties the view too"),
        ("TRUNCATE {}", Topic("u", Entity("shop.user")), True, "backfills the view again by itself"),
        ("TRUNCATE {}", RedisHash("u", ARCHIVED, fields=["name"]), True, KEEPS),
        (DROPPED, RedisHash("u", Entity("shop.user"), fields=["name"]), False, "removes them from the view too"),
        (DROPPED, OF_TABLES[0], False, "backfills the view again by itself"),
        (DROPPED, Topic("u", Entity("shop.user")), False, "backfills the view again by itself"),
        (DROPPED, RedisHash("u", ARCHIVED, fields=["name"]), False, KEEPS),
    ],
)
def test_each_view_is_said_what_it_does_where_rows_of_its_table_go(
    sql: str, view: View, is_broken: bool, what: str
) -> None:
    (effect,) = effects(sql.format(view.entity.table), [view], is_offline=True)
    assert effect.breaks == is_broken and effect.why.endswith(what)


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("ALTER TABLE user DROP COLUMN name", "who"),
        ("ALTER TABLE user DROP COLUMN email", ""),
        ("ALTER TABLE shop.order DROP COLUMN user_id", "who"),
        ("ALTER TABLE line DROP COLUMN title", "titles any"),
        ("ALTER TABLE line DROP COLUMN line_no", "titles any"),
        ("ALTER TABLE line CHANGE order_id of_order INT", "titles total any"),
        ("ALTER TABLE line DROP COLUMN amount", "total any"),
        ("ALTER TABLE line DROP COLUMN unused", "any"),
        ("ALTER TABLE order_tag DROP COLUMN line_no", "tags"),
        ("ALTER TABLE tag DROP COLUMN title", "tags"),
        ("ALTER TABLE tag DROP COLUMN line_no", ""),
        ("DROP TABLE line", "titles total any"),
        ("ALTER TABLE line ADD COLUMN note INT", ""),
        ("TRUNCATE line", ""),
        ("ALTER TABLE line DROP PARTITION p0", ""),
    ],
)
def test_views_depend_on_what_they_use_of_each_related_table(sql: str, views: str, is_offline: bool) -> None:
    tables = {table.name: table for table in (USER, ORDER, LINE, TAG, ORDER_TAG)}
    contract = Contract(OF_TABLES, None if is_offline else lambda _, name: tables[name], "shop")
    told = list(contract.check(statements(sql)))
    assert {effect.view for effect in told if effect.breaks} == {f"redis:{name}" for name in views.split()}
    if "TRUNCATE" in sql or "PARTITION" in sql:
        assert {effect.view for effect in told} == {"redis:titles", "redis:total", "redis:any"}
        assert all("backfills the view again" in effect.why for effect in told)


def test_another_collation_of_a_text_by_which_rows_are_found_may_halt_the_view_and_of_any_other_backfills_it() -> None:
    text = {"kind": Kind.TEXT, "declared": "varchar(20)", "charset": "utf8mb4", "collation": "utf8mb4_0900_ai_ci"}
    columns = (_column("id", Kind.INTEGER, "int"), _column("tag", **text), _column("status", **text))  # type: ignore[arg-type]
    tables = {
        "order": replace(ORDER, columns=columns),
        "tag": Table(schema="shop", name="tag", columns=(*columns,), primary_key=("tag",)),
    }
    entity = Entity("shop.order", related={"tag_row": One("shop.tag", on="tag", columns=["status"])})
    view = RedisJson("order", entity, document=lambda row: {"s": row["tag_row"]["status"], "status": row["status"]})
    told = {}
    for table, column in (("order", "tag"), ("tag", "tag"), ("order", "status"), ("tag", "status")):
        sql = f"ALTER TABLE {table} MODIFY {column} VARCHAR(20) COLLATE utf8mb4_bin NOT NULL"
        (effect,) = Contract([view], lambda _, name: tables[name], "shop").check(statements(sql))
        told[table, column] = effect.breaks, effect.why
    assert [breaks for breaks, _ in told.values()] == [True, True, False, False]
    assert "rows are found by tag: where the other column of the two has another collation" in told["order", "tag"][1]
    assert "viewtail backfills the view again by itself" in told["tag", "status"][1]


TENANTS: list[View] = [
    IndexTable("by_number", Entity("app.org{account_id:int}_invoice", key=["account_id", "id"]), value="number"),
    RedisHash("archive", Entity("app.org{account_id:int}_invoice", dropped="keep"), fields=["note"]),
]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE app.org5_invoice DROP COLUMN number", {"mysql:by_number": True}),
        ("ALTER TABLE app.org5_invoice DROP COLUMN unused", {}),
        ("ALTER TABLE app.org05_invoice DROP COLUMN number", {}),
        ("CREATE TABLE app.org6_invoice LIKE app.org5_invoice", {}),
        ("DROP TABLE app.org5_invoice", {"mysql:by_number": False, "redis:archive": False}),
        ("TRUNCATE app.org5_invoice", {"mysql:by_number": False, "redis:archive": False}),
        ("DROP DATABASE app", {"mysql:by_number": False, "redis:archive": False}),
    ],
)
def test_a_statement_about_one_of_many_tables_concerns_their_views(sql: str, expected: dict[str, bool]) -> None:
    found = effects(sql, TENANTS, is_offline=True)
    assert {effect.view: effect.breaks for effect in found} == expected
    if sql.startswith("DROP TABLE"):
        assert ["keeps its rows" in effect.why for effect in found] == [False, True]
