"""Why a statement of a migration cannot be read: no server has seen it, so it may be misspelt, or hide what it does.

The judge of a running viewtail (ingest/binlog/statements.py) sees only what a server has executed, so it may be
lenient: `ADD COLUM foo INT` adds a column COLUM there. Known here are the statements of MySQL and MariaDB, and in
table_forms.py what a table's definition may hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingest import ddl
from viewtail.operations import table_forms
from viewtail.servers.quoted import QUOTED

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


def why_unread(text: str, database: str) -> str:
    """Return why it cannot be told from a statement's plain text what it would do; '' where it can.

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
    """Return whether a statement defines a table, or another object, by its first word."""
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
        outlines = ddl.outlines(text)
        ddl.read(text, database)
    except ddl.Unread as error:
        return f"viewtail does not know {error}{table_forms.meant_in(bare)}"
    return next(table_forms.misspelt(outlines), "")


def _is_known(words: Sequence[str]) -> bool:
    """Return whether a table, a database or another object may be defined so, by the statement's first three words."""
    if words[:1] == ["TRUNCATE"] or words[1:3] in (["ONLINE", "TABLE"], ["IGNORE", "TABLE"]):
        return True
    return not (_TABLES | _OBJECTS).isdisjoint(words[1:2])
