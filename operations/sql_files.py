"""The statements of an SQL file, with the line each begins on, as the mysql client would send them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUOTED = r"'(?:[^'\\]|\\.)*+'?|\"(?:[^\"\\]|\\.)*+\"?|`[^`]*+`?"
_COMMENT = r"/\*.*?(?:\*/|\Z)|--(?=[\s\x00-\x1f]|\Z)[^\n]*|#[^\n]*"
_DELIMITER = re.compile(r"[ \t]*DELIMITER[ \t]+(\S+)[^\n]*", re.IGNORECASE)
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
        elif text.startswith(delimiter, at):
            end(at)
            at, begin = at + len(delimiter), -1
        else:
            piece = _PIECE.match(text, at)
            assert piece is not None
            is_executed = piece[2] is not None and piece[2].startswith(("/*!", "/*M!"))
            if begin < 0 and (piece[2] is None or is_executed) and not piece[0].isspace():
                begin = at
            at = piece.end()
    end(len(text))
    return found
