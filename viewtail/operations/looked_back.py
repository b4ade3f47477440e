"""Says in words what a look back at the binlog found of an entity, and what was not looked at."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from projectors.proving.changed_keys import Looked
from projectors.stores import Held
from viewtail.changes.versions import parts_of


def notes(looked: Looked, held: Held, *, within_s: float, has_version_column: bool) -> Iterator[str]:
    """Say what a look found that took `within_s` at most, at what the store has as `held`."""
    if looked.last is None and looked.back_to is not None:
        mib = max(1, round(looked.byte_count / 2**20))
        stretch = f"the last {mib:,} MiB of the binlog, since {moment(looked.begun_us)} UTC"
        yield f"no change in {stretch}" + (", which is all that the source has" if looked.is_all else "")
    if left := _left_out(looked, within_s):
        yield left
    if looked.unreadable_upto >= 0 and not looked.is_sure:
        place = place_of(looked.unreadable_upto, str(looked.back_to or looked.stopped_at))
        yield f"up to about {place} the table was another one, or was emptied, which is no change of a row"
    if not has_version_column and _is_from_no_change(looked, held):
        yield _from_a_backfill(looked, held)


def moment(committed_us: int) -> str | None:
    """Return Unix time in microseconds as text, UTC; None where it is not known."""
    if not committed_us:
        return None
    return datetime.fromtimestamp(committed_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def place_of(version: int, near: str) -> str:
    """Return the place of a version as an operator writes it, in the binlog that `near` is a place of."""
    _, number, position = parts_of(version)
    return f"{near.rpartition(':')[0].rpartition('.')[0]}.{number:06d}:{position}"


def _left_out(looked: Looked, within_s: float) -> str:
    if looked.stopped_at is not None and not looked.is_sure:
        upto = "" if looked.back_to is None else f", up to {looked.back_to},"
        reason = looked.failure or f"reading took {within_s:.0f} s"
        return f"what is behind {looked.stopped_at}{upto} was not looked at: {reason}"
    what = "the binlog" if looked.back_to is None else "what is older"
    if looked.failure:
        return f"{what} was not looked at: {looked.failure}"
    is_cut = looked.last is None and not looked.is_all and looked.stopped_at is None
    return f"{what} was not looked at" if is_cut else ""


def _is_from_no_change(looked: Looked, held: Held) -> bool:
    """Return whether the part that was seen has the version that is held, and no change of the entity there."""
    version = held.version or 0
    is_seen = looked.back_to is not None and looked.unreadable_upto < version >= looked.back_to.version
    return is_seen and looked.shown is None


def _from_a_backfill(looked: Looked, held: Held) -> str:
    if held.content is None:
        return "a backfill found no value, or somebody took it away"
    is_older = looked.last is not None and looked.last.version > (held.version or 0)
    return f"{'what the view shows is older, and' if is_older else 'the view has it'} from a backfill"
