"""The statements of an SQL file, with the line each begins on, as the mysql client would send them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from viewtail.servers.quoted import QUOTED

_COMMENT = r"/\*.*?(?:\*/|\Z)|--(?=[\s\x00-\x1f]|\Z)[^\n]*|#[^\n]*"
_DELIMITER = re.compile(r"[ \t]*DELIMITER[ \t]+(\S+)[^\n]*", re.IGNORECASE)
# Lines of the mysql client that end without a delimiter (MySQL manual, "mysql Client Commands").
_USE = re.compile(r"[ \t]*((?:USE[ \t]|\\u)[ \t]*(`[^`\n]*`|[^\s`]+))[ \t\r]*(?=\n|\Z)", re.IGNORECASE)
_RUNS = re.compile(r"[ \t]*((?:(?:SOURCE|SYSTEM|CONNECT)\b|\\[.!r])[^\n]*)", re.IGNORECASE)
_SHOWS = re.compile(
    r"[ \t]*(?:CHARSET|CLEAR|EDIT|EGO|EXIT|GO|HELP|NOPAGER|NOTEE|NOWARNING|PAGER|PRINT|PROMPT|QUIT|REHASH|STATUS|TEE"
    r"|WARNINGS|\\[a-zA-Z#?-])(?:[ \t][^\n]*)?(?=\n|\Z)",
    re.IGNORECASE,
)
_SENT = ("\\g", "\\G")  # end a statement as the delimiter does
_NEVER_RUN = "/*M!999999"  # newer than any server: mariadb-dump's first line
_PIECE = re.compile(rf"({QUOTED})|({_COMMENT})|(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, comments included."""

    text: str
    line: int  # of the file, from 1, of its first word


@dataclass(frozen=True, slots=True)
class _ClientLine:
    """A line that is for the mysql client."""

    end: int
    delimiter: str  # from here on
    statement: str = ""  # that it comes to; '' where it is none


def statements(text: str) -> list[Statement]:
    """Split at each delimiter that is in no quotes and no comment; DELIMITER lines change what it is."""
    done: list[Statement] = []
    delimiter, at, begin = ";", 0, -1  # begin: of the open statement, -1 before its first word
    while at < len(text):
        if begin < 0 and (line := _client_line(text, at, delimiter)):
            if line.statement:
                done.append(Statement(line.statement, _line_of(text, at)))
            delimiter, at = line.delimiter, line.end
        elif ended := _ended_by(text, at, delimiter):
            done += _open_statement(text, begin, at)
            at, begin = at + len(ended), -1
        else:
            piece = _PIECE.match(text, at)
            assert piece is not None
            if begin < 0 and _begins_one(piece):
                begin = at
            at = piece.end()
    return done + _open_statement(text, begin, len(text))


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _ended_by(text: str, at: int, delimiter: str) -> str:
    """Return what ends a statement here; '' where nothing does."""
    return next((mark for mark in (delimiter, *_SENT) if text.startswith(mark, at)), "")


def _open_statement(text: str, begin: int, end: int) -> list[Statement]:
    return [Statement(text[begin:end].strip(), _line_of(text, begin))] if begin >= 0 else []


def _begins_one(piece: re.Match[str]) -> bool:
    """Return whether a statement begins with it: neither space nor a comment does."""
    return (piece[2] is None or _is_executed(piece[2])) and not piece[0].isspace()


def _is_executed(comment: str) -> bool:
    return comment.startswith(("/*!", "/*M!")) and not comment.startswith(_NEVER_RUN)


def _client_line(text: str, at: int, delimiter: str) -> _ClientLine | None:
    """Return None where no line begins here that is for the mysql client."""
    if at > 0 and text[at - 1] != "\n":
        return None
    if changed := _DELIMITER.match(text, at):
        return _ClientLine(changed.end(), changed[1])
    if (use := _USE.match(text, at)) and delimiter not in use[1]:
        return _ClientLine(use.end(), delimiter, f"USE {use[2]}")
    if runs := _RUNS.match(text, at):
        return _ClientLine(runs.end(), delimiter, runs[1].removesuffix(delimiter).strip())
    shows = _SHOWS.match(text, at)
    return _ClientLine(shows.end(), delimiter) if shows and delimiter not in shows[0] else None
