"""The verdict on a statement is never less safe than what the server did with it.

Random statements about a followed table and its neighbours are given to a real server. Where the values of followed
columns, the rows, or the key are others afterwards, the statement must have halted the table or turned its rows.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pymysql

from ingest.binlog.statements import judge, plain
from ingest.canonical import describe
from stack import Server
from viewtail.changes.batches import Followed, TableChangeKind
from viewtail.servers.sessions import MySQLAddress, open_session

STATEMENTS = int(os.environ.get("VIEWTAIL_TEST_STATEMENTS", "80"))
USED = ("id", "email", "n", "price")
MODES = {
    "": 0,
    "STRICT_TRANS_TABLES": 1 << 21,
    "ANSI_QUOTES,STRICT_ALL_TABLES": 1 << 2 | 1 << 22,
    "NO_BACKSLASH_ESCAPES": 1 << 20,
}
PARTITIONS = "(PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN MAXVALUE)"
COLUMNS = "(id INT PRIMARY KEY, email VARCHAR(40), n INT, price DECIMAL(10,2), e VARCHAR(20), `or` INT)"
MAKE = (
    "DROP DATABASE IF EXISTS verdicts",
    "CREATE DATABASE verdicts CHARACTER SET utf8mb4",
    "USE verdicts",
    f"CREATE TABLE item {COLUMNS} PARTITION BY RANGE (id) {PARTITIONS}",
    "INSERT INTO item VALUES (1, 'Žofie  ', 300, 1.25, 'one', 1), (2, '2', -1, -0.05, '2', 2)",
    "INSERT INTO item VALUES (20, NULL, 7, NULL, 'x', 3)",
    f"CREATE TABLE other {COLUMNS}",
    "INSERT INTO other VALUES (3, 'three', 3, 3, '3', 3)",
)
SPECIFICATIONS = """
ADD COLUMN {new} INT
ADD {new} VARCHAR(9) DEFAULT 'DROP COLUMN n' FIRST
ADD COLUMN ({new} INT, {new}2 TEXT)
DROP COLUMN {column}
DROP {column}
RENAME COLUMN {column} TO {new}
RENAME COLUMN {column} TO {column2}
CHANGE {column} {new} {type}
CHANGE COLUMN {column} {column} {type}
MODIFY {column} {type}
MODIFY COLUMN {column} {type} NOT NULL FIRST
MODIFY {column} {type} COMMENT 'a, DROP n'
MODIFY {column} {type} AFTER {column2}
MODIFY {column} {type} CHARACTER SET latin1
ALTER COLUMN {column} SET DEFAULT 5
ALTER {column} DROP DEFAULT
ALTER COLUMN {column} SET INVISIBLE
ADD INDEX ({column})
ADD UNIQUE KEY {new} (id, {column})
DROP PRIMARY KEY
DROP PRIMARY KEY, ADD PRIMARY KEY (id)
DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)
CONVERT TO CHARACTER SET {charset}
DEFAULT CHARACTER SET {charset}
ENGINE=InnoDB
ENGINE = {engine}
FORCE
COMMENT='it''s'
ORDER BY {column}
AUTO_INCREMENT=7
TRUNCATE PARTITION low
TRUNCATE PARTITION low, high
DROP PARTITION low
REMOVE PARTITIONING
EXCHANGE PARTITION low WITH TABLE other
PARTITION BY HASH (id) PARTITIONS 2
REBUILD PARTITION low
REORGANIZE PARTITION low, high INTO (PARTITION a VALUES LESS THAN MAXVALUE)
REORGANIZE PARTITION low INTO (PARTITION a VALUES LESS THAN (2), PARTITION b VALUES LESS THAN (10))
RENAME TO {table}
RENAME AS {new}
ALGORITHM=COPY
ALGORITHM=INPLACE
ALGORITHM=INSTANT
LOCK=NONE
""".strip().splitlines()
WHOLE = """
TRUNCATE TABLE {table}
TRUNCATE {table}
DROP TABLE {table}
DROP TABLES IF EXISTS nobody, {table}
RENAME TABLE item TO {new}, other TO item
RENAME TABLE item TO {new}
RENAME TABLE other TO {new}
RENAME TABLE item TO {new}, {new} TO item
RENAME TABLES item TO {new}, other TO item, {new} TO other
DROP INDEX `PRIMARY` ON {table}
CREATE INDEX {new} ON {table} ({column})
CREATE TABLE {new} LIKE item
CREATE TABLE {new} SELECT * FROM item
ANALYZE TABLE item
OPTIMIZE TABLE item
CREATE VIEW {new} AS SELECT * FROM item
CREATE TRIGGER {new} BEFORE INSERT ON item FOR EACH ROW SET NEW.n = 5
DROP DATABASE verdicts
DROP TEMPORARY TABLE IF EXISTS item
UPDATE item SET n = n + 1
DELETE FROM item
REPLACE INTO item SELECT * FROM other
""".strip().splitlines()
TYPES = """
VARCHAR(40)
VARCHAR(60)
VARCHAR(5)
CHAR(40)
TEXT
INT
BIGINT
INT UNSIGNED
TINYINT
YEAR
DECIMAL(10,2)
DECIMAL(12,1)
DECIMAL(12,2)
DEC(9,2)
VARBINARY(40)
DOUBLE
INT AS (id + 1) STORED
VARCHAR(40) CHARACTER SET ascii
INTEGER ZEROFILL
NATIONAL VARCHAR(40)
""".strip().splitlines()


def make_statement(chance: random.Random, is_ansi: bool) -> str:
    whole = chance.choice(WHOLE)
    if chance.random() < 0.75:
        some = chance.sample(SPECIFICATIONS, chance.choice((1, 1, 2, 3)))
        whole = "ALTER TABLE {table} " + chance.choice((", ", ",", " ,\n\t")).join(some)
    columns = (*USED[1:], "e", "or")
    quote = '"' if is_ansi and chance.random() < 0.5 else "`"

    def quoted(name: str) -> str:
        return f"{quote}{name}{quote}" if name == "or" or chance.random() < 0.3 else chance.choice((name, name.upper()))

    made = whole.format(
        table=chance.choice(("item", "item", "`item`", "verdicts.item", "`verdicts` . item", "other")),
        column=quoted(chance.choice(columns)),
        column2=quoted(chance.choice(columns)),
        new="fresh",
        type=chance.choice(TYPES),
        charset=chance.choice(("latin1", "utf8mb4", "ascii")),
        engine=chance.choice(("MyISAM", "BLACKHOLE", "'MEMORY'")),
    )
    disguise = chance.random()
    if disguise < 0.1:
        made = made.replace(" ", " /* item, DROP */ ", 1)
    elif disguise < 0.2:
        made = made.replace(" ", " -- it's\n", 1)
    elif disguise < 0.3:
        first, _, rest = made.partition(" ")
        made = f"{first} /*!50000 {rest} */"
    return made


def contents(cursor: Any) -> Any:
    """The followed columns of every row, and the key; None where they cannot be read."""
    try:
        cursor.execute(f"SELECT {', '.join(USED)} FROM verdicts.item ORDER BY 1, 2")
        rows = cursor.fetchall()
        cursor.execute(
            "SELECT column_name FROM information_schema.key_column_usage WHERE table_schema = 'verdicts' "
            "AND table_name = 'item' AND constraint_name = 'PRIMARY' ORDER BY ordinal_position"
        )
        return rows, cursor.fetchall()
    except pymysql.err.MySQLError:
        return None


def test_no_statement_that_changes_what_views_use_is_let_past(mysql_server: Server) -> None:
    chance = random.Random(os.environ.get("VIEWTAIL_TEST_SEED", "4"))
    connection = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root", autocommit=True)
    address = MySQLAddress(host="127.0.0.1", port=mysql_server.port, user="root")
    session = open_session(address, role="source")
    session.autocommit(True)
    accepted = changing = 0
    item: Followed | None = None
    with connection.cursor() as cursor:
        for _ in range(STATEMENTS):
            mode = chance.choice(tuple(MODES))
            statement = make_statement(chance, "ANSI" in mode)
            if item is None:
                cursor.execute("SET SESSION sql_mode = ''")
                for make in MAKE:
                    cursor.execute(make)
                item = Followed(describe(session, "verdicts", "item"), USED)
                before = contents(cursor)
            cursor.execute(f"SET SESSION sql_mode = '{mode}'")
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError:
                continue
            accepted += 1
            after = contents(cursor)
            judged = judge(plain(statement, MODES[mode]), "verdicts", [item], MODES[mode])
            verdicts = [verdict for verdict in judged if verdict.kind is not TableChangeKind.EXTENDED]
            if after != before:
                changing += 1
                assert verdicts, f"{statement!r} in mode {mode!r}: {before} became {after}"
            if after != before or not statement.startswith(("ANALYZE", "OPTIMIZE")):
                item = None
    session.close()
    connection.close()
    assert accepted > STATEMENTS / 4 and changing > STATEMENTS / 10
