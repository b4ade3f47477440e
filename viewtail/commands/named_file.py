"""A file that is named on the command line, where - is the standard input: each deployment is given all of it."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import BinaryIO

INPUT = Path("-")


def content_of(file: Path) -> bytes:
    """Raise OSError."""
    return _all_of(sys.stdin.buffer) if file == INPUT else file.read_bytes()


@cache
def _all_of(stream: BinaryIO) -> bytes:
    return stream.read()
