"""Runs all tests in two processes side by side: `python -m tests.support.halves` (most tests wait more than they work).

Each process has servers, ports and folders of its own. The division is by file: the first half is what FIRST names, the
second half is everything else, so that no file is forgotten. The first half's output is shown as it comes, then the
second's, then where the time went, and one closing line over both. It fails when either fails, and when a test that
docs/failures.md names did not pass (tests/support/promised.py). Ctrl-C ends both.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support import slices
from tests.support.promised import LEFT, PAGE, is_full, missing_from, tell_missing

CHECKOUT = Path(__file__).resolve().parents[2]
HALVES = ("first", "second")
# Balanced by time, as the closing lines of a run say.
FIRST = (
    "tests/contract",
    "tests/integration",
    "tests/properties",
    "tests/unit",
    "tests/acceptance/test_bad_input.py",
    "tests/acceptance/test_changed_declarations.py",
    "tests/acceptance/test_mariadb.py",
    "tests/acceptance/test_planted_damage.py",
    "tests/acceptance/test_rebuild.py",
    "tests/acceptance/test_verify_interrupted.py",
    "tests/faults/test_elasticsearch_sink_faults.py",
    "tests/faults/test_fleet_schedules.py",
    "tests/faults/test_mariadb_failover.py",
    "tests/faults/test_rebuild_faults.py",
    "tests/faults/test_wire.py",
)
_NAMES = ("failed", "passed", "skipped", "error")  # in the order of pytest's own closing line
_LEFT = "deselected"
_GUARD = CHECKOUT / "stack/guard.py"
SLOWEST = 20  # files of a half that are named
ENDS_WITHIN_S = 20.0  # of Ctrl-C; pytest has ended its servers by then, or their guards do


def is_in(half: str, path: Path) -> bool:
    """Whether a test file belongs to a half."""
    file = path.relative_to(CHECKOUT)
    is_first = any(file.is_relative_to(name) for name in FIRST)
    return is_first == (half == "first")


class Half:
    """A pytest plugin: collects the files of one half, and writes down how its tests ended."""

    def __init__(self, half: str, outcome: Path) -> None:
        self._half, self._outcome = half, outcome

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_other = collection_path.suffix == ".py" and not is_in(self._half, collection_path)
        return True if is_other else None

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        stats = terminalreporter.stats
        seconds: Counter[str] = Counter()
        for report in chain.from_iterable(stats.values()):
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
        outcome = {
            "is_full": is_full(config),
            "seconds": {file: round(spent, 1) for file, spent in seconds.most_common(SLOWEST)},
            "counts": {name: len(stats.get(name, ())) for name in (*_NAMES, _LEFT)},
            "passed": [report.nodeid for report in stats.get("passed", ())],
            "failed": [report.nodeid for name in ("failed", "error") for report in stats.get(name, ())],
            "left": sorted(config.stash.get(LEFT, ())),
        }
        self._outcome.write_text(json.dumps(outcome))


class _Process:
    """One pytest over one half."""

    def __init__(self, half: str, folder: Path, command: list[str]) -> None:
        self.half, self.outcome, self.printed = half, folder / f"{half}.json", folder / f"{half}.out"
        self._asked_at: float | None = None
        with self.printed.open("wb") as output:
            # A process group of its own: Ctrl-C comes from here, once. The guard kills the group if we are killed.
            self.process = subprocess.Popen(
                [*command, f"--half={half}", f"--half-outcome={self.outcome}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self.guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(self.process.pid)],
            stdin=subprocess.DEVNULL,
            process_group=0,
        )

    def show(self, out: IO[bytes]) -> int:
        """Copy what it prints until it has ended; its exit code."""
        with self.printed.open("rb") as printed:
            while True:
                is_over = self.process.poll() is not None
                if self._asked_at is not None and time.monotonic() - self._asked_at > ENDS_WITHIN_S:
                    self.process.terminate()
                shutil.copyfileobj(printed, out)
                out.flush()
                if is_over:
                    break
                time.sleep(0.1)
        self.guard.wait()
        return self.process.wait()

    def send(self, number: int) -> None:
        """Ask it to end; `show` makes it end where a test swallows that."""
        self._asked_at = self._asked_at or time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)


def main(command: list[str]) -> int:
    """Run both halves; the exit code is pytest's of the first that failed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        halves = [_Process(half, Path(folder), command) for half in HALVES]
        was_ended = threading.Event()

        def end(number: int, _: object) -> None:
            was_ended.set()
            for half in halves:
                half.send(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        codes = []
        for half in halves:
            print(f"-- the {half.half} half of the tests", flush=True)
            codes.append(half.show(sys.stdout.buffer))
            print(flush=True)
        outcomes = [_outcome(half.outcome) for half in halves]
    if was_ended.is_set():
        return 130
    failed = [code for code in codes if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)]
    code = failed[0] if failed else min(codes)  # of chosen tests a half may have none
    if code == 0 and all(outcome["is_full"] for outcome in outcomes):
        code = _missing(outcomes)
    _close(outcomes, time.monotonic() - began)
    return code


def _outcome(file: Path) -> dict[str, Any]:
    # A half that broke off left none.
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"counts": {"error": 1}}
    return found


def _missing(outcomes: list[dict[str, Any]]) -> int:
    passed = {name for outcome in outcomes for name in outcome.get("passed", ())}
    failed = {name for outcome in outcomes for name in outcome.get("failed", ())}
    left = {name for outcome in outcomes for name in outcome.get("left", ())}
    missing = missing_from(PAGE, passed, failed, left)
    tell_missing(PAGE, missing, print)
    return int(pytest.ExitCode.TESTS_FAILED) if missing else 0


def _close(outcomes: list[dict[str, Any]], seconds: float) -> None:
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome["counts"])
    for half, outcome in zip(HALVES, outcomes, strict=True):
        slowest = ", ".join(f"{file} {spent:.0f} s" for file, spent in outcome.get("seconds", {}).items())
        if slowest:
            print(f"the slowest files of the {half} half: {slowest}")
    print(f"of long tests the part of day {slices.NUMBER} was run; VIEWTAIL_TEST_SLICE={slices.NUMBER} runs it again")
    if counts[_LEFT]:
        print(f"{counts[_LEFT]:,} cases were left for other days; make whole runs all")
    told = ", ".join(f"{counts[name]} {name}" for name in _NAMES if counts[name])
    print(f"{told or 'no tests ran'} in {seconds:.2f}s ({int(seconds) // 60} min {int(seconds) % 60} s)")


if __name__ == "__main__":
    # -qq: the closing line is ours.
    sys.exit(main([sys.executable, "-m", "pytest", "-qq", *sys.argv[1:]]))
