"""What `viewtail lint` finds: each rule by its own examples, what a migration answers for, and what silences a rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.consumers.exactly_once import CREATE
from examples.geo.tables import DDL as DEMO
from examples.jogchat.__main__ import INDEXED
from examples.jogchat.__main__ import ddl as jogchat
from examples.orders.tables import DDL as ORDERS
from examples.unshatter.tables import OWN
from examples.unshatter.tables import ddl as unshatter
from offsets import schema
from projectors.binding import bind
from projectors.stores.index_tables.table import IndexTableShape
from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity, View
from viewtail.changes.errors import MisuseError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.entities.archives import places_ddl
from viewtail.entities.cells.cell_table import CellTable
from viewtail.entities.datastore.store import _ddl
from viewtail.entities.event_table import EventTable
from viewtail.operations.lint.choosing import RULES, Chosen
from viewtail.operations.lint.linting import UNREAD, Finding, Linter, SqlFile
from viewtail.operations.lint.rules import Level, Rule
from viewtail.operations.lint.words import in_snake_case, is_to_drop, plural

CHECKOUT = Path(__file__).resolve().parents[2]
VIEWS: list[View] = [IndexTable("by_number", Entity("shop.invoice"), value="number")]
USER = """CREATE TABLE shop.user (
  id INT NOT NULL PRIMARY KEY COMMENT 'Its number',
  email VARCHAR(60) NULL COMMENT 'For invoices',
  age SMALLINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Years',
  state ENUM('new', 'old') NOT NULL DEFAULT 'new' COMMENT 'How far',
  is_new BOOL NOT NULL DEFAULT TRUE COMMENT 'Whether',
  KEY email_idx (email)
) COMMENT 'Who buys';
CREATE TABLE shop.bare_dropped (id INT);
CREATE TABLE shop.sale (id INT NOT NULL PRIMARY KEY COMMENT 'Its number') COMMENT 'Sales';
"""


def migrated(sql: str, given: str = "", *, views: Sequence[View] = (), chosen: Chosen | None = None) -> list[Finding]:
    linter = Linter(chosen or Chosen(), "shop")
    linter.define(SqlFile(name="dump.sql", text=given), is_judged=False)
    linter.migrate([SqlFile(name="new.sql", text=sql)], views, None)
    return linter.findings()


def defined(sql: str, chosen: Chosen | None = None) -> list[Finding]:
    linter = Linter(chosen or Chosen(), "shop")
    linter.define(SqlFile(name="dump.sql", text=sql), is_judged=True)
    return linter.findings()


def codes(findings: Sequence[Finding]) -> list[str]:
    return [finding.code for finding in findings]


def in_table(column: str) -> list[Finding]:
    """What is found in a table that is fine but for one column."""
    return defined(f"CREATE TABLE t (id INT PRIMARY KEY COMMENT 'Key', {column}) COMMENT 'Table'")


# -- the rules by their own examples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_bad_example_of_a_rule_gives_its_code_and_the_good_one_nothing(rule: Rule) -> None:
    views = VIEWS if rule.code == "VT501" else []
    assert {*codes(migrated(rule.bad, rule.given, views=views))} == {rule.code, *rule.along}
    assert migrated(rule.good, rule.given, views=views) == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.is_of_statements], ids=lambda rule: rule.code)
def test_a_definition_is_judged_alike_in_a_dump_and_in_a_migration(rule: Rule) -> None:
    assert codes(defined(rule.bad)) == codes(migrated(rule.bad))


def test_codes_and_names_are_unique_and_in_order() -> None:
    assert [rule.code for rule in RULES] == sorted({rule.code for rule in RULES})
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_finding_names_its_line_what_it_is_about_and_what_to_do(rule: Rule) -> None:
    views = VIEWS if rule.code == "VT501" else []
    found = [finding for finding in migrated(f"\n{rule.bad}", rule.given, views=views) if finding.code == rule.code]
    for finding in found:
        assert finding.file == "new.sql" and 2 <= finding.line <= rule.bad.count("\n") + 2
        assert finding.of and finding.why and finding.instead and finding.level == rule.level.value


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "singular"),
    [
        ("users", "user"), ("order_lines", "order_line"), ("categories", "category"), ("boxes", "box"),
        ("branches", "branch"), ("people", "person"), ("movies", "movie"), ("areas", "area"), ("houses", "house"),
        ("status", ""), ("address", ""), ("news", ""), ("analysis", ""), ("bus", ""), ("user", ""), ("data", ""),
        ("series", ""), ("access", ""), ("lens", ""), ("gps", ""), ("is_ours", ""),
    ],
)  # fmt: skip
def test_a_plural_is_known_by_its_ending(name: str, singular: str) -> None:
    assert plural(name) == singular


def test_a_column_may_count_units() -> None:
    assert plural("keep_days", may_count=True) == "" and plural("keep_days") == "keep_day"
    assert in_table("keep_days INT NULL COMMENT 'How long'") == []


@pytest.mark.parametrize(
    ("name", "wanted"), [("OrderLine", "order_line"), ("userID", "user_id"), ("HTTPCode", "http_code"), ("a-b", "a_b")]
)
def test_a_name_is_shown_in_snake_case(name: str, wanted: str) -> None:
    assert in_snake_case(name) == wanted


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("user_dropped", True), ("_user_del", True), ("user_old_20260101", True), ("user", False), ("threshold", False)],
)
def test_what_is_to_be_dropped_is_known_by_its_name(name: str, is_one: bool) -> None:
    assert is_to_drop(name) is is_one


@pytest.mark.parametrize(
    ("column", "code"),
    [
        ("`Name` INT COMMENT 'X'", "VT101"),
        ("`key` INT COMMENT 'X'", "VT104"),
        ("active TINYINT(1) COMMENT 'X'", "VT105"),
        ("active BIT(1) COMMENT 'X'", "VT105"),
        ("is_active CHAR(1) COMMENT 'X'", "VT105"),
        ("born DATETIME(6) COMMENT 'X'", "VT106"),
        ("born_at DATE COMMENT 'X'", "VT106"),
        ("modified_user_id INT COMMENT 'X'", "VT107"),
        ("updated_by DATETIME COMMENT 'X'", "VT106 VT107"),
        ("code INT UNIQUE COMMENT 'X'", "VT108"),
        ("code INT COMMENT 'X', KEY code_key (code)", "VT108"),
        ("code TEXT COMMENT 'X', FULLTEXT KEY code (code)", "VT108"),
        ("tree JSON COMMENT 'X'", "VT109"),
        ("a INT", "VT201"),
        ("a INT COMMENT '  '", "VT201"),
        ("a INT COMMENT '#GEO where it is'", "VT202"),
        ("a INT COMMENT 'shop: where it is'", "VT202"),
        ("phase TINYINT COMMENT '1 = new, 2 = old'", "VT203"),
        ("user_role INT COMMENT 'X'", "VT203"),
        ("token VARCHAR(36) COMMENT 'X'", "VT204"),
        ("a_guid BIGINT COMMENT 'X'", "VT204"),
        ("a_uuid UUID COMMENT 'X'", "VT204"),
        ("a_id BINARY(16) DEFAULT (UUID_TO_BIN(UUID(), 1)) COMMENT 'X'", "VT205"),
        ("a_id INT DEFAULT -1 COMMENT 'X'", "VT206"),
        ("a_id CHAR(2) DEFAULT '' COMMENT 'X'", "VT206"),
        ("due_on DATE DEFAULT '9999-12-31' COMMENT 'X'", "VT206"),
        ("due_at DATETIME DEFAULT '0000-00-00 00:00:00' COMMENT 'X'", "VT206"),
        ("a INT COMMENT 'X', UNIQUE KEY a_key (id)", "VT304"),
        ("a INT COMMENT 'X', KEY a_idx (a), KEY b_idx (a)", "VT304"),
        ("a INT COMMENT 'X' REFERENCES other (id)", "VT303"),
        ("a INT COMMENT 'X', FOREIGN KEY (a) REFERENCES o (id) ON UPDATE SET NULL", "VT303 VT504"),
    ],
)  # fmt: skip
def test_a_column_or_key_that_leaves_the_guideline_is_found(column: str, code: str) -> None:
    assert codes(in_table(column)) == code.split()


@pytest.mark.parametrize(
    "column",
    [
        "`a` INT(11) UNSIGNED ZEROFILL NOT NULL DEFAULT '0' COMMENT 'X'",
        "due_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6) COMMENT 'X'",
        "is_new TINYINT(1) UNSIGNED NOT NULL COMMENT 'X'",
        "a ENUM('it''s', 'a,b', ')') CHARACTER SET latin1 COLLATE latin1_bin COMMENT 'X'",
        "a DOUBLE PRECISION DEFAULT -1.5 COMMENT 'X'",
        "a CHAR VARYING(10) CHARACTER SET utf8mb4 DEFAULT _utf8mb4 'x' COMMENT 'X'",
        "a INT GENERATED ALWAYS AS (id + 1) VIRTUAL COMMENT 'X'",
        "a INT AS (id) STORED COMMENT 'X', CONSTRAINT a_check CHECK (a > 0)",
        "a INT NULL COMMENT 'It''s \\'x\\', KEY (a), -- no comment'",
        "a INT INVISIBLE COMMENT 'X' COLUMN_FORMAT DYNAMIC",
        "jdoc JSON DEFAULT (JSON_OBJECT('a', 0)) COMMENT 'X'",
        "a POINT NOT NULL SRID 4326 COMMENT 'X', SPATIAL INDEX a_idx (a)",
        "a VARCHAR(9) COMMENT 'X', KEY a_idx (a(3) DESC), KEY a_all_idx (a), KEY low_idx ((LOWER(a)))",
        "a TEXT COMMENT 'X', KEY a_idx (a(4)), KEY b_idx (a(3), id)",
        "a INT COMMENT 'X', KEY a_idx (a) USING BTREE COMMENT 'Why' VISIBLE",
        "a INT COMMENT 'X', UNIQUE KEY a_key (a), KEY a_id_idx (a, id)",
        "a_uuid BINARY(16) NOT NULL COMMENT 'X'",
    ],
)
def test_every_form_of_a_column_is_read_and_nothing_is_found_where_nothing_is(column: str) -> None:
    assert in_table(column) == []


def test_options_partitions_and_executable_comments_are_read() -> None:
    sql = """/*!50503 CREATE TABLE `t` (
      `id` int NOT NULL COMMENT 'Key', -- a comment: KEY (x)
      `made_on` date NOT NULL COMMENT 'Day',
      PRIMARY KEY (`id`,`made_on`)
    ) ENGINE=InnoDB AUTO_INCREMENT=7 DEFAULT CHARSET=utf8mb4 COMMENT='Parts' */
    /*!50100 PARTITION BY RANGE (year(made_on)) (PARTITION p0 VALUES LESS THAN (2020) COMMENT = 'old') */;"""
    assert defined(sql) == []


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("a VARCHAR(20) NOT NULL COMMENT 'X', PRIMARY KEY (a)", "VT302"),
        ("a VARCHAR(20) CHARACTER SET ascii NOT NULL COMMENT 'X', PRIMARY KEY (a)", ""),
        ("a BIGINT NOT NULL COMMENT 'X', b BINARY(16) NOT NULL COMMENT 'X', PRIMARY KEY (a, b)", ""),
        ("a TEXT NOT NULL COMMENT 'X', PRIMARY KEY (a(8))", ""),
        ("a TEXT NOT NULL COMMENT 'X', PRIMARY KEY (a(9))", "VT302"),
    ],
)
def test_a_primary_key_is_measured_in_bytes(key: str, code: str) -> None:
    assert codes(defined(f"CREATE TABLE t ({key}) COMMENT 'Table'")) == code.split()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE IF NOT EXISTS t LIKE shop.user", "CREATE TABLE t (LIKE user)", "CREATE TABLE t AS SELECT 1 AS a",
        "CREATE TABLE t (id INT PRIMARY KEY) SELECT 1 AS id", "CREATE TABLE t SELECT * FROM user",
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE t (id INT PRIMARY KEY) UNION=(a, b)",
        "CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 4",
        "CREATE TABLE t (id INT PRIMARY KEY, period INT, vector VECTOR(3), comment TEXT, `key` INT)",
        "CREATE TABLE t (id INT, a DATE, b DATE, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING",
        "ALTER TABLE user ORDER BY age, email DESC", "ALTER TABLE user ADD PARTITION (PARTITION p1 VALUES IN (1))",
        "ALTER TABLE user PARTITION BY HASH (id)", "ALTER TABLE user ADD INDEX (age), ALGORITHM=INPLACE, LOCK=NONE",
        "ALTER TABLE user RENAME = person", "ALTER TABLE user RENAME KEY email_idx TO mail_idx", "ALTER TABLE user",
        "ALTER TABLE user DROP FOREIGN KEY a, DROP CHECK b, DROP CONSTRAINT c, DROP PARTITION p0, p1",
        "ALTER TABLE user MODIFY COLUMN IF EXISTS age INT FIRST", "ALTER TABLE user CHANGE COLUMN age a INT AFTER id",
        "ALTER TABLE user ADD COLUMN IF NOT EXISTS a INT, ADD SYSTEM VERSIONING", "ALTER TABLE user FORCE",
        "ALTER TABLE user DISABLE KEYS", "ALTER TABLE user ENGINE InnoDB COMMENT 'x' ROW_FORMAT=DYNAMIC",
        "ALTER TABLE user ALTER INDEX email_idx INVISIBLE", "ALTER TABLE user CONVERT TO CHARACTER SET utf8mb4",
        "ALTER TABLE user ADD CONSTRAINT CHECK (age > 0)", "ALTER TABLE user ADD CONSTRAINT a PRIMARY KEY (id)",
        "ALTER TABLE user ADD PRIMARY KEY USING BTREE (id)", "ALTER TABLE user WAIT 5 ADD a INT", "ALTER DATABASE shop",
        "DROP TABLE IF EXISTS a, b CASCADE", "DROP INDEX `PRIMARY` ON user", "DROP TRIGGER t", "DROP VIEW v, w",
        "CREATE INDEX i USING BTREE ON user (age)", "CREATE FULLTEXT INDEX i ON user (email)",
        "CREATE UNIQUE INDEX IF NOT EXISTS i ON user (age DESC, (id + 1))", "CREATE USER a", "CREATE ROLE b",
        "DELETE a FROM a JOIN b ON a.id = b.id WHERE b.x = 1", "UPDATE a, b SET a.x = b.x WHERE a.id = b.id",
        "RENAME TABLE a TO b, c TO d", "GRANT SELECT ON *.* TO a", "LOCK TABLES user WRITE", "(SELECT 1)",
    ],
)  # fmt: skip
def test_statements_of_every_form_are_read(sql: str) -> None:
    assert UNREAD not in codes(migrated(sql, USER)) + codes(defined(sql))


def test_names_that_are_also_words_are_read_as_names() -> None:
    sql = "CREATE TABLE t (id INT PRIMARY KEY COMMENT 'X', period INT, vector INT, system INT) COMMENT 'Y'"
    assert {(finding.code, finding.of) for finding in defined(sql)} == {
        ("VT201", "shop.t.period"), ("VT201", "shop.t.vector"), ("VT201", "shop.t.system"), ("VT104", "shop.t.system"),
    }  # fmt: skip
    assert codes(migrated("ALTER TABLE t DROP period", sql)) == ["VT404"]


# -- migrations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        # The table that was there is not judged; what is added to it is.
        ("ALTER TABLE user ADD COLUMN a INT NULL COMMENT 'X'", ""),
        ("ALTER TABLE user ADD COLUMN (a INT NULL, b INT NULL COMMENT 'X')", "VT201"),
        ("ALTER TABLE user ADD a INT NOT NULL DEFAULT 0 COMMENT 'X' AFTER email", ""),
        ("ALTER TABLE user ADD a INT NOT NULL AS (id) COMMENT 'X'", ""),
        ("ALTER TABLE user ADD INDEX by_age (age)", "VT108"),
        ("ALTER TABLE user ADD INDEX email_age_idx (email, age)", ""),  # the redundant one was there
        ("ALTER TABLE user ADD INDEX email_too_idx (email)", "VT304"),
        ("ALTER TABLE user ADD CONSTRAINT a_fk FOREIGN KEY (age) REFERENCES age (id)", "VT303"),
        ("ALTER TABLE user RENAME INDEX email_idx TO mail", "VT108"),
        ("CREATE UNIQUE INDEX email_key ON user (email)", "VT402"),
        ("DROP INDEX email_idx ON user", "VT402"),
        ("ALTER TABLE user DROP INDEX email_idx", ""),
        ("ALTER TABLE user DROP PRIMARY KEY", "VT301 VT502"),
        ("ALTER TABLE user DROP PRIMARY KEY, ADD PRIMARY KEY (id, age)", "VT502"),
        ("ALTER TABLE user ENGINE=MyISAM, COMMENT='who buys'", "VT202 VT505"),
        # Two-phase drops
        ("DROP TABLE user, sale", "VT403 VT403 VT502 VT502"),
        ("RENAME TABLE user TO user_dropped", "VT502"),
        ("RENAME TABLE person_dropped TO person", ""),
        ("DROP TABLE IF EXISTS user_dropped, bare_dropped", ""),
        ("RENAME TABLE bare_dropped TO bare_old", ""),
        ("CREATE TABLE tmp (id INT PRIMARY KEY COMMENT 'X') COMMENT 'Y'; DROP TABLE tmp", ""),
        ("CREATE TABLE IF NOT EXISTS tmp (id INT PRIMARY KEY COMMENT 'X') COMMENT 'Y'; DROP TABLE tmp", ""),
        # A table that is not there is not dropped.
        ("DROP TABLE IF EXISTS t; CREATE TABLE t (id INT PRIMARY KEY COMMENT 'X') COMMENT 'Y'", ""),
        ("DROP TABLE IF EXISTS t, USER", "VT403 VT502"),
        ("DROP TABLE t", "VT403"),
        ("DROP TABLE IF EXISTS elsewhere.t", "VT403"),  # nobody knows what is in that database
        # Both phases in one file are one.
        ("RENAME TABLE user TO user_dropped; DROP TABLE user_dropped", "VT403 VT502"),
        ("ALTER TABLE user RENAME user_dropped; RENAME TABLE user_dropped TO a_old; DROP TABLE A_OLD", "VT403 VT502"),
        ("ALTER TABLE user RENAME COLUMN email TO email_dropped; ALTER TABLE user DROP Email_dropped", "VT404"),
        ("ALTER TABLE user CHANGE email e_old VARCHAR(60) COMMENT 'X'; ALTER TABLE user DROP e_old", "VT404"),
        ("RENAME TABLE bare_dropped TO bare_old; DROP TABLE bare_old", ""),
        ("RENAME TABLE user TO u_old; RENAME TABLE u_old TO user; DROP TABLE IF EXISTS u_old", "VT502 VT502"),
        ("CREATE TABLE u LIKE user; RENAME TABLE u TO u_old; DROP TABLE u_old", ""),
        ("ALTER TABLE user MODIFY email_dropped INT NULL COMMENT 'X'; ALTER TABLE user DROP email_dropped", ""),
        # What is there already is not made, nor changed, by IF NOT EXISTS.
        ("CREATE TABLE IF NOT EXISTS user (id INT); DROP TABLE user", "VT403 VT502"),
        ("CREATE TABLE IF NOT EXISTS user LIKE sale; ALTER TABLE user DROP email", "VT404"),
        ("CREATE TABLE IF NOT EXISTS User (id INT); RENAME TABLE user TO person", "VT405 VT502"),
        ("CREATE TABLE IF NOT EXISTS user (id INT); ALTER TABLE user MODIFY email TINYTEXT COMMENT 'X'", "VT406"),
        ("CREATE TABLE t LIKE user; CREATE TABLE IF NOT EXISTS t (id INT); ALTER TABLE t DROP email", ""),
        ("DROP DATABASE shop", "VT403"),
        ("ALTER TABLE user DROP email", "VT404"),
        ("ALTER TABLE user CHANGE email email_dropped VARCHAR(60) NULL COMMENT 'X'", ""),
        ("ALTER TABLE user DROP COLUMN email_dropped", ""),
        # Names
        ("RENAME TABLE user TO person", "VT405 VT502"),
        ("ALTER TABLE user RENAME AS person", "VT405 VT502"),
        ("CREATE TABLE user_new LIKE user; RENAME TABLE user TO user_old, user_new TO user", "VT502"),
        ("RENAME TABLE user TO users_old", "VT502"),
        ("RENAME TABLE user TO previous, sale TO user", "VT502 VT502"),
        ("ALTER TABLE user RENAME COLUMN email TO mail_dropped, ADD KEY mail_idx (mail_dropped)", "VT304"),
        ("ALTER TABLE user DROP COLUMN email_dropped, DROP KEY email_idx, ADD KEY mail_idx (email)", ""),
        ("ALTER TABLE user CHANGE email mail VARCHAR(60) NULL COMMENT 'X'", "VT405"),
        ("ALTER TABLE user RENAME COLUMN email TO Email", "VT101"),
        # Types
        ("ALTER TABLE user MODIFY age INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'X'", ""),
        ("ALTER TABLE user MODIFY age SMALLINT NOT NULL DEFAULT 0 COMMENT 'X'", "VT406"),
        ("ALTER TABLE user MODIFY age TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'X'", "VT406"),
        ("ALTER TABLE user MODIFY is_new TINYINT(1) NOT NULL DEFAULT 1 COMMENT 'X'", ""),
        ("ALTER TABLE user MODIFY state ENUM('new','old','x') NOT NULL DEFAULT 'new' COMMENT 'X'", ""),
        ("ALTER TABLE user MODIFY state ENUM('old','new') NOT NULL DEFAULT 'new' COMMENT 'X'", "VT406"),
        ("ALTER TABLE user MODIFY email VARCHAR(60) NOT NULL COMMENT 'X'", "VT407"),
        ("ALTER TABLE user MODIFY age SMALLINT UNSIGNED NOT NULL COMMENT 'X'", "VT407"),
        ("ALTER TABLE user ALTER age DROP DEFAULT", "VT407"),
        ("ALTER TABLE user ALTER COLUMN age SET DEFAULT 1", ""),
        # Tables that are not in the schema: nobody knows what they were
        ("ALTER TABLE other MODIFY age TINYINT NOT NULL COMMENT 'X'", "VT409"),
        ("ALTER TABLE elsewhere.user ADD a INT, ADD b INT", "VT409"),
        ("CREATE INDEX a_idx ON other (a)", "VT402 VT409"),
        ("ALTER TABLE other RENAME COLUMN a TO a_dropped", "VT409"),
        ("CREATE TABLE t LIKE other", "VT201 VT409"),
        ("ALTER TABLE other TRUNCATE PARTITION p0", "VT409"),
        ("ALTER TABLE other FORCE", "VT409"),
        ("TRUNCATE other", "VT409"),
        ("TRUNCATE TABLE elsewhere.user", "VT409"),
        ("CREATE TEMPORARY TABLE x (a INT); TRUNCATE TABLE x", ""),
        ("ALTER TABLE user FORCE", ""),
        ("ALTER TABLE user RENAME u_old, ADD a INT NULL COMMENT 'X'; ALTER TABLE u_old DROP INDEX email_idx", "VT502"),
        ("CREATE TEMPORARY TABLE x (a INT); ALTER TABLE x ADD b INT; ALTER TABLE X DROP a", ""),
        ("CREATE TEMPORARY TABLE IF NOT EXISTS user (a INT); ALTER TABLE user DROP email", ""),
        ("CREATE TEMPORARY TABLE user (a INT); DROP TEMPORARY TABLE user; ALTER TABLE user DROP email", "VT404"),
        # Rows
        ("DELETE FROM user", "VT408"),
        ("DELETE FROM user WHERE 1 = 1", "VT408"),
        ("DELETE FROM user LIMIT 10", ""),
        ("UPDATE user SET age = (SELECT MAX(id) FROM sale WHERE id > 1)", "VT408"),
        ("UPDATE user SET age = 1 WHERE email IS NULL", ""),
        ("WITH x AS (SELECT id FROM sale WHERE id > 1) DELETE FROM user", "VT408"),
        ("WITH x AS (SELECT id FROM sale) SELECT * FROM x", ""),
        # Readers of changes
        ("TRUNCATE user", "VT502"),
        ("ALTER TABLE user TRUNCATE PARTITION p0", "VT502"),
        ("ALTER TABLE user EXCHANGE PARTITION p0 WITH TABLE sale", "VT502 VT502"),
        ("ALTER TABLE user CONVERT TO CHARACTER SET latin1", "VT502"),
        ("SET sql_log_bin = 0; UPDATE user SET age = 1 WHERE id = 1", "VT502 VT503"),
        ("SET SESSION binlog_format = 'STATEMENT'", "VT503"),
        ("CREATE TEMPORARY TABLE x (a INT)", ""),
        ("CREATE EVENT clean ON SCHEDULE EVERY 1 DAY DO DELETE FROM user", "VT305"),
        ("CREATE DEFINER=`a`@`b` PROCEDURE p() BEGIN END", "VT305"),
        ("CREATE DEFINER=event@trigger PROCEDURE p() BEGIN END", "VT305"),
        ("CREATE AGGREGATE FUNCTION f RETURNS INT SONAME 'f.so'", "VT305"),
        ("CREATE VIEW v AS SELECT * FROM user", ""),
        ("CREATE VIEW v AS SELECT event FROM log", ""),
        ("CREATE OR REPLACE DEFINER=event@trigger SQL SECURITY INVOKER VIEW v AS SELECT function FROM log", ""),
        ("CREATE TEMPORARY TABLE x (event INT)", ""),
        ("CREATE USER event@localhost", ""),
        ("INSERT INTO user (id) VALUES (1); SELECT 1; ANALYZE TABLE user", ""),
    ],
)  # fmt: skip
def test_a_migration_answers_for_what_it_does_and_what_it_defines(sql: str, found: str) -> None:
    assert sorted(codes(migrated(sql, USER))) == found.split()


def test_what_a_view_follows_by_itself_breaks_none() -> None:
    given = "CREATE TABLE shop.invoice (id INT NOT NULL PRIMARY KEY, number INT NULL)"
    assert codes(migrated("ALTER TABLE invoice DROP PARTITION p0", given, views=VIEWS)) == ["VT502"]


def test_a_later_file_goes_on_with_what_an_earlier_one_made() -> None:
    linter = Linter(Chosen(), "shop")
    first = "CREATE TABLE a (id INT PRIMARY KEY COMMENT 'X', n INT NULL COMMENT 'X') COMMENT 'Y'"
    files = [SqlFile(name="1.sql", text=first), SqlFile(name="2.sql", text="\nALTER TABLE a ADD KEY n (n)")]
    linter.migrate(files, [], None)
    (finding,) = linter.findings()
    assert (finding.code, finding.file, finding.line, finding.of) == ("VT108", "2.sql", 2, "shop.a.n")


def test_nothing_is_dropped_from_a_schema_without_tables() -> None:
    sql = "DROP TABLE IF EXISTS t; CREATE TABLE t (id INT PRIMARY KEY COMMENT 'X') COMMENT 'Y'"
    assert migrated(sql) == []
    assert codes(migrated("DROP TABLE t")) == ["VT403"]


def test_a_table_that_is_not_known_is_named_with_what_to_do() -> None:
    (finding,) = migrated("ALTER TABLE other ADD a INT NULL, ADD b INT NULL", USER)
    assert (finding.code, finding.level, finding.of) == ("VT409", "error", "shop.other")
    assert "not in the schema" in finding.why
    assert all(way in finding.instead for way in ("USE", "--database", "--schema"))


def test_a_temporary_table_ends_with_its_file() -> None:
    linter = Linter(Chosen(), "shop")
    linter.define(SqlFile(name="dump.sql", text=USER), is_judged=False)
    first = SqlFile(name="1.sql", text="CREATE TEMPORARY TABLE user (a INT)")
    linter.migrate([first, SqlFile(name="2.sql", text="ALTER TABLE user DROP email")], [], None)
    assert codes(linter.findings()) == ["VT404"]


def test_a_later_file_drops_what_an_earlier_one_renamed() -> None:
    linter = Linter(Chosen(select=("VT4",)), "shop")
    linter.define(SqlFile(name="dump.sql", text=USER), is_judged=False)
    first = "RENAME TABLE sale TO sale_dropped; ALTER TABLE user RENAME COLUMN email TO email_dropped"
    second = "DROP TABLE sale_dropped; ALTER TABLE user DROP email_dropped"
    linter.migrate([SqlFile(name="1.sql", text=first), SqlFile(name="2.sql", text=second)], [], None)
    assert linter.findings() == []


def test_a_use_and_a_set_end_with_their_file_for_views_too() -> None:
    given = "CREATE TABLE shop.invoice (id INT NOT NULL PRIMARY KEY, number INT NULL)"
    linter = Linter(Chosen(select=("VT501",)), "shop")
    linter.define(SqlFile(name="dump.sql", text=given), is_judged=False)
    breaking = SqlFile(name="2.sql", text="ALTER TABLE invoice RENAME COLUMN number TO number_dropped")
    linter.migrate([SqlFile(name="1.sql", text="USE other;\nSET sql_mode = 'ANSI_QUOTES';"), breaking], VIEWS, None)
    assert [(finding.code, finding.file) for finding in linter.findings()] == [("VT501", "2.sql")]


def test_a_column_of_a_long_statement_is_shown_at_its_own_line() -> None:
    sql = "-- 1\n/* 2\n 3 */ CREATE TABLE t (\n  id INT PRIMARY KEY COMMENT 'X', /* a\n b */\n  n INT\n) COMMENT 'Y';"
    assert [(finding.code, finding.line) for finding in defined(sql)] == [("VT201", 6)]


def test_a_program_has_its_own_name_whatever_its_definer_is_called() -> None:
    assert [finding.of for finding in migrated("CREATE DEFINER=event@trigger PROCEDURE p() BEGIN END")] == ["shop.p"]


def test_use_and_sql_mode_count() -> None:
    sql = "USE other;\nSET sql_mode = 'ANSI_QUOTES';\nCREATE TABLE \"t\" (\"id\" INT PRIMARY KEY) COMMENT 'Y'"
    assert [finding.of for finding in defined(sql)] == ["other.t.id"]


# -- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE user ADD COLUM foo INT",
        "CREATE TABLE t (id INTT PRIMARY KEY)",
        "CREATE TABLE t (id INT PRIMARY KEY",
        "ALTER TABLE user MODIFY",
        "CALL clean()",
        "SOURCE other.sql",
        "EXECUTE statement",
        "SELEC 1",
        "CREATE TABLE t (id INT) ALTER TABLE user ADD a INT",
        "UPDATE user",
        "DROP TABLE",
        "'",
    ],
)  # fmt: skip
def test_a_statement_that_cannot_be_read_is_a_finding_that_nothing_ignores(sql: str) -> None:
    (finding,) = migrated(f"-- viewtail: ignore VT1\n{sql}", USER, chosen=Chosen(ignore=("VT",)))
    assert (finding.code, finding.level, finding.line) == (UNREAD, "error", 2) and finding.why
    (in_dump,) = defined(sql)
    assert in_dump.code == UNREAD


def test_the_rest_of_the_file_is_judged_all_the_same() -> None:
    assert codes(migrated("CALL x();\nDELETE FROM user;\nALTER TABLE user ADD COLUM b INT", USER)) == [
        UNREAD, "VT408", UNREAD,
    ]  # fmt: skip


# -- choosing and silencing -------------------------------------------------------------------------------------------

TWO = "CREATE TABLE users (\n  Id INT PRIMARY KEY,\n  n INT\n)"


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (Chosen(), ["VT102", "VT201", "VT101", "VT201", "VT201"]),
        (Chosen(select=("VT1",)), ["VT102", "VT101"]),
        (Chosen(select=("VT1", "VT201"), ignore=("VT101",)), ["VT102", "VT201", "VT201", "VT201"]),
        (Chosen(ignore=("VT2", "VT101:shop.users.Id")), ["VT102"]),
        (Chosen(ignore=("VT2", "VT1:shop.user*")), []),
        (Chosen(ignore=("VT2", "VT1:shop.other")), ["VT102", "VT101"]),
        (Chosen(ignore=("VT2", "VT101:shop.users")), ["VT102"]),
    ],
)
def test_rules_are_chosen_by_code_and_by_name(chosen: Chosen, found: list[str]) -> None:
    assert codes(defined(TWO, chosen)) == found


@pytest.mark.parametrize("code", ["VT9", "E501", "", "VT101x", "vt101"])
def test_what_is_no_rule_cannot_be_chosen(code: str) -> None:
    for arguments in ({"select": (code,)}, {"ignore": (code,)}, {"ignore": (f"{code}:shop.user",)}):
        with pytest.raises(MisuseError, match="is no rule"):
            Chosen(**arguments)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("CREATE TABLE users ( -- viewtail: ignore VT102, VT201\n  id INT PRIMARY KEY\n)", ["VT201"]),
        ("-- viewtail: ignore VT102, VT201\nCREATE TABLE users (\n  id INT PRIMARY KEY\n)", []),
        ("# viewtail: ignore VT1\n\n-- why\nCREATE TABLE users (\n  id INT PRIMARY KEY COMMENT 'X'\n)", ["VT201"]),
        ("CREATE TABLE users (\n  -- so it is. viewtail: ignore VT201\n  id INT PRIMARY KEY\n)", ["VT102", "VT201"]),
        ("CREATE TABLE users (\n  id INT PRIMARY KEY /* viewtail: ignore VT2 */\n)", ["VT102", "VT201"]),
        ("SELECT '-- viewtail: ignore VT1';\nCREATE TABLE users (id INT PRIMARY KEY)", ["VT102", "VT201", "VT201"]),
        ("SELECT '\n-- viewtail: ignore VT1\n';CREATE TABLE users (id INT PRIMARY KEY)", ["VT102", "VT201", "VT201"]),
    ],
)  # fmt: skip
def test_a_comment_silences_its_line_or_the_statement_below(sql: str, found: list[str]) -> None:
    assert codes(defined(sql)) == found


@pytest.mark.parametrize("comment", ["-- viewtail: ignore", "-- viewtail: ignore VT999", "/* viewtail: ignore V101 */"])
def test_a_comment_that_silences_no_rule_is_refused_with_its_line(comment: str) -> None:
    with pytest.raises(MisuseError, match=r"new\.sql:2: .* is no rule"):
        migrated(f"\n{comment}\nSELECT 1")


# -- viewtail's own ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddl", [*schema.STORE_TABLES, *schema.SOURCE_TABLES], ids=schema.table_of)
def test_viewtails_own_tables_pass(ddl: str) -> None:
    assert defined(ddl.format(database="viewtail", collation="utf8mb4_0900_bin")) == []


def test_the_tables_that_viewtail_makes_for_entities_pass() -> None:
    facts: Any = SimpleNamespace(binary_collation="utf8mb4_0900_bin")
    events, cells = EventTable("shop.account"), CellTable("shop.cell")
    for statement in (events.ddl(facts), places_ddl(events), cells.ddl(facts), cells.trigger_ddl(facts), _ddl("shop")):
        assert defined(statement) == []


def test_the_index_tables_that_viewtail_makes_pass() -> None:
    """But for the beginning of the comment, by which viewtail knows them: the entity's name as it is."""
    column = partial(Column, kind=Kind.INTEGER, declared="int", is_nullable=False)
    table = Table(schema="shop", name="user", columns=(column(name="id"), column(name="age")), primary_key=("id",))
    (view,) = bind([IndexTable("user_by_age", Entity("shop.user"), value="age")], lambda *_: table)
    found = defined(IndexTableShape("viewtail", view)._create())
    assert [(finding.code, finding.of) for finding in found] == [("VT202", "viewtail.user_by_age")]


def test_the_tables_of_the_examples_pass() -> None:
    shop = (CHECKOUT / "examples/shop/shop.sql").read_text()
    plain = [jogchat(table, columns) for table, columns in INDEXED.items()]
    for statement in (*DEMO, *ORDERS, *OWN, *unshatter(1), *plain, CREATE, shop):
        assert defined(statement) == []


def test_the_rules_are_of_two_levels_and_both_occur() -> None:
    assert {rule.level for rule in RULES} == {*Level}
