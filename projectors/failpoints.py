"""Named steps of the loop at which a test may have the process killed, or stopped.

`VIEWTAIL_FAILPOINT=STEP:N` sends SIGKILL to the process itself when STEP is reached for the Nth time, and
`STEP:N:SIGSTOP` that signal. `STEP:N:SIGKILL:MS` comes so many milliseconds later, inside of what follows the step.
Unset, which is always except in tests, `reach` is one comparison.
"""

from __future__ import annotations

import os
import signal
import threading

STEPS = ("after read", "before write", "after write", "after offset", "after chunk")
PART_STEP = "after part chunk"  # of one table of many that is written again
PUSH_STEP = "before push"  # of rows that were committed a moment ago
REBUILD_STEPS = tuple(
    f"{when} {what}" for what in ("swapping", "returning", "dropping") for when in ("before", "after")
)
SWAP_STEP = "in swapping"  # of a store that swaps in more than one step
REWRITE_STEPS = ("after rows", "after take away", "after rewrite")  # of a command that writes single entities again
RUN_STEPS = ("after begin", "after save", "before end")  # of the record of such a command
# Around the request that ends a store's own transaction: one that holds changes, and one that holds a position only.
COMMIT_STEPS = ("before commit", "after commit")
EMPTY_COMMIT_STEPS = ("before empty commit", "after empty commit")
ARCHIVE_STEPS = ("in archive", "after archive")  # of events into a table, or behind a file
ARCHIVE_FILE_STEPS = ("before archive file", "in archive file", "after archive file", "after archive record")
RESTORE_STEPS = ("in restore", "after restore")
RELEASE_STEP = "after release"  # of a table, before the record of it
# Of taking over what another tool keeps: around each place, of an index, of Redis keys, and before all is compared.
ADOPT_STEPS = ("before taking", "after taking", "after block", "after clone", "before leading readers",
               "after claim", "in marking", "after filling")  # fmt: skip
POSITION_STEP = "before position"  # of a pipeline that has none: its views are bound by then
DROP_STEPS = ("before drop", "after drop", "before forgetting")  # of a view that nobody declares any more

_step, _count, _signal, _later_ms, *_ = [*os.environ.get("VIEWTAIL_FAILPOINT", "").split(":"), "", "", ""]
_left = int(_count or 1)


def reach(step: str) -> None:
    """Die or stop here, if a test asked for it."""
    global _left
    if step == _step:
        _left -= 1
        if _left == 0 and _later_ms:
            threading.Timer(float(_later_ms) / 1000, _end).start()
        elif _left == 0:
            _end()


def _end() -> None:
    os.kill(os.getpid(), signal.Signals[_signal or "SIGKILL"])
