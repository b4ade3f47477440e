"""Whether a snapshot of the tailed server shows changes that were read from its binlog.

A change can be read from the binlog before any SELECT shows it: its commit goes on in the engine, and may wait for a
replica. Whoever reads rows of a change again asks here first. A position does not tell: while an XA transaction is
prepared it stays before it.
"""

from __future__ import annotations

from typing import Any

from ingest import Committed
from ingest.binlog.coordinates import file_number
from viewtail.changes.errors import SourceError
from viewtail.changes.versions import parts_of
from viewtail.servers.facts import MARIADB, ServerFacts
from viewtail.servers.sessions import SNAPSHOT


def shows(cursor: Any, changes: Committed, facts: ServerFacts) -> bool:
    """Whether the snapshot that the cursor's transaction has from now on shows these changes and all before them.

    MySQL says what was executed behind the engine's commit, and not as of the snapshot: a new one is taken behind the
    answer. MariaDB says of the snapshot itself where in the binlog it was taken, always between two transactions. So
    the version's position, which is in the last change, tells it as well as the transaction's end.
    """
    if facts.name == MARIADB:
        cursor.execute("SHOW STATUS LIKE 'Binlog_snapshot_%'")
        found = {str(name).lower(): value for name, value in cursor.fetchall()}
        file, end = found.get("binlog_snapshot_file"), found.get("binlog_snapshot_position")
        if not file or end is None:
            raise SourceError("the server does not say where in its binlog a snapshot was taken (Binlog_snapshot_file)")
        _, number, position = parts_of(changes.version)
        return (file_number(file), int(end)) >= (number, position)
    if None in changes.gtids:
        raise SourceError("a change has no GTID, so nobody can tell when a SELECT shows it: SET PERSIST gtid_mode = ON")
    gtids = ",".join(sorted(gtid for gtid in changes.gtids if gtid is not None))
    cursor.execute("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (gtids,))
    (is_executed,) = cursor.fetchone()
    if is_executed:
        cursor.execute(SNAPSHOT)  # ends the one before
    return bool(is_executed)
