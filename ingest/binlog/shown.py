"""Whether a snapshot of the tailed server shows all changes up to a place in its binlog.

A change can be read from the binlog before any SELECT shows it: its commit goes on in the engine, and may wait for a
replica. Whoever reads rows of a change again asks here first.
"""

from __future__ import annotations

from typing import Any

from ingest.binlog.coordinates import BinlogPosition, file_number
from servers.facts import MARIADB, ServerFacts

SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


def shows(cursor: Any, position: BinlogPosition, facts: ServerFacts) -> bool:
    """Whether the snapshot that the cursor's transaction has from now on shows all up to a position that was read.

    MySQL says what was executed behind the engine's commit, and not as of the snapshot: a new one is taken behind the
    answer. MariaDB says of the snapshot itself where in the binlog it was taken.
    """
    if facts.name == MARIADB:
        cursor.execute("SHOW STATUS LIKE 'Binlog_snapshot_%'")
        found = {str(name).lower(): value for name, value in cursor.fetchall()}
        file, end = found.get("binlog_snapshot_file"), found.get("binlog_snapshot_position")
        if not file or end is None:
            return False
        return (file_number(file), int(end)) >= (file_number(position.file), position.end)
    cursor.execute("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (position.gtid,))
    (is_executed,) = cursor.fetchone()
    if is_executed:
        cursor.execute(SNAPSHOT)  # ends the one before
    return bool(is_executed)
