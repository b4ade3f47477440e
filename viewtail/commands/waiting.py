"""`viewtail wait`: until a view has what was committed before."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import asdict

from offsets import dead_letters
from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.changes.errors import ViewtailError
from viewtail.commands.output import print_remark
from viewtail.composition import own_tables
from viewtail.operations.waiting import Wanted
from viewtail.settings import Settings
from viewtail.waiting import wait_for


def wait(loaded: Settings, view: str, key: str | None, wanted: Wanted, *, within_s: float) -> int:
    """Print how long it took; the exit code is 0. Raises WaitedTooLongError."""
    took_s = wait_for(view, key, **asdict(wanted), within_s=within_s, settings=loaded)
    print(f"{view}: has it, after {took_s:.3f} s")
    if key is None and (count := _parked(loaded, view)):
        print_remark(f"{view}: {counted(count, 'keys', 'are')} parked all the same: viewtail dead-letters list {view}")
    return 0


def _parked(loaded: Settings, view: str) -> int:
    with suppress(ViewtailError):  # it is a remark: what was waited for is there
        catalog = own_tables(loaded)
        with closing(catalog.session()) as session:
            return dead_letters.count(session, catalog.database, declarations.chosen(loaded, view).id)
    return 0
