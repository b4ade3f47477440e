"""The fleet of a deployment: its processes, which pipelines each owns, who was fenced, and who took over last.

From viewtail's own tables, and, where the source is shared out, from what the source says of its group. Whether a
process lives is asked of its lock, as it is with leases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import pymysql

from ingest import Sharer
from offsets import members, migrations, owners
from offsets.owners import Owned
from viewtail.changes.pipelines import PipelineState

TOLD_FOR_S = 900.0  # so long one that was fenced is told of, while nobody knows whether it died or hangs
_AT_ONCE_S = 60.0  # what one process takes from another within this is one takeover


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process that runs pipelines of a store, or stands by."""

    name: str  # host and process id; of another program in the group, what it calls itself
    store: str
    state: str  # running, standby, silent, not in group, unknown
    since: str | None  # when it came, UTC
    pipelines: tuple[str, ...]  # that it owns
    assigned: tuple[str, ...] | None  # TOPIC/PARTITION that its group gave it; None: not known, or no member of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """That a process took pipelines from one that had not given them up."""

    process: str
    taken_from: str
    at: str  # UTC
    s_ago: float
    pipelines: tuple[str, ...]
    is_noticed: bool  # the one that had them knows: otherwise it is fenced, and may believe that it owns them still
    is_silent: bool  # that one died, hangs or is cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All of it."""

    owners: Mapping[str, Owned] = field(default_factory=dict)  # by pipeline, the present one
    members: tuple[Member, ...] = ()
    fenced: tuple[Takeover, ...] = ()  # who is fenced, and by whom
    last_takeover: Takeover | None = None


@dataclass(frozen=True, kw_only=True)
class Noted:
    """The members and owners in viewtail's own tables."""

    members: Sequence[members.Member] = ()
    owned: Sequence[Owned] = ()

    @cached_property
    def owners(self) -> Mapping[str, Owned]:
        """The present owner of each pipeline."""
        present = (owned for owned in self.owned if owned.fence == owned.present_fence and owned.gave_up_s_ago is None)
        return {owned.pipeline: owned for owned in present}

    @cached_property
    def silent(self) -> frozenset[str]:
        """The names of those that died, hang or are cut off."""
        return frozenset(member.name for member in self.members if member.is_silent)


def read(connection: pymysql.Connection[Any], database: str) -> Noted:
    """Nothing where viewtail never ran."""
    with connection.cursor() as cursor:
        if not migrations.are_there(cursor, database):
            return Noted()
        noted = Noted(members=members.read(cursor, database), owned=owners.read(cursor, database))
    connection.commit()
    return noted


def fleet(noted: Noted, shared: Sequence[Sharer] | None) -> Fleet:
    """`shared` is what the source says of its group; None where it was not asked, or did not answer."""
    noted_members = [_member(member, noted.owners.values(), shared) for member in noted.members]
    known = {member.name for member in noted.members}
    unknown = [_unknown(sharer) for sharer in shared or () if sharer.process not in known]
    takeovers = _takeovers(noted.owned, known - noted.silent)
    return Fleet(
        members=(*noted_members, *unknown),
        owners=noted.owners,
        fenced=tuple(filter(_is_told_as_fenced, takeovers)),
        last_takeover=takeovers[0] if takeovers else None,
    )


def _is_told_as_fenced(takeover: Takeover) -> bool:
    return not takeover.is_noticed and (not takeover.is_silent or takeover.s_ago < TOLD_FOR_S)


def _unknown(sharer: Sharer) -> Member:
    """One that is in the group, and that viewtail's own tables do not have."""
    name, assigned = sharer.process or sharer.client, _assigned(sharer)
    return Member(name=name, store=sharer.store, state="unknown", since=None, pipelines=(), assigned=assigned)


def _member(member: members.Member, present: Iterable[Owned], shared: Sequence[Sharer] | None) -> Member:
    pipelines = tuple(sorted(owned.pipeline for owned in present if owned.process == member.name))
    in_group = {sharer.process: _assigned(sharer) for sharer in shared or ()}
    assigned = in_group.get(member.name)
    if member.is_silent:
        state = "silent"
    elif member.is_in_group and shared is not None and assigned is None:
        state = "not in group"
    else:
        state = PipelineState.RUNNING if pipelines else PipelineState.STANDBY
    return Member(
        name=member.name,
        store=member.store,
        state=state,
        since=member.started_at,
        pipelines=pipelines,
        assigned=assigned,
    )


def _assigned(sharer: Sharer) -> tuple[str, ...]:
    return tuple(f"{source}/{part}" for source, part in sorted(sharer.parts))


def _takeovers(owned: Sequence[Owned], alive: Collection[str]) -> list[Takeover]:
    """The newest first; what one took from another at once is one."""
    steps = [
        (before, after)
        for before, after in pairwise(owned)
        if before.pipeline == after.pipeline and before.process != after.process and _is_taken_over(before, after)
    ]
    takeovers: list[Takeover] = []
    for before, after in sorted(steps, key=lambda step: step[1].taken_s_ago):
        last = takeovers[-1] if takeovers else None
        if last is not None and _is_one(last, before, after):
            takeovers[-1] = _made(before, after, alive, (*last.pipelines, after.pipeline))
        else:
            takeovers.append(_made(before, after, alive, (after.pipeline,)))
    return takeovers


def _is_taken_over(before: Owned, after: Owned) -> bool:
    return before.gave_up_s_ago is None or before.gave_up_s_ago < after.taken_s_ago


def _is_one(last: Takeover, before: Owned, after: Owned) -> bool:
    return (
        (last.process, last.taken_from, last.is_noticed) == (after.process, before.process, not before.is_fenced)
        and after.taken_s_ago - last.s_ago < _AT_ONCE_S
    )  # fmt: skip


def _made(before: Owned, after: Owned, alive: Collection[str], pipelines: tuple[str, ...]) -> Takeover:
    return Takeover(
        process=after.process,
        taken_from=before.process,
        at=after.taken_at,
        s_ago=after.taken_s_ago,
        pipelines=tuple(sorted(pipelines)),
        is_noticed=not before.is_fenced,
        is_silent=before.process not in alive,
    )
