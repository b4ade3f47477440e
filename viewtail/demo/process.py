"""The real `viewtail run`, as a process of its own, and other commands beside it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from viewtail.changes.errors import ViewtailError
from viewtail.demo.servers import GUARD

STOP_WITHIN_S = 15.0
ANSWERS_WITHIN_S = 120.0


class DemoError(ViewtailError):
    """The demo cannot go on; the message says why and where to look."""


def command(*arguments: str) -> list[str]:
    """The argv of a viewtail command: the installed one, or the checkout's where none is installed."""
    installed = Path(sys.executable).with_name("viewtail")
    if installed.exists():
        return [str(installed), *arguments]
    return [sys.executable, "-c", "from viewtail.main import main; main()", *arguments]


def environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with these settings, and none that came with it from outside."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("VIEWTAIL_") or name.startswith("VIEWTAIL_STACK_")
    }
    return {**inherited, **chosen}


def ran(
    arguments: Sequence[str], environ: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A viewtail command that has ended, and what it printed. Raises DemoError where it does not end in time."""
    argv = command(*arguments)
    # A session of its own: Ctrl-C is the demo's business, which says what became of it.
    with subprocess.Popen(
        argv,
        env=environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=ANSWERS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            what = f"viewtail {' '.join(arguments)} did not end within {ANSWERS_WITHIN_S:.0f} s"
            raise DemoError(what) from None
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, output, errors)


class Run:
    """`viewtail run`, in `cwd`, with its log and its process id in `folder`. With `stays` it outlives the demo."""

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        *,
        stays: bool = False,
        arguments: Sequence[str] = ("run",),
        cwd: Path | None = None,
    ) -> None:
        self.log = folder / "viewtail.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command(*arguments),
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the demo's business: it ends viewtail before the servers
            )
        (folder / "viewtail.pid").write_text(str(self.process.pid))
        self._guard: subprocess.Popen[bytes] | None = None
        if not stays:  # when the demo is killed outright, viewtail goes too
            argv = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(self.process.pid)]
            self._guard = subprocess.Popen(argv, start_new_session=True)

    def require_running(self) -> None:
        """Raises DemoError with the end of its log where it has ended."""
        if self.process.poll() is not None:
            raise DemoError(f"viewtail run ended with code {self.process.returncode}.\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Its last lines, with where they are from."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"The end of {self.log}:", *lines])

    def workers(self) -> dict[str, int]:
        """The process ids of its workers, by the store that each writes."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (words := _words_of(entry, parent=self.process.pid)):
                found[words[words.index("viewtail.process") + 1]] = int(entry)
        return found

    def kill(self) -> None:
        """SIGKILL to all of its processes, as when a machine is lost."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, as an operator would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        if self._guard is not None:
            self._guard.wait(STOP_WITHIN_S)
        return code


def _words_of(process: str, parent: int) -> list[str]:
    """The command line of a worker whose parent that is; empty for any other process."""
    try:
        # proc(5): the fields after the command's name, which may itself hold blanks and brackets.
        if int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]) != parent:
            return []
        words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
    except (OSError, IndexError):
        return []
    return words if "viewtail.process" in words[:-1] else []


def stop_kept(folder: Path) -> None:
    """End the viewtail that an earlier `--keep` left running, if it is still there."""
    try:
        pid = int((folder / "viewtail.pid").read_text())
        ours = b"viewtail" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return
    if ours:
        with suppress(ProcessLookupError):
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGTERM)
            select.select([ended], [], [], STOP_WITHIN_S)
            os.close(ended)
