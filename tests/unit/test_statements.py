"""What statements in the binlog mean for the tables that views are of."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ingest.binlog.statements import (
    ANSI_QUOTES,
    NO_BACKSLASH_ESCAPES,
    STRICT,
    Meaning,
    Verdict,
    judge,
    meaning,
    plain,
    reason,
)
from viewtail.changes.batches import Followed, TableChangeKind
from viewtail.changes.tables import Column, Kind, Table


def _column(name: str, kind: Kind, declared: str, **more: object) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=True, **more)  # type: ignore[arg-type]


COLUMNS = (
    _column("id", Kind.INTEGER, "int"),
    _column("email", Kind.TEXT, "varchar(64)", charset="utf8mb4", length=64),
    _column("price", Kind.DECIMAL, "decimal(10,2)", precision=10, scale=2),
    _column("state", Kind.ENUM, "enum('new','it''s')", labels=("new", "it's")),
    _column("unused", Kind.INTEGER, "int"),
)


def followed(name: str = "user", schema: str = "shop") -> Followed:
    table = Table(schema=schema, name=name, columns=COLUMNS, primary_key=("id",))
    return Followed(table, ("id", "email", "price", "state"))


def is_halted(statement: str, table: Followed | None = None, *, is_strict: bool = False) -> bool:
    mode = STRICT if is_strict else 0
    return any(one.kind is None for one in judged(statement, table or followed(), sql_mode=mode))


def judged(statement: str, *tables: Followed, sql_mode: int = 0) -> list[Verdict]:
    return judge(plain(statement, sql_mode), "shop", tables, sql_mode)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("a /* b */ c", "a   c"),
        ("a -- b\nc", "a  \nc"),
        ("a--b", "a--b"),
        ("a --", "a"),
        ("a # b", "a"),
        ("TRUNCATE `a#b`", "TRUNCATE `a#b`"),
        ("x '/* ''-- a' y", "x '/* ''-- a' y"),
        (r"x 'it\'s -- a' y", r"x 'it\'s -- a' y"),
        ('x "# b" y', 'x "# b" y'),
        ("/*!80000 DROP */ TABLE t", "DROP   TABLE t"),
        ("/*! a /* b */ c */ d", "a   c   d"),
        ("a */* b */ c", "a *  c"),
        ("a /* b", "a"),
        ("a;\n", "a"),
    ],
)
def test_comments_go_and_what_is_quoted_or_executed_stays(statement: str, expected: str) -> None:
    assert plain(statement) == expected


def test_a_backslash_hides_no_quote_where_the_server_was_told_so() -> None:
    statement = r"ALTER TABLE user COMMENT '\', DROP COLUMN email -- '"
    assert not is_halted(statement)
    assert judged(statement, followed(), sql_mode=NO_BACKSLASH_ESCAPES)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("BEGIN", Meaning.BEGIN),
        ("/* commit */ begin", Meaning.BEGIN),
        ("COMMIT", Meaning.COMMIT),
        ("ROLLBACK", Meaning.ROLLBACK),
        ("ROLLBACK /* TO */", Meaning.ROLLBACK),
        ("ROLLBACK TO `a`", Meaning.ROLLBACK_TO),
        ("rollback work to savepoint a", Meaning.ROLLBACK_TO),
        ("SAVEPOINT `a`", Meaning.SAVEPOINT),
        ("RELEASE SAVEPOINT a", Meaning.SAVEPOINT),
        ("XA START X'31',X'',1", Meaning.XA_BRANCH),
        ("XA END X'31',X'',1", Meaning.XA_BRANCH),
        ("XA COMMIT X'31',X'',1", Meaning.XA_COMMIT),
        ("XA ROLLBACK X'31',X'',1", Meaning.XA_ROLLBACK),
        ("CREATE TABLE t (id INT) START TRANSACTION", Meaning.OPENING_STATEMENT),
        ("CREATE TABLE t (id INT) -- START TRANSACTION", Meaning.STATEMENT),
        ("CREATE TABLE t (id INT) COMMENT 'START TRANSACTION'", Meaning.STATEMENT),
        ("/* begin cleanup */ TRUNCATE TABLE shop.user", Meaning.STATEMENT),
        ("-- Commit 12\nTRUNCATE user", Meaning.STATEMENT),
        ("TRUNCATE shop.user -- START TRANSACTION", Meaning.STATEMENT),
        ("#savepoint\nTRUNCATE user", Meaning.STATEMENT),
        ("", Meaning.STATEMENT),
    ],
)
def test_a_comment_decides_nothing(statement: str, expected: Meaning) -> None:
    assert meaning(plain(statement)) is expected


@pytest.mark.parametrize("name", ["a#b", "a-- b", "a/*b", "it's", "a`b"])
def test_a_name_that_looks_like_a_comment_is_found(name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    assert is_halted(f"ALTER TABLE shop.{quoted} DROP COLUMN email", followed(name))
    (verdict,) = judged(f"TRUNCATE TABLE {quoted}", followed(name))
    assert verdict.kind is TableChangeKind.EMPTIED


VALUE_CHANGES = [
    "ALTER TABLE user DROP COLUMN email, ADD COLUMN email VARCHAR(64)",
    "ALTER TABLE user DROP email",
    "ALTER TABLE `shop`.`user` ADD INDEX (id), DROP COLUMN `Email`",
    "ALTER TABLE user DROP COLUMN email, ADD COLUMN email VARCHAR(64), ALGORITHM=INSTANT",
    "ALTER TABLE user RENAME COLUMN email TO old, RENAME COLUMN unused TO email",
    "ALTER TABLE user RENAME COLUMN unused TO email",
    "ALTER TABLE user CHANGE COLUMN email old VARCHAR(64)",
    "ALTER TABLE user CHANGE unused email VARCHAR(64), ALGORITHM=INSTANT",
    "ALTER TABLE user MODIFY email VARCHAR(10)",
    "ALTER TABLE user MODIFY COLUMN email VARCHAR(80)",
    "ALTER TABLE user CHANGE email email CHAR(64)",
    "ALTER TABLE user MODIFY email VARCHAR(64) GENERATED ALWAYS AS (CONCAT(unused, 'x')) STORED",
    "ALTER TABLE user MODIFY email VARCHAR(64) AS (unused) VIRTUAL, ALGORITHM=INPLACE",
    "ALTER TABLE user MODIFY email VARCHAR(10), ALGORITHM=COPY",
    "ALTER TABLE user MODIFY email VARCHAR(10) COMMENT 'ALGORITHM=INPLACE'",
    "ALTER TABLE user CONVERT TO CHARACTER SET latin1",
    "ALTER TABLE user ENGINE=BLACKHOLE",
    "ALTER /* x */ TABLE user /*!80000 DROP COLUMN email */",
    "ALTER TABLE user DROP PRIMARY KEY, ADD PRIMARY KEY (id, email)",
    "DROP INDEX `PRIMARY` ON user",
    "ALTER TABLE user ADD COLUMN a INT, RENAME TO gone",
    "ALTER TABLE user DISCARD TABLESPACE",
    "DROP TABLES other, user",
    "DROP DATABASE shop",
    "RENAME TABLES user TO other",
    "RENAME TABLE user TO a, b TO c",
    "CREATE OR REPLACE TABLE user (id INT PRIMARY KEY)",
    "TRUNCATE TABLE User",
    "ALTER TABLE user EXPLODE",
    "GRIND TABLE user",
    "INSERT INTO user VALUES (1)",
]


@pytest.mark.parametrize("statement", VALUE_CHANGES)
def test_an_alter_that_may_change_values_unseen_halts(statement: str) -> None:
    assert is_halted(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE user ADD COLUMN age INT",
        "ALTER TABLE user ADD COLUMN age INT GENERATED ALWAYS AS (id + 1) STORED",
        "ALTER TABLE user ADD COLUMN (a INT, b ENUM('DROP COLUMN email'))",
        "ALTER TABLE user ADD INDEX by_email (email), DROP INDEX by_id",
        "ALTER TABLE user DROP KEY email, ADD UNIQUE KEY email (email)",
        "ALTER TABLE user DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
        "ALTER TABLE user ADD PRIMARY KEY (id), DROP PRIMARY KEY",
        "ALTER TABLE user ADD COLUMN g GEOMETRY NOT NULL SRID 4326 INVISIBLE",
        "ALTER TABLE user MODIFY unused POINT NOT NULL SRID 4326",
        "ALTER TABLE user DROP FOREIGN KEY email, DROP CHECK email, DROP CONSTRAINT email",
        "ALTER TABLE user DROP COLUMN unused",
        "ALTER TABLE user RENAME COLUMN unused TO other",
        "ALTER TABLE user RENAME INDEX email TO id",
        "ALTER TABLE user CHANGE unused other BIGINT",
        "ALTER TABLE user MODIFY unused BIGINT",
        "ALTER TABLE user ALTER COLUMN email SET DEFAULT 'x', ALTER id DROP DEFAULT",
        "ALTER TABLE user ALTER COLUMN email SET INVISIBLE",
        "ALTER TABLE user ALTER INDEX by_id NOT IGNORED, ALTER CHECK c NOT ENFORCED, ALTER INDEX by_id VISIBLE",
        "ALTER TABLE user ENGINE=InnoDB",
        "ALTER TABLE user COMMENT 'DROP COLUMN email, RENAME TO x'",
        "ALTER TABLE user COMMENT 'it''s', AUTO_INCREMENT=5",
        "ALTER TABLE user DEFAULT CHARACTER SET latin1",
        "ALTER TABLE user ADD PARTITION (PARTITION p9 VALUES LESS THAN (9))",
        "ALTER TABLE user FORCE, LOCK=NONE",
        "ALTER TABLE user REORGANIZE PARTITION p0, p1, p2 INTO (PARTITION p VALUES LESS THAN (9))",
        "ALTER TABLE user REORGANIZE PARTITION",
        "ALTER TABLE user REBUILD PARTITION p0, p1",
        "ALTER TABLE user PARTITION BY HASH (id) PARTITIONS 4",
        "ALTER TABLE user ADD COLUMN a INT PARTITION BY KEY (id)",
        "ALTER TABLE user MODIFY email VARCHAR(80), ALGORITHM=INPLACE",
        "ALTER TABLE user ALGORITHM = INSTANT, MODIFY state ENUM('new','it''s','old')",
        "ALTER TABLE other DROP COLUMN email",
        "ALTER TABLE stock.user DROP COLUMN email",
        "ALTER TABLE other ADD FOREIGN KEY (user) REFERENCES user (id), DROP COLUMN email",
        "RENAME USER user TO other",
        "RENAME TABLE user TO tmp, tmp TO user",
        "RENAME TABLE user_old TO user_older",
        "TRUNCATE TABLE user_old",
        "TRUNCATE stock.user",
        "DROP TEMPORARY TABLE user",
        "DROP TABLE IF EXISTS other, stock.user",
        "CREATE TABLE other LIKE user",
        "CREATE TABLE other SELECT * FROM user",
        "CREATE TEMPORARY TABLE user (id INT)",
        "CREATE UNIQUE INDEX by_email ON user (email)",
        "DROP INDEX by_email ON user",
        "CREATE DEFINER=`root`@`localhost` TRIGGER t AFTER INSERT ON user FOR EACH ROW DELETE FROM other",
        "CREATE OR REPLACE VIEW v AS SELECT * FROM user",
        "DROP VIEW v, user_view",
        "ANALYZE TABLE user",
        "OPTIMIZE TABLE user",
        "REPAIR NO_WRITE_TO_BINLOG TABLE user",
        "GRANT SELECT ON shop.user TO somebody",
        "DROP DATABASE user",
    ],
)
def test_an_alter_that_changes_no_stored_value_is_read_past(statement: str) -> None:
    assert not is_halted(statement)


@pytest.mark.parametrize("part", ["ALTER COLUMN email TYPE int", "ALTER email INT", "ALTER", "TRANSMUTE email"])
def test_a_part_of_an_alter_that_no_server_has_today_halts(part: str) -> None:
    assert is_halted(f"ALTER TABLE user {part}")


@pytest.mark.parametrize(
    ("definition", "is_kept"),
    [
        ("email VARCHAR(80)", True),
        ("email varchar(64) CHARACTER SET latin1 NOT NULL AFTER id", True),
        ("email VARCHAR(63)", False),
        ("email CHAR(80)", False),
        ("email TEXT", False),
        ("id BIGINT NOT NULL AUTO_INCREMENT", True),
        ("id INTEGER", True),
        ("id INT UNSIGNED", False),
        ("id SMALLINT", False),
        ("id YEAR", False),
        ("price DECIMAL(10, 2) NOT NULL", True),
        ("price DECIMAL(10, 1)", False),
        ("price NUMERIC(12, 2)", True),
        ("price DECIMAL(12, 3)", False),
        ("price DECIMAL(9, 2)", False),
        ("price DECIMAL(12)", False),
        ("price DEC", False),
        ("price DECIMAL(12, 2) UNSIGNED", False),
        ("state ENUM('new', 'it''s', 'old')", True),
        ("state ENUM('new')", False),
        ("state ENUM('it''s', 'new')", False),
    ],
)
def test_a_type_that_only_holds_more_is_no_halt_on_a_strict_server(definition: str, is_kept: bool) -> None:
    statement = f"ALTER TABLE user MODIFY {definition}"
    assert is_halted(statement, is_strict=True) is not is_kept
    assert is_halted(statement, is_strict=False)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("TRUNCATE TABLE user", TableChangeKind.EMPTIED),
        ("truncate `shop`.`user`", TableChangeKind.EMPTIED),
        ("/*!80000 TRUNCATE */ user", TableChangeKind.EMPTIED),
        ("ALTER TABLE user TRUNCATE PARTITION p0, p1", TableChangeKind.THINNED),
        ("ALTER TABLE user DROP PARTITION p0", TableChangeKind.THINNED),
        ("ALTER TABLE user ALGORITHM=INPLACE, DROP PARTITION p0, p1", TableChangeKind.THINNED),
        ("ALTER TABLE user EXCHANGE PARTITION p0 WITH TABLE other", TableChangeKind.REPLACED),
        (
            "ALTER TABLE other EXCHANGE PARTITION p0 WITH TABLE user WITHOUT VALIDATION",
            TableChangeKind.REPLACED,
        ),
        ("RENAME TABLE user TO _user_del, _user_gho TO user", TableChangeKind.REPLACED),
        (
            "RENAME TABLE `shop`.`user` TO `shop`.`_user_old`, `shop`.`_user_new` TO `shop`.`user`",
            TableChangeKind.REPLACED,
        ),
        ("RENAME TABLE user TO a, b TO user, a TO b", TableChangeKind.REPLACED),
        ("RENAME TABLE other TO user", TableChangeKind.REPLACED),
        ("ALTER TABLE other RENAME user", TableChangeKind.REPLACED),
    ],
)
def test_rows_that_come_and_go_as_a_whole_turn_a_table(statement: str, kind: TableChangeKind) -> None:
    (verdict,) = judged(statement, followed())
    assert verdict.kind is kind


def test_a_statement_about_two_followed_tables_is_judged_for_each() -> None:
    user, other = followed(), followed("other")
    verdicts = judged("RENAME TABLE user TO tmp, other TO user, tmp TO other", user, other)
    assert [(one.followed, one.kind) for one in verdicts] == [
        (user, TableChangeKind.REPLACED),
        (other, TableChangeKind.REPLACED),
    ]


def test_quotes_are_what_the_session_made_of_them() -> None:
    statement = 'ALTER TABLE "user" DROP COLUMN "email"'
    assert is_halted(statement)  # a text where a name should be cannot be read
    (verdict,) = judged(statement, followed(), sql_mode=ANSI_QUOTES)
    assert "email" in verdict.why
    assert plain('x "a""b`c" \'"\'', ANSI_QUOTES) == "x `a\"b``c` '\"'"


def test_the_reason_names_the_column_and_the_statement_without_its_strings() -> None:
    text = plain("ALTER TABLE user COMMENT 'secret',\n DROP COLUMN email")
    (verdict,) = judge(text, "shop", [followed()])
    assert reason(verdict, text) == ("column email was dropped: ALTER TABLE user COMMENT '...', DROP COLUMN email")


@pytest.mark.parametrize(
    ("alter", "columns"),
    [
        ("DROP COLUMN email", {"email"}),
        ("DROP COLUMN EMAIL", {"email"}),
        ("RENAME COLUMN email TO mail", {"email"}),
        ("RENAME COLUMN unused TO other, RENAME COLUMN email TO unused", {"email"}),
        ("RENAME COLUMN email TO id", {"email", "id"}),
        ("CHANGE email mail VARCHAR(9)", {"email"}),
        ("MODIFY email VARCHAR(9)", {"email"}),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, email)", None),
        ("CONVERT TO CHARACTER SET latin1", None),
        ("EXPLODE email", None),
        ("RENAME TO other", None),
    ],
)
def test_a_verdict_names_the_columns_that_are_lost_or_the_table_as_a_whole(
    alter: str, columns: set[str] | None
) -> None:
    (verdict,) = judged(f"ALTER TABLE user {alter}", followed())
    assert (verdict.kind, verdict.columns) == (None, columns)


def test_a_statement_that_concerns_nobody_costs_no_parser() -> None:
    script = (
        "import sys; from ingest.binlog.statements import judge; "
        "judge('ALTER TABLE other ADD COLUMN a INT', 'shop', []); print('sqlglot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE user MODIFY unused SMALLINT", True),
        ("ALTER TABLE user CHANGE unused unused SMALLINT", True),
        ("ALTER TABLE user MODIFY unused SMALLINT, ALGORITHM=INPLACE", False),
        ("ALTER TABLE user ADD COLUMN other INT", False),
    ],
)
def test_a_base_column_defined_anew_halts_where_a_generated_one_is_followed(statement: str, expected: bool) -> None:
    computed = _column("computed", Kind.INTEGER, "int", is_generated=True)
    table = Table(schema="shop", name="user", columns=(*COLUMNS, computed), primary_key=("id",))
    assert is_halted(statement, Followed(table, ("id", "computed"))) is expected
    assert not is_halted(statement, Followed(table, ("id", "email")))


@pytest.mark.parametrize(
    ("redefined", "halted"),
    [
        ("twice INT AS (id * 3) STORED", {"twice", "more"}),
        ("more INT AS (twice + 2) STORED", {"more"}),
        ("other INT AS (email + 1) STORED", {"other"}),
        ("unknown INT AS (1) STORED", {"unknown"}),
    ],
)
def test_a_generated_column_defined_anew_halts_what_uses_it_or_what_is_made_from_it(
    redefined: str, halted: set[str]
) -> None:
    made = [("twice", {"id"}), ("more", {"Twice"}), ("other", {"email"}), ("constant", set())]
    columns = [
        _column(name, Kind.INTEGER, "int", is_generated=True, made_from=frozenset(names)) for name, names in made
    ]
    if "unknown" in halted:
        columns.append(_column("unknown", Kind.INTEGER, "int", is_generated=True))
    table = Table(schema="shop", name="user", columns=(*COLUMNS, *columns), primary_key=("id",))
    names = tuple(column.name for column in columns)
    (verdict,) = judge(f"ALTER TABLE user MODIFY {redefined}", "shop", [Followed(table, ("id", *names))], STRICT)
    assert verdict.kind is None and verdict.columns == halted
