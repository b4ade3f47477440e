"""Versions: 63-bit integers that order the changes of one key.

From a binlog: `epoch << 53 | file_number << 32 | end_position >> 4` (10 + 21 + 32 bits). Events are at
least 19 bytes long, so `end_position >> 4` tells any two apart, up to 64 GiB a file. From a version
column: `2 * column`, and `2 * column + 1` for the delete of that row.
"""

from __future__ import annotations

from viewtail.changes.errors import HistoryGoneError

MAX_VERSION = (1 << 63) - 1
MAX_EPOCH = (1 << 10) - 1
LEAST_OF_BINLOGS = 1 << 53  # epochs count from 1
MAX_FILE_NUMBER = (1 << 21) - 1
MAX_POSITION = (1 << 36) - 1  # bytes in one binlog file
# Digits of MAX_VERSION: versions kept as text are padded to this, so that text compares as the number does (the numbers
# of Lua and JavaScript end at 2^53).
WIDTH = 19


def base_version(epoch: int, file_number: int) -> int:
    """The part that every version of one binlog file shares; `| end_position >> 4` completes it."""
    if not 0 < epoch <= MAX_EPOCH:
        raise HistoryGoneError(
            f"epoch {epoch} is outside 1..{MAX_EPOCH}: versions cannot be made; rebuild the views into new targets"
        )
    if not 0 <= file_number <= MAX_FILE_NUMBER:
        raise HistoryGoneError(
            f"binlog file number {file_number} is above {MAX_FILE_NUMBER}: versions cannot be made; "
            "run RESET BINARY LOGS AND GTIDS on the source and rebuild the views"
        )
    return epoch << 53 | file_number << 32


def parts_of(version: int) -> tuple[int, int, int]:
    """Epoch, file number and end position of a version from a binlog; the position is up to 15 bytes too low."""
    return version >> 53, version >> 32 & MAX_FILE_NUMBER, (version & 0xFFFFFFFF) << 4
