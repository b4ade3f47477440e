"""The statements of an SQL file, with the line each begins on, as the mysql client would send them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUOTED = r"'(?:[^'\\]|\\.)*+'?|\"(?:[^\"\\]|\\.)*+\"?|`[^`]*+`?"
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
_PIECE = re.compile(rf"({_QUOTED})|({_COMMENT})|(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, comments included."""

    text: str
    line: int  # of the file, from 1, of its first word


def statements(text: str) -> list[Statement]:
    """Split at each delimiter that is in no quotes and no comment; DELIMITER lines change what it is."""
    found: list[Statement] = []
    delimiter, at, begin = ";", 0, -1  # begin: of the open statement, -1 before its first word

    def end(upto: int) -> None:
        if begin >= 0:
            found.append(Statement(text[begin:upto].strip(), text.count("\n", 0, begin) + 1))

    while at < len(text):
        is_line_start = at == 0 or text[at - 1] == "\n"
        if begin < 0 and is_line_start and (command := _DELIMITER.match(text, at)):
            delimiter, at = command[1], command.end()
        elif begin < 0 and is_line_start and (client := _client_command(text, at, delimiter)):
            if client[1]:
                found.append(Statement(client[1], text.count("\n", 0, at) + 1))
            at = client[0]
        elif text.startswith(delimiter, at):
            end(at)
            at, begin = at + len(delimiter), -1
        elif text.startswith(_SENT, at):
            end(at)
            at, begin = at + 2, -1
        else:
            piece = _PIECE.match(text, at)
            assert piece is not None
            if begin < 0 and (piece[2] is None or _is_executed(piece[2])) and not piece[0].isspace():
                begin = at
            at = piece.end()
    end(len(text))
    return found


def _is_executed(comment: str) -> bool:
    return comment.startswith(("/*!", "/*M!")) and not comment.startswith(_NEVER_RUN)


def _client_command(text: str, at: int, delimiter: str) -> tuple[int, str] | None:
    """Where a line that is for the mysql client ends, and the statement that it comes to: '' where it is none."""
    if (use := _USE.match(text, at)) and delimiter not in use[1]:
        return use.end(), f"USE {use[2]}"
    if runs := _RUNS.match(text, at):
        return runs.end(), runs[1].removesuffix(delimiter).strip()
    shows = _SHOWS.match(text, at)
    return (shows.end(), "") if shows and delimiter not in shows[0] else None
