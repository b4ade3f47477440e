"""What a statement in a query event means for the followed tables.

Lexical and on the safe side: a statement that may change rows without row events, and names a followed table, halts
that table's views. Changes of a table's columns need no halt here: the next table map shows them (row_decoder.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from changes.batches import Followed


class Meaning(Enum):
    """How a query event's text bears on the transaction it stands in."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"  # what came before in this transaction was taken back, in part or whole
    SAVEPOINT = "savepoint"  # changes nothing
    XA = "xa"  # begins or ends a branch that is committed later
    STATEMENT = "statement"  # commits by itself
    OPENING_STATEMENT = "opening statement"  # CREATE TABLE ... SELECT: its rows and commit follow


_COMMENTS = re.compile(r"/\*(?!!).*?\*/|--[ \t][^\n]*|#[^\n]*", re.DOTALL)
_EXECUTABLE = re.compile(r"/\*!\d*|\*/")
_WORDS = re.compile(r"\w+")
_ROWLESS = re.compile(
    r"^(TRUNCATE|RENAME|DROP\s+(TABLE|DATABASE|SCHEMA)|INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|CALL|IMPORT)\b"
    r"|^ALTER\s+TABLE\b.*\b(RENAME\s+(?!COLUMN|INDEX|KEY)|(DROP|TRUNCATE|EXCHANGE|COALESCE|DISCARD|IMPORT)\s+(PARTITION|TABLESPACE))",
    re.IGNORECASE | re.DOTALL,
)


def plain(statement: str) -> str:
    """The statement without comments; what /*!...*/ holds is executed, so it stays."""
    return _EXECUTABLE.sub(" ", _COMMENTS.sub(" ", statement)).strip()


def meaning(statement: str) -> Meaning:
    """How a query event's text bears on the transaction it stands in."""
    words = _WORDS.findall(statement[:200].upper())
    first = words[0] if words else ""
    if first in ("BEGIN", "COMMIT"):
        return Meaning[first]
    if first == "ROLLBACK":
        return Meaning.ROLLBACK
    if first == "SAVEPOINT" or (first == "RELEASE" and words[1:2] == ["SAVEPOINT"]):
        return Meaning.SAVEPOINT
    if first == "XA":
        return Meaning.ROLLBACK if words[1:2] == ["ROLLBACK"] else Meaning.XA
    if statement.rstrip().upper().endswith("START TRANSACTION"):
        return Meaning.OPENING_STATEMENT
    return Meaning.STATEMENT


def halted_by(statement: str, database: str, followed: Iterable[Followed]) -> list[Followed]:
    """The followed tables whose rows this statement may have changed without a row event."""
    text = plain(statement)
    if not _ROWLESS.search(text):
        return []
    lowered = text.lower()
    if re.match(r"DROP\s+(DATABASE|SCHEMA)\b", text, re.IGNORECASE):
        return [table for table in followed if _names(lowered, table.table.schema)]
    return [
        table
        for table in followed
        if _names(lowered, table.table.name)
        and (database.lower() == table.table.schema.lower() or _names(lowered, table.table.schema))
    ]


def _names(lowered: str, identifier: str) -> bool:
    """Whether an identifier may be meant somewhere in the text, quoted or not."""
    wanted = identifier.lower()
    return re.search(rf"(?<![\w$]){re.escape(wanted)}(?![\w$])", lowered) is not None or (
        wanted.replace("`", "``") in lowered and not wanted.replace("_", "").isalnum()
    )
