"""The one tree of errors, and what their messages share.

Each class says by its place whether trying again may help (`TemporaryError`). A message says what happened, where, and
ends with what to do; it never holds a row's values or a secret. `exit_code` is what the command line returns for it.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class ViewtailError(Exception):
    """Anything viewtail raises on purpose. The message is for a person and complete."""

    exit_code = 1


class MisuseError(ViewtailError):
    """Something the user wrote cannot work: settings, declarations, arguments."""

    exit_code = 2


class UnknownNameError(MisuseError):
    """This deployment has nothing of that name; another deployment of the same program may know it."""


class SettingsError(MisuseError):
    """A setting is unknown, missing or of the wrong form."""


class DeclarationError(MisuseError):
    """A view in views.py cannot work; names the view, the column and what to change."""


RETRIES = "`viewtail run` tries again by itself"  # in messages of temporary errors


class TemporaryError(ViewtailError):
    """Trying again, after a pause, may succeed without anybody doing anything."""


class SourceUnavailableError(TemporaryError):
    """The source does not answer, or the connection broke."""


class TookTooLongError(SourceUnavailableError):
    """The source ended a SELECT, which took longer than its session allows."""


class SnapshotTooOldError(SourceUnavailableError):
    """A table was rebuilt or got an index after a snapshot was taken, and cannot be read in it: take another one."""


class StoreUnavailableError(TemporaryError):
    """A store does not answer, is overloaded, or broke off; nothing may be assumed written."""


class ReadOnlyError(StoreUnavailableError):
    """A server takes no writes now, as a replica does, or a primary in a failover. This statement changed nothing."""

    variable = ""  # the setting that says so


class SourceError(ViewtailError):
    """The source answers, but in a way that cannot be gone on from."""


class TableGoneError(SourceError):
    """There is no such table any more."""


class HistoryGoneError(SourceError):
    """The stream cannot be continued from the saved position without losing changes."""


class AnotherServerError(ViewtailError):
    """The address leads to another server than before: the pipeline restarts, and then goes on or halts."""


class CorruptEventError(TemporaryError):
    """Bytes from the source fail their checksum: the connection is given up and read again."""

    fingerprint = 0  # of the bytes; 0 where there are none to compare with another attempt's


class TablesChangedError(TemporaryError):
    """Polled tables are not as they were described: the pipeline restarts with those that there are now."""


class StoreError(ViewtailError):
    """A store answers, but refuses in a way that trying again cannot mend."""


class FencedError(ViewtailError):
    """Another process took this pipeline over; this one must stop at once and write nothing."""


class TableUnreadableError(SourceError):
    """One table cannot be read exactly; its own views halt, the others go on."""

    columns: frozenset[str] | None = None  # the ones to blame, where the others can be read without them


class WaitedTooLongError(ViewtailError):
    """A view does not have in time what was waited for."""


class WatermarkMissingError(WaitedTooLongError):
    """A watermark that was committed cannot come through the stream, as the servers say why."""


class StopRequested(Exception):
    """Work was asked to stop, which is no error; it goes on from its last finished step."""


def once(error: ViewtailError) -> str:
    """The message for a command, which does not try again."""
    return str(error).replace(RETRIES, "Try again when the server answers")


def place_of(error: BaseException, *, beside: str = "") -> str:
    """' at FILE:LINE' of the innermost frame outside the file `beside`; the error's own text may hold values."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != beside]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the known name that is closest to one that is not known, or ''."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    closest = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[closest[0]]}?" if closest else ""
