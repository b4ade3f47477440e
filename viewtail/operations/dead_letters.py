"""Dead letters: which view is meant by a name. What is kept of a letter is in offsets/dead_letters.py.

To try such keys again is a replay of them (replay_keys.py): a key that is applied loses its letter, one that is refused
again counts once more. The pipeline's process sees within some seconds which letters are left.
"""

from __future__ import annotations

from offsets import views
from offsets.mysql import Session
from viewtail.changes.errors import MisuseError, UnknownNameError, nearest


def view_named(session: Session, database: str, name: str) -> str:
    """The id of the view of that name, declared or not. Raises MisuseError."""
    known = views.names(session, database)
    found = [view for view in known if name in (view, view.partition(":")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        raise MisuseError(f"{name!r} is the name of {len(found)} views; say which: {', '.join(found)}")
    near = nearest(name, [*known, *(view.partition(":")[2] for view in known)])
    raise UnknownNameError(f"no run has seen a view {name!r}{near or '; there are ' + (', '.join(known) or 'none')}")
