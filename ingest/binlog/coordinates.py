"""Binlog coordinates as positions of a source: after a transaction, with what is needed to recognise it again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ingest.binlog.gtid_sets import grown
from viewtail.changes.errors import HistoryGoneError, SourceError
from viewtail.changes.positions import FieldsAsText, Position
from viewtail.changes.versions import base_version

_FILE = re.compile(r"^(?P<base>.+)\.(?P<number>\d{6,})$")


def file_number(file: str) -> int:
    """The number in a binlog's name: 'binlog.000012' -> 12."""
    match = _FILE.match(file)
    if not match:
        raise HistoryGoneError(f"binlog file {file!r} does not end in a number; viewtail cannot order it")
    return int(match["number"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogPosition(FieldsAsText):
    """Binlog coordinates after a transaction, and what is needed to recognise that transaction again."""

    epoch: int
    file: str  # e.g. 'binlog.000012'
    end: int  # bytes from the file's start, 64 bit: reading goes on here
    start: int  # where the last transaction begins (its GTID event); == end when none was read yet
    gtid: str = ""  # of that transaction, 'uuid:number'; '' when none was read yet
    gtid_base: str = ""  # set of GTIDs that, grown to reach `gtid`, is all that was seen; '' when not known
    server: str = ""  # identity of the server whose binlog it is; '' when not known
    # Set of GTIDs: `seen`, and behind it nothing but viewtail's own transactions. The one that saved it is not in it.
    quiet: str = ""  # '': not known

    @property
    def version(self) -> int:
        """The epoch is in it, so it orders positions too."""
        return base_version(self.epoch, file_number(self.file)) | self.end >> 4

    @property
    def order(self) -> tuple[int, ...]:
        """See Position."""
        return (self.version,)

    @property
    def seen(self) -> str:
        """The set of all transactions up to here, the same on every server; '' when it is not known."""
        try:
            return grown(self.gtid_base, self.gtid)
        except ValueError as error:
            raise SourceError(
                f"at {self} the last transaction and the set of those before it do not belong together ({error}): what "
                "was read is not one server's binlog. Begin a new history: viewtail replay --new-history"
            ) from None

    @property
    def is_by_set(self) -> bool:
        """Return whether only the set tells where reading goes on: nothing has been read from this server yet."""
        return self.end == 0 and bool(self.gtid_base)

    def is_of_another_server(self, identity: str) -> bool:
        """Return whether it is known to be a place in another server's binlog than that one's; '' is not known."""
        return bool(self.server and identity and self.server != identity)

    def details(self) -> dict[str, str]:
        return {"gtid": self.gtid}

    def __str__(self) -> str:
        return f"{self.file}:{self.end}"


BEFORE_ALL = BinlogPosition(epoch=0, file="none.000000", end=0, start=0)  # no server has a file of that name


def own(position: Position) -> BinlogPosition:
    """A position that a binlog gave, as such. Raises HistoryGoneError for one of another way in."""
    if not isinstance(position, BinlogPosition):
        raise HistoryGoneError(
            f"{position} is no place in the binlog, which this source tails. To go on from there with the binlog: "
            "viewtail switch --to binlog. It was interrupted if you called it already: call it again"
        )
    return position
