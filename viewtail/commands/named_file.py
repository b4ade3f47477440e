"""A file that is named on the command line, where - is the standard input: each deployment is given all of it."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO

from viewtail.changes.errors import MisuseError

INPUT = Path("-")


def content_of(file: Path) -> bytes:
    """Raise OSError."""
    return _all_of(sys.stdin.buffer) if file == INPUT else file.read_bytes()


def shown_name(file: Path) -> str:
    """The file's name, for messages."""
    return "standard input" if file == INPUT else f"{file}"


def text_of(file: Path) -> str:
    """Raise MisuseError where there is no such file, or it is no text."""
    try:
        return content_of(file).decode("utf-8-sig")
    except OSError as error:
        raise MisuseError(f"{file}: {error.strerror}; name a file with SQL statements, or - for the input") from None
    except UnicodeDecodeError:
        raise MisuseError(f"{file}: it is no text in UTF-8") from None


@cache
def _all_of(stream: BinaryIO) -> bytes:
    return stream.read()
