"""Follows, through the statements of an SQL file, what a session's settings make of the later ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ingest.binlog.statements import ANSI_QUOTES, NO_BACKSLASH_ESCAPES, STRICT, plain, shown, without_settings
from viewtail.operations.sql_files import Statement

_USE = re.compile(r"USE\b", re.IGNORECASE)
_SET = re.compile(r"SET\b", re.IGNORECASE)
_UNLOGGED = re.compile(r"\b(?:sql_log_bin|binlog_format)\s*:?=\s*(?P<value>[^\s,]+)", re.IGNORECASE)
_SQL_MODE = re.compile(r"\bsql_mode\s*:?=\s*(?:(?P<quote>['\"])(?P<value>[^'\"]*)(?P=quote)|\S)", re.IGNORECASE)
_NO_ROW_EVENTS = ("0", "OFF", "FALSE", "STATEMENT", "MIXED")


@dataclass(slots=True)
class Session:
    """A session that runs a file: its database, its sql_mode, and whether the binlog gets row events."""

    database: str  # of names without one; '': none yet
    sql_mode: int = STRICT  # as the server has it by default or the file says
    is_unlogged: bool = False  # the file made the server write no row events

    def text_of(self, statement: Statement) -> str:
        """The statement as the session reads it, without comments."""
        return without_settings(plain(statement.text, self.sql_mode))

    def shown(self, text: str) -> str:
        """A statement for messages: short, and without its strings."""
        return shown(text)

    def follow(self, text: str) -> bool:
        """Follow a USE or SET; returns False for another statement, which changes nothing here."""
        if _USE.match(text):
            self.database = text[4:].strip(" `").replace("``", "`")
            return True
        if _SET.match(text):
            self._set(text)
            return True
        return False

    def _set(self, text: str) -> None:
        """Follow the settings that change how later statements are read; a value that is no text is the default."""
        if unlogged := _UNLOGGED.search(text):
            self.is_unlogged = unlogged["value"].strip("'\"").upper() in _NO_ROW_EVENTS
        if mode := _SQL_MODE.search(text):
            names = None if mode["quote"] is None else mode["value"].upper()
            self.sql_mode = STRICT if names is None else _bits(names)


def _bits(names: str) -> int:
    """Return, of an sql_mode in capitals, those that bear on how statements are read and rows converted."""
    is_strict = "STRICT_" in names or "TRADITIONAL" in names
    return (
        STRICT * is_strict | ANSI_QUOTES * ("ANSI" in names) | NO_BACKSLASH_ESCAPES * ("NO_BACKSLASH_ESCAPES" in names)
    )
