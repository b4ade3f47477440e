"""`viewtail adopt` while its pipelines run beside it, and an audit of nothing."""

from __future__ import annotations

import subprocess
import sys
from threading import Event
from typing import Any

import pytest

from viewtail.changes.errors import StopRequested
from viewtail.commands.adopt import _kept
from viewtail.commands.audit import verdict
from viewtail.operations.audit import AuditCounts, AuditReport
from viewtail.supervisor import Supervisor, _Child


class _Dying:
    def run(self, pipelines: object) -> int:
        raise OSError("no more processes")

    def stop(self) -> None:
        pass


def test_where_the_pipelines_can_not_be_run_the_command_ends_with_the_reason() -> None:
    stop, supervisor = Event(), _Dying()

    def wait() -> None:
        with _kept(supervisor, [], stop):  # type: ignore[arg-type]
            assert stop.wait(10), "nothing ends the wait"
            raise StopRequested

    with pytest.raises(OSError, match="no more processes"):
        wait()


def test_a_supervisor_that_dies_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def start(child: Any) -> None:
        child.process = process

    def show(_: object) -> None:
        raise OSError("the terminal is gone")

    monkeypatch.setattr(_Child, "start", start)
    target: Any = type("Target", (), {"names": staticmethod(str), "shard": None})
    with pytest.raises(OSError, match="terminal"):
        Supervisor(None, show).run([(target, "redis")])
    assert process.poll() is not None


def report(counts: AuditCounts) -> AuditReport:
    return AuditReport(
        view="redis:v", table="", place="", counts=counts, listed=[], refused=[], refused_count=0, changing=0,
        foreign=[], undeclared=[], remarks=[], again_after_s=5, took_s=1,
    )  # fmt: skip


def test_an_audit_of_nothing_is_not_equal() -> None:
    assert report(AuditCounts(rows=1)).is_equal and report(AuditCounts(shown=1, rows=1)).is_equal
    nothing = report(AuditCounts())
    assert not nothing.is_equal
    assert "nothing was compared" in verdict(nothing)
