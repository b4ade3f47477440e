"""Kills a server when the process that started it is gone: `python guard.py OWNER_PID SERVER_GROUP`.

A process of its own rather than PR_SET_PDEATHSIG, which fires when the *thread* that started the server ends and
is lost on a change of user. It imports nothing of stack/ so that it starts in a few milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def main(owner: int, group: int) -> None:
    """Wait for the first of the two to end; then nothing of the server's process group may be left."""
    poll = select.poll()
    try:
        for pid in (owner, group):
            poll.register(os.pidfd_open(pid), select.POLLIN)
        poll.poll()
    except ProcessLookupError:
        pass
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
