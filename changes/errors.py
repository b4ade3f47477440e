"""The one tree of errors.

Each class says by its place whether trying again may help (`TemporaryError`) and by `fault` whose
move it is. A message says what happened, where, and ends with what to do; it never holds a row's
values or a secret. `exit_code` is what the command line returns for it.
"""

from __future__ import annotations


class ViewtailError(Exception):
    """Anything viewtail raises on purpose. The message is for a person and complete."""

    fault = "viewtail"
    exit_code = 1


class MisuseError(ViewtailError):
    """Something the user wrote cannot work: settings, declarations, arguments."""

    fault = "user"
    exit_code = 2


class SettingsError(MisuseError):
    """A setting is unknown, missing or of the wrong form."""


class DeclarationError(MisuseError):
    """A view in views.py cannot work; names the view, the column and what to change."""


RETRIES = "viewtail tries again by itself"  # in messages of temporary errors


class TemporaryError(ViewtailError):
    """Trying again, after a pause, may succeed without anybody doing anything."""


class SourceUnavailableError(TemporaryError):
    """The source does not answer, or the connection broke."""

    fault = "source"


class StoreUnavailableError(TemporaryError):
    """A store does not answer, is overloaded, or broke off; nothing may be assumed written."""

    fault = "store"


class SourceError(ViewtailError):
    """The source answers, but in a way that cannot be gone on from."""

    fault = "source"


class HistoryGoneError(SourceError):
    """The stream cannot be continued from the saved position without losing changes."""


class AnotherServerError(SourceError):
    """The address leads to another server than the one that was read: what that means is decided anew."""


class CorruptEventError(TemporaryError):
    """Bytes from the source fail their checksum: the connection is given up and read again."""

    fault = "source"
    fingerprint = 0  # of the bytes; 0 where there are none to compare with another attempt's


class StoreError(ViewtailError):
    """A store answers, but refuses in a way that trying again cannot mend."""

    fault = "store"


class FencedError(ViewtailError):
    """Another process took this pipeline over; this one must stop at once and write nothing."""


class TableUnreadableError(SourceError):
    """One table cannot be read exactly; its own views halt, the others go on."""

    columns: frozenset[str] | None = None  # the ones to blame, where the others can be read without them


class ValueUnreadableError(SourceError):
    """One value of one row cannot be read exactly; its key is parked."""


class StopRequested(Exception):
    """Work was asked to stop, which is no error; it goes on from its last finished step."""
