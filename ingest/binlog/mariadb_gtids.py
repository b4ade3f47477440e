"""MariaDB's GTIDs, 'domain-server-number', and places in all domains of a history, '0-1-57,2-1-9'.

A domain's numbers rise; the last one says what was seen of it, and which server it is of, whose it was.
"""

from __future__ import annotations

import re

_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")


class GtidPosition:
    """By domain, the server and number of the last transaction."""

    def __init__(self, text: str = "") -> None:
        """Raises ValueError for a text that is no position."""
        self.last: dict[int, tuple[int, int]] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            self.add(part)

    def add(self, gtid: str) -> None:
        """Go on to a transaction."""
        domain, server, number = parsed(gtid)
        self.last[domain] = (server, number)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))


def is_gtid(text: str) -> bool:
    """Whether it is one of MariaDB's, not of MySQL's."""
    return _GTID.fullmatch(text) is not None


def is_position(text: str) -> bool:
    """Whether it is a place in MariaDB's domains, not a set of MySQL's GTIDs."""
    return is_gtid(text.partition(",")[0].strip())


def parsed(gtid: str) -> tuple[int, int, int]:
    """Domain, server and number."""
    found = _GTID.fullmatch(gtid)
    if found is None:
        raise ValueError(f"{gtid!r} is no GTID of MariaDB's")
    domain, server, number = found.groups()
    return int(domain), int(server), int(number)


def grown(base: str, gtid: str) -> str:
    """The place that `base` becomes with that transaction."""
    position = GtidPosition(base)
    position.add(gtid)
    return str(position)
