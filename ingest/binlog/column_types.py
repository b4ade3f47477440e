"""The column types of the binlog: the server's bytes for them, their names, and what is known of each.

Sources: include/field_types.h and mysql/binlog/event/rows_event.h (class Table_map_event) of MySQL 9.
"""

from __future__ import annotations

from viewtail.changes.tables import Kind

DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24 = range(10)
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2, TYPED_ARRAY = range(10, 21)
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB
VECTOR, INVALID, BOOL, JSON, NEWDECIMAL, ENUM, SET = range(242, 249)
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = range(249, 256)

NAMES = {
    DECIMAL: "DECIMAL (before MySQL 5.0)", TINY: "TINYINT", SHORT: "SMALLINT", LONG: "INT", FLOAT: "FLOAT",
    DOUBLE: "DOUBLE", NULL: "NULL", TIMESTAMP: "TIMESTAMP (before MySQL 5.6)", LONGLONG: "BIGINT", INT24: "MEDIUMINT",
    DATE: "DATE", TIME: "TIME (before MySQL 5.6)", DATETIME: "DATETIME (before MySQL 5.6)", YEAR: "YEAR",
    NEWDATE: "DATE", VARCHAR: "VARCHAR", BIT: "BIT", TIMESTAMP2: "TIMESTAMP", DATETIME2: "DATETIME", TIME2: "TIME",
    TYPED_ARRAY: "typed array", BLOB_COMPRESSED: "compressed BLOB", VARCHAR_COMPRESSED: "compressed VARCHAR",
    VECTOR: "VECTOR", JSON: "JSON", NEWDECIMAL: "DECIMAL", ENUM: "ENUM", SET: "SET", TINY_BLOB: "TINYBLOB",
    MEDIUM_BLOB: "MEDIUMBLOB", LONG_BLOB: "LONGBLOB", BLOB: "BLOB", VAR_STRING: "VARCHAR", STRING: "CHAR",
    GEOMETRY: "GEOMETRY",
}  # fmt: skip

# Bytes of metadata a column has in the event (Table_map_event, "Column metadata").
METADATA_SIZE = {
    FLOAT: 1, DOUBLE: 1, TIMESTAMP2: 1, DATETIME2: 1, TIME2: 1, BLOB: 1, TINY_BLOB: 1, MEDIUM_BLOB: 1, LONG_BLOB: 1,
    GEOMETRY: 1, JSON: 1, VECTOR: 1, VARCHAR: 2, BIT: 2, NEWDECIMAL: 2, STRING: 2, VAR_STRING: 2, ENUM: 2, SET: 2,
    BLOB_COMPRESSED: 1, VARCHAR_COMPRESSED: 2, TINY: 0, SHORT: 0, LONG: 0, LONGLONG: 0, INT24: 0, NULL: 0, TIMESTAMP: 0,
    DATE: 0, TIME: 0, DATETIME: 0, YEAR: 0, NEWDATE: 0,
}  # fmt: skip
MOST_METADATA = {TIMESTAMP2: 6, DATETIME2: 6, TIME2: 6} | dict.fromkeys(
    (BLOB, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, GEOMETRY, JSON, VECTOR, BLOB_COMPRESSED), 4
)

# Which columns the optional metadata fields speak of, in column order [M, MySQL 9.7: YEAR has a sign bit, VECTOR a
# character set].
NUMERIC = frozenset((TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR))
MYSQL_CHARACTER = frozenset((
    VARCHAR, STRING, VAR_STRING, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VECTOR, BLOB_COMPRESSED, VARCHAR_COMPRESSED,
))  # fmt: skip

# MariaDB counts GEOMETRY among them [M, 10.11], which only the server's name tells: where the columns that differ from
# a default are numbered, a map of either server reads well as one of the other.
MARIADB_CHARACTER = MYSQL_CHARACTER | {GEOMETRY}

BINARY_COLLATION = 63
POINT = 1  # among the types of GEOMETRY
INTEGER_BYTES = {TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8}
BLOBS = frozenset((TINY_BLOB, BLOB, MEDIUM_BLOB, LONG_BLOB))
COMPRESSED = frozenset((VARCHAR_COMPRESSED, BLOB_COMPRESSED))
STRINGS = frozenset((VARCHAR, VAR_STRING, STRING)) | BLOBS | COMPRESSED
KINDS = dict.fromkeys((*INTEGER_BYTES, YEAR, BIT), Kind.INTEGER) | {
    NEWDECIMAL: Kind.DECIMAL, FLOAT: Kind.FLOAT, DOUBLE: Kind.DOUBLE, ENUM: Kind.ENUM,
    SET: Kind.SET, DATE: Kind.DATE, NEWDATE: Kind.DATE, TIME2: Kind.TIME,
    DATETIME2: Kind.DATETIME, TIMESTAMP2: Kind.TIMESTAMP, JSON: Kind.JSON,
    GEOMETRY: Kind.GEOMETRY, VECTOR: Kind.VECTOR,
}  # fmt: skip
