"""The end of a deployment's last process: up to where nothing but viewtail's own transactions follows its offsets.

viewtail's tables are as a rule on the server that it reads, so behind an offset there are always transactions: the one
that saved it, and what was noted as the process ended. An idle source that purges its binlogs takes these away, and
nobody can tell them from changes any more. So whoever ends last reads on to the end, and notes with each offset the set
of GTIDs up to there (`BinlogPosition.quiet`). The note itself is then the one transaction that was not read
(purged.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import pymysql
import structlog

from changes.errors import SourceError, ViewtailError
from changes.pipelines import DEFAULT_SOURCE
from ingest import SourceAccess, Tables
from ingest.binlog import continuity
from ingest.binlog.coordinates import BinlogPosition, own
from ingest.binlog.gtid_sets import contains
from ingest.binlog.source import BinlogSource
from offsets import members
from offsets.lease import lock_name
from offsets.mysql import transaction
from servers.facts import facts_of
from servers.sessions import Connection, open_session, quote, value_of

_log = structlog.get_logger("viewtail.source")

READ_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class _Saved:
    """An offset as it is in its row."""

    pipeline_id: int
    fence: int
    text: str
    position: BinlogPosition


def note(access: SourceAccess, own_schemas: frozenset[str], tables: Tables) -> None:
    """Note it with the offsets of all pipelines that have it, unless another process runs; whatever fails is left out.

    `tables`: those that views are of. What is in one of viewtail's own schemas is not told from its bookkeeping.
    """
    if any(schema in own_schemas for schema, _ in tables):
        return
    try:
        with closing(open_session(access.own, role="store")) as session:
            _note(session, access, own_schemas)
    except (ViewtailError, pymysql.err.MySQLError, ValueError) as error:
        _log.debug("not noted that nothing follows the offsets", error=str(error))


def _note(session: Connection, access: SourceAccess, own_schemas: frozenset[str]) -> None:
    database = access.own_database
    with _alone(session, database) as is_alone:
        if not is_alone:
            return
        with closing(open_session(access.address(), role="source")) as source:
            identity = str(value_of(source, facts_of(source).identity))
            if value_of(session, facts_of(session).identity) != identity:
                return  # nothing of what viewtail saves is in the source's binlog
            end = continuity.executed(source)
        saved = [one for one in _saved(session, database) if one.position.server == identity and one.position.seen]
        waiting = [one for one in saved if not contains(one.position.seen, end)]
        if not waiting:
            return
        first = min((one.position for one in waiting), key=lambda position: position.version)
        reader = BinlogSource(
            access.address(), {}, watermark_schema="", own_schemas=own_schemas, epoch=first.epoch, identity=identity
        )
        quiet = _quiet(reader, first, waiting, end)
        with transaction(lambda: session, "noting that nothing follows the offsets") as cursor:
            for one, upto in quiet.items():
                cursor.execute(
                    f"UPDATE {quote(database, 'pipeline')} SET position = %s "
                    "WHERE id = %s AND fence = %s AND position = %s",
                    (replace(one.position, quiet=upto).to_text(), one.pipeline_id, one.fence, one.text),
                )


@contextmanager
def _alone(session: Connection, database: str) -> Iterator[bool]:
    """Whether no process of the deployment lives; of several that end, one at a time looks."""
    lock = lock_name(database, "quiet end")
    if value_of(session, "SELECT GET_LOCK(%s, 1)", lock) != 1:
        yield False
        return
    with session.cursor() as cursor:
        yield all(member.is_silent for member in members.read(cursor, database))
    value_of(session, "SELECT RELEASE_LOCK(%s)", lock)


def _saved(session: Connection, database: str) -> Iterable[_Saved]:
    with session.cursor() as cursor:
        cursor.execute(
            f"SELECT id, fence, position FROM {quote(database, 'pipeline')} WHERE source = %s AND position IS NOT NULL",
            (DEFAULT_SOURCE,),
        )
        rows = cursor.fetchall()
    return [_Saved(number, fence, text, BinlogPosition.from_text(text)) for number, fence, text in rows]


def _quiet(reader: BinlogSource, first: BinlogPosition, saved: Sequence[_Saved], end: str) -> Mapping[_Saved, str]:
    """Those behind which only viewtail's own transactions come, up to `end`, and the set up to which they were read."""
    left = saved
    timer = threading.Timer(READ_WITHIN_S, reader.interrupt)
    timer.start()
    try:
        with closing(reader.read(first)) as batches:  # type: ignore[type-var]
            for batch in batches:
                if not batch.is_quiet:
                    left = [one for one in left if batch.end and one.position.version >= batch.end.version]
                if not left:
                    break
                if batch.end is not None and contains(seen := own(batch.end).seen, end):
                    return dict.fromkeys(left, seen)
    except SourceError as error:
        _log.debug("not read to the end", error=str(error))
    finally:
        timer.cancel()
    return {}
