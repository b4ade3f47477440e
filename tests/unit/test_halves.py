"""What `make pytest` promises of its two processes; here each is a few lines of Python in the place of pytest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import halves, slices
from tests.support.running import wait_for

# Prints, writes down how its tests ended, and exits as it is told.
STAND_IN = """
import json, os, pathlib, signal, sys, time
half, outcome = (word.partition("=")[2] for word in sys.argv[1:])
folder, plan = pathlib.Path(os.environ["FOLDER"]), json.loads(os.environ["PLAN"])[half]
if plan.get("hangs"):
    interrupted = lambda *_: sys.exit((folder / f"{half}.interrupted").write_text("") or 2)
    is_deaf = plan["hangs"] == "whatever comes"
    signal.signal(signal.SIGINT, signal.SIG_IGN if is_deaf else interrupted)
    (folder / f"{half}.hangs").write_text(str(os.getpid()))
    time.sleep(60)
print(f"output of {half}", flush=True)
if "outcome" in plan:
    pathlib.Path(outcome).write_text(json.dumps(plan["outcome"]))
sys.exit(plan.get("code", 0))
"""
DRIVER = """
import pathlib, sys
from tests.support import halves
halves.PAGE, halves.ENDS_WITHIN_S = pathlib.Path(sys.argv[1]), 1.0
sys.exit(halves.main([sys.executable, "-c", sys.argv[2]]))
"""
PASSED = {"counts": {"passed": 3}, "is_full": True, "passed": ["tests/a.py::test_a[1]"], "failed": []}
NAMED = {
    "counts": {"passed": 2, "skipped": 1},
    "is_full": True,
    "passed": ["tests/b.py::test_b"],
    "failed": [],
}
FAILED = {
    "counts": {"passed": 2, "failed": 1},
    "is_full": True,
    "passed": [],
    "failed": ["tests/b.py::test_b"],
}


def started(folder: Path, first: dict[str, object], second: dict[str, object]) -> subprocess.Popen[str]:
    page = folder / "page.md"
    page.write_text("`tests/a.py::test_a` and `tests/b.py::test_b`")
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(page), STAND_IN],
        cwd=halves.CHECKOUT,
        env={**os.environ, "FOLDER": str(folder), "PLAN": json.dumps({"first": first, "second": second})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_both_outputs_are_shown_one_after_the_other_with_one_closing_line(tmp_path: Path) -> None:
    process = started(tmp_path, {"outcome": PASSED}, {"outcome": NAMED | {"seconds": {"tests/b.py": 7.1}}})
    output, _ = process.communicate(timeout=30)
    lines = [line for line in output.splitlines() if line]
    assert process.returncode == 0
    assert lines[:4] == [
        "-- the first half of the tests", "output of first", "-- the second half of the tests", "output of second",
    ]  # fmt: skip
    assert lines[4] == "the slowest files of the second half: tests/b.py 7 s"
    assert lines[5].endswith(f"VIEWTAIL_TEST_SLICE={slices.NUMBER} runs it again")
    assert len(lines) == 7 and lines[6].startswith("5 passed, 1 skipped in ")


@pytest.mark.parametrize("failing", halves.HALVES)
@pytest.mark.parametrize("plan", [{"code": 1, "outcome": FAILED}, {"code": 3}, {"code": -9}], ids=str)
def test_a_failure_in_either_half_fails(failing: str, plan: dict[str, object], tmp_path: Path) -> None:
    plans = {"first": {"outcome": PASSED}, "second": {"outcome": NAMED}, failing: plan}
    process = started(tmp_path, plans["first"], plans["second"])
    output, _ = process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert output.splitlines()[-1].startswith("1 failed" if "outcome" in plan else "")
    assert " error" in output or "outcome" in plan


LEFT = {**PASSED, "passed": [], "left": ["tests/b.py::test_b"]}


@pytest.mark.parametrize(("outcome", "code"), [(FAILED, 1), ({**PASSED, "passed": []}, 1), (NAMED, 0), (LEFT, 0)])
def test_a_named_test_that_passed_in_neither_half_fails(outcome: dict[str, object], code: int, tmp_path: Path) -> None:
    process = started(tmp_path, {"outcome": PASSED}, {"outcome": outcome})
    output, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert ("page.md names tests that did not run and pass:\n  tests/b.py::test_b\n" in output) == bool(code)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_ends_both(number: signal.Signals, tmp_path: Path) -> None:
    process = started(tmp_path, {"hangs": True}, {"hangs": True})
    told = [tmp_path / f"{half}.hangs" for half in halves.HALVES]
    wait_for("both hang", lambda: all(file.exists() and file.read_text() for file in told))
    process.send_signal(number)
    process.communicate(timeout=30)
    wait_for("both are gone", lambda: not any(Path(f"/proc/{file.read_text()}").exists() for file in told))
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert all((tmp_path / f"{half}.interrupted").exists() for half in halves.HALVES)


def test_ctrl_c_ends_a_half_that_swallows_it(tmp_path: Path) -> None:
    process = started(tmp_path, {"outcome": PASSED}, {"hangs": "whatever comes"})
    wait_for("it hangs", (tmp_path / "second.hangs").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_every_file_is_in_one_half_and_what_is_named_exists() -> None:
    tests = halves.CHECKOUT / "tests"
    assert [name for name in halves.FIRST if not (halves.CHECKOUT / name).exists()] == []
    for half in halves.HALVES:
        assert any(halves.is_in(half, file) for file in tests.rglob("test_*.py"))
