"""Why a statement of a migration cannot be read: no server has seen it, so it may be misspelt, or hide what it does.

The judge of a running viewtail (ingest/binlog/statements.py) sees only what a server has executed, so it may be
lenient: `ADD COLUM foo INT` adds a column COLUM there. Known here are the statements of MySQL and MariaDB, the words of
a column's definition, and a table's options. Whether names exist and expressions hold is the server's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ingest import ddl
from servers.quoted import QUOTED

_DEFINES = re.compile(r"(?:CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE)
_PROGRAM = re.compile(r"CREATE\b(?:(?!TABLE\b).){0,300}?\b(?:PROCEDURE|FUNCTION|TRIGGER|EVENT|PACKAGE)\b", re.I | re.S)
_QUOTED = re.compile(QUOTED, re.DOTALL)
_SECOND = re.compile(  # without a ';' before it, it is part of what comes before, which no server takes
    r"(?<!\ASHOW )\b((?:ALTER|CREATE|DROP|TRUNCATE|RENAME)\s+(?:OR\s+REPLACE\s+|TEMPORARY\s+|IGNORE\s+)*"
    r"(?:TABLES?|DATABASE|SCHEMA)\b)",
    re.IGNORECASE,
)
# What comes behind the verb where a table or database is defined, and where another object is.
_TABLES = frozenset({"TABLE", "TABLES", "DATABASE", "SCHEMA", "KEY"})
_OBJECTS = frozenset(
    {"AGGREGATE", "ALGORITHM", "DEFINER", "EVENT", "FULLTEXT", "FUNCTION", "INDEX", "INSTANCE", "LIBRARY", "LOGFILE",
     "OR", "PACKAGE", "PREPARE", "PROCEDURE", "RESOURCE", "ROLE", "SEQUENCE", "SERVER", "SPATIAL", "SQL", "TABLESPACE",
     "TEMPORARY", "TRIGGER", "UNDO", "UNIQUE", "USER", "VECTOR", "VIEW"}
)  # fmt: skip
_HOLDS_NO_ROWS = frozenset({"PACKAGE", "PREPARE", "RESOURCE", "SEQUENCE", "USER"})  # and ddl.read knows none of them
_HIDDEN = frozenset({"BINLOG", "CALL", "CONNECT", "EXECUTE", "SOURCE", "SYSTEM"})
_FORMS = {
    word: re.compile(rf"{word}\b{form}", re.IGNORECASE | re.DOTALL)
    for words, form in {
        "INSERT REPLACE": r".*(?:\bVALUES?\b|\bSELECT\b|\bSET\b|\bTABLE\b)",
        "UPDATE": r".*\bSET\b",
        "DELETE": r".*\bFROM\b",
        "WITH": r"\s+(?:RECURSIVE\s+)?[^\s(]+\s*(?:\([^()]*\)\s*)?AS\s*\(",
        "LOAD": r"\s+(?:DATA|XML|INDEX)\b",
        "SET": r".*(?:=|\s(?:NAMES|CHARSET|CHARACTER|TRANSACTION|ROLE|PASSWORD|RESOURCE)\b)",
        "USE": r"\s*[^\s;]+\Z",
        "BEGIN": r"(?:\s+WORK)?\Z",
        "START": r"\s+(?:TRANSACTION|SLAVE|ALL|REPLICA|GROUP_REPLICATION)\b",
        "COMMIT ROLLBACK": r"(?:\s+(?:WORK|TO|AND|NO|RELEASE|CHAIN|SAVEPOINT|\S+\Z))*\Z",
        "SAVEPOINT": r"\s*\S+\Z",
        "RELEASE": r"\s+SAVEPOINT\b",
        "XA": r"\s+\w+",
        "LOCK UNLOCK": r"\s+(?:TABLES?|INSTANCE|BINLOG)\b",
        "ANALYZE OPTIMIZE REPAIR CHECK CHECKSUM": r"\s+(?:\w+\s+)?(?:TABLES?|VIEW|FORMAT)\b",
        "GRANT": r".*\bTO\b",
        "REVOKE": r".*\bFROM\b",
        "IMPORT": r"\s+TABLE\b",
        "PREPARE": r".*\bFROM\b",
        "DEALLOCATE": r"\s+PREPARE\b",
        "INSTALL UNINSTALL": r"\s+(?:PLUGIN|COMPONENT|SONAME)\b",
        "DO": r"\s+\S+\s*\(|DO\s+\d",
        "SELECT TABLE VALUES SHOW EXPLAIN DESCRIBE DESC FLUSH HANDLER KILL RESET PURGE SIGNAL HELP CACHE": r"\s*\S",
    }.items()
    for word in words.split()
}

_TYPES = (
    r"(?:DOUBLE(?: PRECISION)?|(?:NATIONAL )?(?:CHAR|CHARACTER|VARCHAR|VARCHARACTER|NCHAR|NVARCHAR)(?: VARYING)?"
    r"|LONG(?: (?:VARCHAR|VARBINARY|VARCHARACTER|CHAR VARYING|CHARACTER VARYING))?"
    r"|BIT|BOOL|BOOLEAN|TINYINT|SMALLINT|MEDIUMINT|MIDDLEINT|INT|INTEGER|BIGINT|INT[1-48]|DECIMAL|DEC|NUMERIC|FIXED"
    r"|NUMBER|FLOAT|FLOAT4|FLOAT8|REAL|SERIAL|DATE|TIME|DATETIME|TIMESTAMP|YEAR|VARCHAR2|BINARY|VARBINARY|RAW"
    r"|TINYBLOB|BLOB|MEDIUMBLOB|LONGBLOB|TINYTEXT|TEXT|MEDIUMTEXT|LONGTEXT|CLOB|ENUM|SET|JSON|XMLTYPE"
    r"|GEOMETRY|POINT|LINESTRING|POLYGON|MULTIPOINT|MULTILINESTRING|MULTIPOLYGON|GEOMETRYCOLLECTION|GEOMCOLLECTION"
    r"|VECTOR|UUID|INET4|INET6)"
)
_NAME = r"[^\s()]+(?: \. [^\s()]+)*"
_ACTION = "(?:RESTRICT|CASCADE|SET NULL|SET DEFAULT|NO ACTION)"
_ATTRIBUTES = (
    r"\(\)", "UNSIGNED|SIGNED|ZEROFILL|BINARY|ASCII|UNICODE|BYTE",
    rf"(?:CHARACTER SET|CHARSET|COLLATE)(?: =)? {_NAME}", "NOT NULL|NULL",
    rf"(?:DEFAULT|ON UPDATE)(?: [-+])?(?: NEXT VALUE FOR)? {_NAME}(?: \?)?(?: \(\))?", r"DEFAULT \(\)",
    "AUTO_INCREMENT|SERIAL DEFAULT VALUE", "UNIQUE(?: KEY)?|PRIMARY KEY|PRIMARY|KEY",
    r"(?:COMMENT|SRID|REF_SYSTEM_ID)(?: =)? \S+",
    r"(?:GENERATED ALWAYS )?AS \(\)", "VIRTUAL|STORED|PERSISTENT|VISIBLE|INVISIBLE|COMPRESSED(?: = \\S+)?",
    r"GENERATED ALWAYS AS ROW (?:START|END)", "(?:WITH|WITHOUT) SYSTEM VERSIONING",
    r"(?:COLUMN_FORMAT|STORAGE) \w+", r"(?:SECONDARY_)?ENGINE_ATTRIBUTE(?: =)? \S+", "NOT SECONDARY",
    rf"(?:CONSTRAINT(?: (?!CHECK){_NAME})? )?CHECK \(\)(?: (?:NOT )?ENFORCED)?",
    rf"REFERENCES {_NAME} \(\)(?: MATCH \w+)?(?: ON (?:DELETE|UPDATE) {_ACTION})*",
    rf"FIRST|AFTER {_NAME}", r"IETF_QUOTES = \S+",
)  # fmt: skip
_DEFINITION = re.compile(
    rf"(?P<type>{_TYPES})(?P<rest>(?: (?:{'|'.join(_ATTRIBUTES)}))*+)(?P<other>(?: .*)?)\Z", re.DOTALL
)
_IF_EXISTS = r"(?:IF (?:NOT )?EXISTS )?"
_ADDED = re.compile(rf"ADD (?:COLUMN )?{_IF_EXISTS}(?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)
_MODIFIED = re.compile(rf"MODIFY (?:COLUMN )?{_IF_EXISTS}(?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)
_CHANGED = re.compile(rf"CHANGE (?:COLUMN )?{_IF_EXISTS}\S+ (?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)
_LISTED = re.compile(r"(?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)
_KEY = re.compile(
    r"(?:ADD )?(?:INDEX|KEY|PRIMARY KEY|UNIQUE|FULLTEXT|SPATIAL|VECTOR (?:INDEX|KEY)|CONSTRAINT|FOREIGN KEY|CHECK"
    r"|PERIOD FOR)\b"
)
_COPIED = re.compile(r"(?:LIKE|SELECT|WITH|TABLE|VALUES)\b")
_ADDS_NO_COLUMN = re.compile(r"ADD (?:PARTITION|SYSTEM VERSIONING)\b")
_OPTION = re.compile(  # behind which anything may come
    r"(?:ENGINE|TYPE|AUTO_INCREMENT|AUTOEXTEND_SIZE|AVG_ROW_LENGTH|CHARACTER SET|CHARSET|COLLATE|DEFAULT|CHECKSUM"
    r"|TABLE_CHECKSUM|PAGE_CHECKSUM|COMMENT|COMPRESSION|CONNECTION|DATA|DELAY_KEY_WRITE|ENCRYPTION|ENCRYPTED"
    r"|ENCRYPTION_KEY_ID|ENGINE_ATTRIBUTE|SECONDARY_ENGINE|SECONDARY_ENGINE_ATTRIBUTE|SECONDARY_LOAD"
    r"|SECONDARY_UNLOAD|INDEX|INSERT_METHOD|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS|ORDER|ORDER BY|PACK_KEYS|PAGE_COMPRESSED"
    r"|PAGE_COMPRESSION_LEVEL|PASSWORD|ROW_FORMAT|SEQUENCE|START TRANSACTION|STATS_AUTO_RECALC|STATS_PERSISTENT"
    r"|STATS_SAMPLE_PAGES|TABLESPACE|STORAGE|TRANSACTIONAL|UNION|IETF_QUOTES)\b"
)
# Of these ddl.read knows every form.
_KNOWN = re.compile(
    r"(?:ADD|DROP|RENAME|MODIFY|CHANGE|EXCHANGE|ALTER|CONVERT|DISCARD|IMPORT|REMOVE|ENABLE|DISABLE|LOCK|WITH|WITHOUT"
    r"|FORCE|PARTITION|PARTITION BY|ALGORITHM|ANALYZE|CHECK|COALESCE|OPTIMIZE|REBUILD|REORGANIZE|REPAIR|TRUNCATE"
    r"|WAIT|NOWAIT)\b"
)


def why_unread(text: str, database: str) -> str:
    """Why it cannot be told from a statement's plain text what it would do; '' where it can.

    Args:
        text: as ingest/binlog/statements.plain gives it.
        database: the session's.
    """
    bare = _QUOTED.sub("?", text).strip()
    word = (re.match(r"[(\s]*(\w*)", bare) or ("", ""))[1].upper()
    if word in _HIDDEN or bare[:1] == "\\":
        return f"what {word or bare[:2]} runs is not in this file"
    if _DEFINES.match(bare):
        return _why_undefined(text, bare, database)
    if (form := _FORMS.get(word)) is None:
        return f"{word or bare[:1]} begins no statement of MySQL or MariaDB that viewtail knows"
    if form.match(bare.lstrip("( \n\t")) is None:
        return f"this {word} statement has no form that viewtail knows"
    return _why_followed(bare)


def is_definition(text: str) -> bool:
    """Whether a statement defines a table, or another object, by its first word."""
    return _DEFINES.match(text) is not None


def _why_followed(bare: str) -> str:
    second = _SECOND.search(bare, 1)
    return f"{' '.join(second[1].upper().split())} in the middle of a statement: a ; is missing" if second else ""


def _why_undefined(text: str, bare: str, database: str) -> str:
    words = [word.upper() for word in re.findall(r"\w+", bare)[:3]]
    if not _is_known(words):
        return f"{' '.join(words[:2])} is no statement of MySQL or MariaDB that viewtail knows"
    if not _PROGRAM.match(bare) and (why := _why_followed(bare)):
        return why
    if _HOLDS_NO_ROWS & set(words[1:2]):
        return ""
    try:
        ddl.read(text, database)
        outlines = ddl.outlines(text)
    except ddl.Unread as error:
        return f"viewtail does not know {error}"
    misspelt = map(_why_misspelt, _without_lists(outlines)) if words[0] == "ALTER" else map(_why_unlisted, outlines)
    return next(filter(None, misspelt), "")


def _is_known(words: Sequence[str]) -> bool:
    """Whether a table, a database or another object may be defined so, by the statement's first three words."""
    if words[:1] == ["TRUNCATE"] or words[1:3] in (["ONLINE", "TABLE"], ["IGNORE", "TABLE"]):
        return True
    return not (_TABLES | _OBJECTS).isdisjoint(words[1:2])


def _without_lists(outlines: Sequence[str]) -> Iterator[str]:
    """Without the second and further ones of a list of partitions."""
    is_list = False
    for words in map(str.split, outlines):
        if not (is_list and words[1:2] in ([], ["INTO"], ["TABLESPACE"])):
            is_list = words[1:2] == ["PARTITION"]
            yield " ".join(words)


def _why_unlisted(outline: str) -> str:
    """Of one of the things that a CREATE TABLE has in parentheses."""
    found = None if _KEY.match(outline) or _COPIED.match(outline) else _LISTED.match(outline)
    return _why_odd(found) if found is not None else ""


def _why_misspelt(outline: str) -> str:
    """Of one specification of an ALTER TABLE."""
    if _KEY.match(outline):
        return "" if "()" in outline else f"a key without columns behind {outline.partition(' ')[0]}"
    for pattern in (_ADDED, _MODIFIED, _CHANGED):
        if (found := pattern.match(outline)) and not _ADDS_NO_COLUMN.match(outline):
            return "" if found["name"] == "()" else _why_odd(found)
    return (
        ""
        if _KNOWN.match(outline) or _OPTION.match(outline)
        else f"{outline.partition(' ')[0]} is no option of a table"
    )


def _why_odd(column: re.Match[str]) -> str:
    """Why a column's definition is none; '' where it is one."""
    definition = _DEFINITION.match(column["definition"])
    if definition is None:
        what = column["definition"].partition(" ")[0] or "nothing"
        return f"{what} where the type of column {column['name']} should be"
    other = definition["other"].strip()
    return f"{other.partition(' ')[0]} in the definition of column {column['name']}" if other else ""
