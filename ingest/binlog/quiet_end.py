"""The end of a deployment's last process: up to where nothing but viewtail's own transactions follows its offsets.

viewtail's tables are as a rule on the server that it reads, so behind an offset there are always transactions: the one
that saved it, and what was noted as the process ended. An idle source that purges its binlogs takes these away, and
nobody can tell them from changes any more. So whoever ends last reads on to the end, and notes with each offset the set
of GTIDs up to there (`BinlogPosition.quiet`). The note itself is then the one transaction that was not read
(purged.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import pymysql
import structlog

from ingest import SourceAccess, Tables, left_out
from ingest.binlog import continuity
from ingest.binlog.coordinates import BinlogPosition, own
from ingest.binlog.gtid_sets import contains
from ingest.binlog.purged import OffsetTable
from ingest.binlog.source import BinlogSource
from offsets import members, pipelines
from offsets.lease import lock_name
from offsets.mysql import transaction
from viewtail.changes.errors import SourceError, ViewtailError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, open_session, value_of

_log = structlog.get_logger("viewtail.source")

READ_WITHIN_S = 2.0
_Saved: TypeAlias = "tuple[pipelines.SavedOffset, BinlogPosition]"


def note(access: SourceAccess, own_schemas: frozenset[str], tables: Tables) -> None:
    """Note it with the offsets of all pipelines that have it, unless another process runs; whatever fails is left out.

    `tables`: those that views are of. What is in one of viewtail's own schemas is not told from its bookkeeping.
    """
    if any(schema in own_schemas for schema, _ in tables):
        return
    try:
        with closing(open_session(_hurried(access.own), role="store")) as session:
            _note(session, access, own_schemas)
    except (ViewtailError, pymysql.err.MySQLError, ValueError) as error:
        _log.debug("not noted that nothing follows the offsets", error=str(error))


def _note(session: Connection, access: SourceAccess, own_schemas: frozenset[str]) -> None:
    database = access.own_database
    with _alone(session, database) as is_alone:
        if not is_alone:
            return
        address = _hurried(access.address())
        with closing(open_session(address, role="source")) as source:
            identity = str(value_of(source, facts_of(source).identity))
            if value_of(session, facts_of(session).identity) != identity:
                return  # nothing of what viewtail saves is in the source's binlog
            offset_table = OffsetTable(_hurried(access.own), database)
            if not left_out.is_logged(source, *offset_table.name):
                return  # nor is the note: another's transaction would be taken for it
            end = continuity.executed(source)
        saved = [
            (row, position) for row, position in _saved(session, database, access.name) if position.server == identity
        ]
        waiting = [(row, at) for row, at in saved if at.seen and not contains(at.seen, end)]
        make = partial(
            BinlogSource,
            address,
            {},
            watermark_schema="",
            own_schemas=own_schemas,
            identity=identity,
            offset_table=offset_table,
        )
        quiet = _quiet(make, waiting, end)
        with transaction(lambda: session, "noting that nothing follows the offsets") as cursor:
            for (row, position), upto in quiet.items():
                pipelines.replace_offset(cursor, database, row, replace(position, quiet=upto).to_text())


def _hurried(address: MySQLAddress) -> MySQLAddress:
    """A process that ends waits for nobody for long."""
    return replace(address, connect_timeout_s=READ_WITHIN_S, io_timeout_s=READ_WITHIN_S)


@contextmanager
def _alone(session: Connection, database: str) -> Iterator[bool]:
    """Yield whether no process of the deployment lives; of several that end, one at a time looks."""
    lock = lock_name(database, "quiet end")
    if value_of(session, "SELECT GET_LOCK(%s, 1)", lock) != 1:
        yield False
        return
    with session.cursor() as cursor:
        yield all(member.is_silent for member in members.read(cursor, database))
    value_of(session, "SELECT RELEASE_LOCK(%s)", lock)


def _saved(session: Connection, database: str, source: str) -> Iterable[_Saved]:
    with session.cursor() as cursor:
        rows = pipelines.saved_offsets(cursor, database, source)
    return [(row, BinlogPosition.from_text(row.text)) for row in rows]


def _quiet(make: Callable[..., BinlogSource], saved: Iterable[_Saved], end: str) -> Mapping[_Saved, str]:
    """Find the offsets behind which only viewtail's own transactions come, up to `end`, with the set that was read.

    The newest first: behind one that is far back, as of a store that is away, there may be more than is read in time.
    """
    quiet: dict[_Saved, str] = {}
    deadline = time.monotonic() + READ_WITHIN_S
    for row, position in sorted(saved, key=lambda offset: offset[1].version, reverse=True):
        upto = _quiet_upto(make(epoch=position.epoch), position, end, deadline - time.monotonic())
        if upto is None:
            break
        quiet[row, position] = upto
    return quiet


def _quiet_upto(reader: BinlogSource, after: BinlogPosition, end: str, within_s: float) -> str | None:
    """The set of what was read; None where others' transactions came too, or it took too long."""
    is_over = threading.Event()
    ending = threading.Thread(target=_interrupt, args=(reader, is_over, within_s), daemon=True)
    ending.start()
    try:
        with closing(reader.read(after)) as batches:  # type: ignore[type-var]
            for batch in batches:
                if not batch.is_quiet:
                    break
                if batch.end is not None and contains(seen := own(batch.end).seen, end):
                    return seen
    except SourceError as error:
        _log.debug("not read to the end", error=str(error))
    finally:
        is_over.set()
        ending.join()
    return None


def _interrupt(reader: BinlogSource, is_over: threading.Event, after_s: float) -> None:
    """Interrupt the reader, again and again: it has no effect before the reading has begun."""
    is_over.wait(max(0.0, after_s))
    while not is_over.is_set():
        reader.interrupt()
        is_over.wait(0.1)
