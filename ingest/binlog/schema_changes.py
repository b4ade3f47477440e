"""What a statement that changes tables means for the followed ones: nothing, a table change, or a halt.

A row event carries its own columns, and table_fit.py compares those that views use with what they were; so a change
that leaves them in place is followed without a word here. What the next table map cannot show is judged: rows that
come and go as a whole, a column that went and came back, a conversion that the server may have made lossy. Where a
statement cannot be read, each followed table that it may name halts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from changes.batches import Followed
from ingest.binlog.statements import STRICT, Verdict, concerned, shown

# Statements that take no row away, whatever they name; not worth a parser.
_ROWS_STAY = re.compile(
    r"(?:ANALYZE|OPTIMIZE|REPAIR|CHECK|CHECKSUM|FLUSH|GRANT|REVOKE|SET|INSTALL|UNINSTALL|LOCK|UNLOCK|RENAME\s+USER)\b",
    re.IGNORECASE,
)
_READ = re.compile(r"(?:CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE)


def judge(text: str, database: str, followed: Iterable[Followed], sql_mode: int = 0) -> list[Verdict]:
    """The verdict on each followed table whose rows or columns a statement may have changed unseen.

    Args:
        text: as `plain` gives it.
        database: the session's, for names without one.
        followed: those that the statement may be about are picked from them.
        sql_mode: the session's; a strict one made the server refuse a conversion that loses something.
    """
    if _ROWS_STAY.match(text) or not (tables := concerned(text, database, followed)):
        return []
    if not _READ.match(text):
        why = f"a {text.split(None, 1)[0].upper()} statement may have changed rows without row events"
        return [Verdict(table, None, why) for table in tables]
    from ingest import ddl  # 17 MiB, which a stream without such statements does without
    from ingest.binlog import table_effects

    try:
        effects = ddl.read(text, database)
    except ddl.Unread as error:
        why = f"viewtail cannot read this statement ({error}), and it may be about the table"
        return [Verdict(table, None, why) for table in tables]
    verdicts = [table_effects.verdict(table, effects, bool(sql_mode & STRICT)) for table in tables]
    return [verdict for verdict in verdicts if verdict is not None]


def reason(verdict: Verdict, text: str) -> str:
    """Why the table changed, and the statement: for messages."""
    return f"{verdict.why}: {shown(text)}"
