"""Sets of GTIDs, as MySQL writes them, 'uuid:1-5:9,uuid:tag:1-3', and as MariaDB does, '0-1-57,2-1-9'.

A set is what a reader has seen, on whatever server: coordinates mean nothing on another one. Here sets are only read,
written and grown; which one lies inside which is asked of the servers (GTID_SUBTRACT), who must agree with the answer.
MariaDB's GTIDs are 'domain-server-number'. Numbers of a domain rise, so its last GTID says what was seen of it.
"""

from __future__ import annotations

import re
import struct
import uuid
from typing import TypeAlias

Source: TypeAlias = "tuple[bytes, str]"  # server_uuid, tag or ''
DomainEnds: TypeAlias = "dict[int, tuple[int, int]]"  # MariaDB's: by domain, server and number of its last transaction

_OF_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")
_TAG = re.compile(r"[a-z_]\w{0,31}", re.IGNORECASE | re.ASCII)
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = struct.Struct("<Q")
_RANGE = struct.Struct("<QQ")
_TAGGED = 1  # first and last byte of the count when sources have tags (MySQL source, Gtid_set::encode)


class GtidSet:
    """Intervals of numbers by source: sorted, apart from each other, both ends included."""

    def __init__(self, text: str = "") -> None:
        """Raises ValueError for a text that is no set."""
        self.intervals: dict[Source, list[list[int]]] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            server, *rest = (piece.strip() for piece in part.split(":"))
            source: Source = (uuid.UUID(server).bytes, "")
            for piece in rest:
                if match := _INTERVAL.fullmatch(piece):
                    self.add(source, int(match[1]), int(match[2] or match[1]))
                elif _TAG.fullmatch(piece):
                    source = (source[0], piece.lower())
                else:
                    raise ValueError(f"{piece!r} is neither an interval of GTIDs nor a tag")

    def add(self, source: Source, first: int, last: int) -> None:
        """Take in an interval, wherever it lies."""
        intervals = self.intervals.setdefault(source, [])
        if intervals and intervals[-1][0] <= first <= intervals[-1][1] + 1:
            intervals[-1][1] = max(intervals[-1][1], last)
            return
        intervals.append([first, last])
        if len(intervals) > 1 and first <= intervals[-2][1] + 1:
            intervals.sort()
            joined = intervals[:1]
            for begin, end in intervals[1:]:
                if begin <= joined[-1][1] + 1:
                    joined[-1][1] = max(joined[-1][1], end)
                else:
                    joined.append([begin, end])
            self.intervals[source] = joined

    def __str__(self) -> str:
        by_server: dict[bytes, list[str]] = {}
        for (server, tag), intervals in sorted(self.intervals.items()):
            parts = by_server.setdefault(server, [])
            if tag:
                parts.append(tag)
            parts += [str(first) if first == last else f"{first}-{last}" for first, last in intervals]
        return ",".join(":".join((str(uuid.UUID(bytes=server)), *parts)) for server, parts in by_server.items())

    def encoded(self) -> bytes:
        """Encode the set as COM_BINLOG_DUMP_GTID takes it."""
        has_tags = any(tag for _, tag in self.intervals)
        count = len(self.intervals)
        made = [_COUNT.pack(count << 8 | _TAGGED << 56 | _TAGGED if has_tags else count)]
        for (server, tag), intervals in sorted(self.intervals.items()):
            made.append(server)
            if has_tags:
                made += (bytes([len(tag) << 1]), tag.encode())
            made.append(_COUNT.pack(len(intervals)))
            made += [_RANGE.pack(first, last + 1) for first, last in intervals]
        return b"".join(made)

    @classmethod
    def decoded(cls, body: bytes) -> GtidSet:
        """Read a PREVIOUS_GTIDS event's body. Raises ValueError for bytes that are none."""
        decoded = cls()
        try:
            (count,) = _COUNT.unpack_from(body)
            has_tags = count >> 56 == _TAGGED
            at = 8
            for _ in range(count >> 8 & (1 << 48) - 1 if has_tags else count):
                server, tag = body[at : at + 16], ""
                at += 16
                if has_tags:
                    length = body[at] >> 1
                    tag = body[at + 1 : at + 1 + length].decode("ascii")
                    at += 1 + length
                (ranges,) = _COUNT.unpack_from(body, at)
                at += 8
                for _ in range(ranges):
                    first, behind = _RANGE.unpack_from(body, at)
                    at += 16
                    if not 0 < first < behind:
                        raise ValueError(f"it holds numbers from {first} to {behind - 1}")
                    decoded.add((server, tag), first, behind - 1)
        except (struct.error, IndexError) as error:
            raise ValueError(f"the set ends too early ({error})") from None
        return decoded


def contains(whole: str, part: str) -> bool:
    """Return whether all of one set is in another."""
    if is_of_mariadb(whole) or is_of_mariadb(part):
        ends = domain_ends(whole)
        return all(ends.get(domain, (0, 0))[1] >= number for domain, (_, number) in domain_ends(part).items())
    intervals = GtidSet(whole).intervals
    return all(
        any(begin <= first and last <= end for begin, end in intervals.get(source, ()))
        for source, some in GtidSet(part).intervals.items()
        for first, last in some
    )


def union(first_set: str, other: str) -> str:
    """All that is in either."""
    if is_of_mariadb(first_set) or is_of_mariadb(other):
        ends = [*domain_ends(first_set).items(), *domain_ends(other).items()]
        return domains_text(dict(sorted(ends, key=lambda end: end[1][1])))
    united = GtidSet(first_set)
    for source, some in GtidSet(other).intervals.items():
        for first, last in some:
            united.add(source, first, last)
    return str(united)


def count_beyond(known: str, whole: str) -> int | None:
    """Count the transactions of `whole` that are not in `known`; None where nobody can tell.

    MariaDB's sets have one end a domain: numbers between two ends are counted where one server wrote both.
    """
    if is_of_mariadb(known) or is_of_mariadb(whole):
        ends, count = domain_ends(known), 0
        for domain, (server, number) in domain_ends(whole).items():
            last_server, last = ends.get(domain, (server, 0))
            if number > last and server != last_server:
                return None
            count += max(0, number - last)
        return count
    intervals = GtidSet(union(known, whole)).intervals
    return _count(intervals) - _count(GtidSet(known).intervals)


def _count(intervals: dict[Source, list[list[int]]]) -> int:
    return sum(last - first + 1 for some in intervals.values() for first, last in some)


def grown(base: str, gtid: str) -> str:
    """The set that `base` becomes when the last interval of a GTID's source grows to reach that GTID.

    So one set that is seldom written and the last GTID tell a place in a stream.
    """
    if not base or not gtid:
        return base
    if is_of_mariadb(gtid):
        return domains_text(domain_ends(base) | domain_ends(gtid))
    gtids = GtidSet(base)
    server, *tag, number = gtid.split(":")
    intervals = gtids.intervals.get((uuid.UUID(server).bytes, tag[0] if tag else ""))
    if intervals and int(number) > intervals[-1][1]:
        intervals[-1][1] = int(number)
    return str(gtids)


def is_of_mariadb(gtids: str) -> bool:
    """Return whether a GTID, or a set of some, is MariaDB's, not MySQL's."""
    return _OF_MARIADB.fullmatch(gtids.partition(",")[0].strip()) is not None


def mariadb_gtids(text: str) -> list[tuple[int, int, int]]:
    """Domain, server and number of each. Raises ValueError for a text of other things."""
    matches = [_OF_MARIADB.fullmatch(part.strip()) for part in text.split(",") if part.strip()]
    if None in matches:
        raise ValueError(f"{text!r} are no GTIDs of MariaDB's")
    return [(int(match[1]), int(match[2]), int(match[3])) for match in matches if match]


def domain_ends(text: str) -> DomainEnds:
    """The inverse of `domains_text`. Raises ValueError for another text."""
    return {domain: (server, number) for domain, server, number in mariadb_gtids(text)}


def domains_text(ends: DomainEnds) -> str:
    """Write the set as MariaDB does: '0-1-57,2-1-9'."""
    return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(ends.items()))
