"""Tells people of incidents, each once, and when it is over; one process of all that could does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from offsets import deployments
from offsets import incidents as records
from offsets.incidents import IncidentKey, IncidentRecord, TellerLock
from offsets.mysql import Session
from viewtail.changes.repeating import Repeats
from viewtail.changes.retrying import WEBHOOK
from viewtail.notifying.messages import Message, Notice, body_of, form_of, over_words, page_of
from viewtail.notifying.webhook import WebhookError, post
from viewtail.operations.findings import Findings
from viewtail.operations.incidents import Incident, Kind, incidents
from viewtail.servers.sessions import Connection
from viewtail.settings import NotifySettings

_log = structlog.get_logger("viewtail.notify")

# By kind, for how long an incident has lasted when people are told. Others are in `status` alone.
HOLD_S: Mapping[str, float] = {
    Kind.DOWN: 60.0,  # a restart takes less
    Kind.HALTED: 15.0,
    Kind.BEHIND: 60.0,  # and its lag is above that already
    Kind.MARGIN: 60.0,
    Kind.VIEW_HALTED: 0.0,
    Kind.PARKED: 120.0,  # a key may wait for another server's row
}
OVER_S = 60.0  # for so long an incident is not seen any more when it is over
_LOG_AGAIN_S = 600.0
_ENDED: Mapping[str, str] = {
    Kind.DOWN: "down",
    Kind.HALTED: "halted",
    Kind.BEHIND: "behind",
    Kind.MARGIN: "near to losing what it needs next",
    Kind.VIEW_HALTED: "halted",
    Kind.PARKED: "with keys that could not be applied",
}


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be told now: incidents with their records, and records alone of what is over."""

    began: Sequence[tuple[IncidentRecord, Incident]]
    over: Sequence[IncidentRecord]  # told before
    was: Sequence[IncidentRecord]  # never told
    forgotten: Sequence[int]  # they were too short

    @property
    def is_anything(self) -> bool:
        return bool(self.began or self.over or self.was)


def due(
    noted: Sequence[IncidentRecord], seen: Mapping[IncidentKey, Incident], hold_s: Mapping[str, float], over_s: float
) -> Due:
    """Judge what is noted, by now."""
    began, over, was, forgotten = [], [], [], []
    for record in noted:
        has_lasted = record.lasted_s >= hold_s.get(record.key.kind, 0.0)
        if record.over_s is None:
            if not record.is_told and has_lasted and record.key in seen:
                began.append((record, seen[record.key]))
        elif record.over_s >= over_s:
            if record.is_told:
                over.append(record)
            elif has_lasted:
                was.append(record)
            else:
                forgotten.append(record.id)
    return Due(began, over, was, forgotten)


@dataclass(eq=False, kw_only=True)
class Notifier:
    """Messages about the pipelines of one source. All of it is one thread's.

    Args:
        open_own: a session on the server of viewtail's own tables.
        source: what the lock of those who could tell is called by.
        keeps: whether a pipeline of that name is of this source; another process may tell of the others.
        console: the address at which people reach the console.
        deployment: the name of this one among several, for the console.
    """

    settings: NotifySettings
    open_own: Callable[[], Connection]
    database: str
    source: str
    keeps: Callable[[str], bool]
    console: str | None = None
    deployment: str | None = None
    hold_s: Mapping[str, float] = field(default_factory=lambda: HOLD_S)
    over_s: float = OVER_S

    def __post_init__(self) -> None:
        self._lock = TellerLock(self.open_own, self.database, self.source)
        self._attempt = 0
        self._not_before = 0.0  # monotonic: the webhook is left alone until then
        self._troubles = Repeats(_LOG_AGAIN_S)
        self._title: str | None = None

    def session(self) -> Connection | None:
        """Return a session where this process is the one that tells; raises StoreUnavailableError."""
        return self._lock.session()

    def close(self) -> None:
        """Let another process tell."""
        self._lock.close()

    def tell(self, connection: Connection, findings: Findings) -> None:
        """Note what is seen and what is not any more, and tell what is due. `connection` is `session`'s."""

        def session() -> Connection:
            return connection

        seen = self._seen(findings)
        due_now = due(self._noted(session, findings, seen), seen, self.hold_s, self.over_s)
        told, forgotten = list[int](), [*due_now.forgotten]
        if due_now.is_anything and time.monotonic() >= self._not_before and self._is_sent(session, due_now):
            told = [record.id for record, _ in due_now.began]
            forgotten += [record.id for record in (*due_now.over, *due_now.was)]
        records.settle(session, self.database, told=told, forgotten=forgotten)

    def _seen(self, findings: Findings) -> dict[IncidentKey, Incident]:
        """What is not well now, of what people are told."""
        return {
            IncidentKey(each.kind, each.pipeline, each.view or ""): each
            for each in incidents(findings)
            if each.kind in self.hold_s and self.keeps(each.pipeline)
        }

    def _noted(
        self, session: Session, findings: Findings, seen: Mapping[IncidentKey, Incident]
    ) -> list[IncidentRecord]:
        """What is noted, once it is noted what is seen now and what is not any more."""
        noted = self._read(session)
        known = {record.key: record.id for record in noted}
        lasting = {record.key for record in noted if record.over_s is None}
        gone = [key for key in lasting - seen.keys() if not _is_unknown(key, findings)]
        records.note(
            session,
            self.database,
            new=sorted(seen.keys() - known.keys()),
            again=[known[key] for key in seen.keys() & known.keys() - lasting],
            over=[known[key] for key in gone],
        )
        return self._read(session)

    def _read(self, session: Session) -> list[IncidentRecord]:
        return [record for record in records.read(session, self.database) if self.keeps(record.key.pipeline)]

    def _is_sent(self, session: Session, due_now: Due) -> bool:
        url = self.settings.address
        assert url is not None
        try:
            post(url, body_of(self._message(session, due_now), form_of(url, self.settings.format)))
        except WebhookError as error:
            pause_s = max(error.pause_s, WEBHOOK.pause_s(self._attempt))
            self._attempt += 1
            self._not_before = time.monotonic() + pause_s
            if self._troubles.is_due(str(error)):
                _log.warning("the webhook took no message", error=str(error), next_attempt_in_s=round(pause_s))
            return False
        self._attempt = 0
        self._troubles.is_due(None)
        _log.info("people were told", began=len(due_now.began), over=len(due_now.over) + len(due_now.was))
        return True

    def _message(self, session: Session, due_now: Due) -> Message:
        if self._title is None:
            identity = deployments.read(session, self.database)
            self._title = self.database if identity is None else identity.title
        return Message(
            deployment=self._title,
            began=[self._notice(record, incident.words, incident.mend) for record, incident in due_now.began],
            over=[self._notice(record, _ended(record)) for record in due_now.over],
            was=[self._notice(record, _ended(record)) for record in due_now.was],
        )

    def _notice(self, record: IncidentRecord, words: str, mend: str = "") -> Notice:
        kind, pipeline, view = record.key
        page = page_of(self.console, pipeline, view or None, self.deployment)
        return Notice(
            kind=kind,
            pipeline=pipeline,
            view=view or None,
            words=words,
            mend=mend,
            page=page,
            lasted_s=round(record.lasted_s, 1),
        )


def _is_unknown(key: IncidentKey, findings: Findings) -> bool:
    """Return whether nobody can say whether it is over: the source does not answer."""
    return key.kind == Kind.MARGIN and findings.source_error is not None


def _ended(record: IncidentRecord) -> str:
    kind, pipeline, view = record.key
    what = f"view {view}" if view else f"pipeline {pipeline}"
    return over_words(f"{what} was {_ENDED.get(kind, kind)}", record.lasted_s)
