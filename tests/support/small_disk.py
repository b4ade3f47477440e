"""A file system of a few MiB, for a server whose disk is to become full.

It is a tmpfs in a mount namespace that one process holds, and is reached through that process's /proc/PID/root. So it
needs no root where users may make namespaces, nobody else sees it, and it is gone when the tests are, however they end.
"""

from __future__ import annotations

import errno
import io
import os
import subprocess
from pathlib import Path
from types import TracebackType

# As root there is no need for a user namespace, and a container may forbid them.
_WAYS: tuple[tuple[str, ...], ...] = ((), ("--user", "--map-root-user"))
_HOLD = 'mount -t tmpfs -o size="$1" tmpfs "$0" && echo mounted && exec cat'  # until its standard input ends
_PIECE = 1 << 20


class SmallDisk:
    """At `path`; `folder` is where it is mounted, for its holder alone."""

    def __init__(self, folder: Path, size_mib: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._holder = _hold(folder, size_mib)
        self.path = Path(f"/proc/{self._holder.pid}/root{folder}")
        self._ballast = self.path / "ballast"

    @property
    def seen_by(self) -> list[str]:
        """What a command begins with that sees it at `folder`."""
        holder = str(self._holder.pid)
        is_own_user = Path(f"/proc/{holder}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
        return [
            "nsenter",
            "--target",
            holder,
            "--mount",
            *(["--user", "--preserve-credentials"] if is_own_user else []),
        ]

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._holder.communicate()

    def fill(self) -> None:
        """Leave no room for a single byte more."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (_PIECE, 4096, 1):
                while _is_written(ballast, size):
                    pass

    def free(self) -> None:
        """Take back what `fill` took."""
        self._ballast.unlink(missing_ok=True)


def _is_written(file: io.FileIO, size: int) -> bool:
    try:
        return file.write(bytes(size)) == size
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


def _hold(folder: Path, size_mib: int) -> subprocess.Popen[bytes]:
    said = b""
    for way in _WAYS:
        argv = ["unshare", *way, "--mount", "sh", "-c", _HOLD, str(folder), f"{size_mib}m"]
        # A group of its own: Ctrl-C must not take the disk away before the server that uses it.
        holder = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        )
        assert holder.stdout is not None
        if holder.stdout.readline() == b"mounted\n":
            return holder
        said += holder.communicate()[1]
    raise RuntimeError(
        f"no small file system can be mounted here ({os.fsdecode(said).strip()}): a full disk cannot be tried. "
        "Run the tests as root, or let users make namespaces (sysctl kernel.unprivileged_userns_clone=1)"
    )
