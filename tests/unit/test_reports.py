"""Lines to the supervisor."""

from __future__ import annotations

import json
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from viewtail.reports import Reporter, tell

WRITERS, LINES = 4, 20


def test_long_lines_of_several_pipelines_in_one_pipe_stay_whole() -> None:
    read_end, write_end = os.pipe()

    def write(number: int) -> None:
        views = [{"view": f"redis:{number}", "state": "filled", "parked": 0}] * 3000  # more than a pipe holds
        for _ in range(LINES):
            tell(write_end, {"pipeline": str(number), "views": views})

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    with os.fdopen(read_end, "rb") as lines:
        found = [json.loads(next(lines)) for _ in range(WRITERS * LINES)]
    for writer in writers:
        writer.join()
    os.close(write_end)
    for line in found:
        assert {view["view"] for view in line["views"]} == {f"redis:{line['pipeline']}"}


@pytest.mark.parametrize(("of_source", "of_rows"), [("the server is away", None), (None, "a change is not shown")])
def test_what_a_pipeline_waits_for_at_its_source_is_told(of_source: str | None, of_rows: str | None) -> None:
    progress = SimpleNamespace(trouble=of_source, prepared=(0, 0))
    pipeline = SimpleNamespace(trouble=of_rows, vitals=SimpleNamespace(state="running", error=None))
    own: Any = SimpleNamespace(pipeline=pipeline, source=SimpleNamespace(progress=progress))
    own.fills = SimpleNamespace(trouble=None)
    reports: Any = SimpleNamespace(state="running", _error=None)
    assert Reporter._state(reports, own) == {"state": "retrying", "error": of_source or of_rows}


@pytest.mark.parametrize(
    ("saved_lag_s", "lag_s", "is_due"), [(13.0, 0.0, True), (0.0, 0.0, False), (13.0, 12.0, False)]
)
def test_a_lag_that_is_over_is_told_at_once(saved_lag_s: float, lag_s: float, is_due: bool) -> None:
    """The next report of a pipeline that is idle would be a minute away."""
    told = ("running", None, 100)
    reports: Any = SimpleNamespace(_saved=told, _saved_lag_s=saved_lag_s, _saved_at=time.monotonic() - 1)
    line = {"state": "running", "error": None, "writes": 100, "lag_s": lag_s}
    assert Reporter._is_due(reports, line) == is_due
