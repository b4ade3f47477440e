"""What `viewtail status --watch` draws, in terminals of many sizes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from rich.console import Console

from viewtail.commands.sparkline import KEPT_S, History
from viewtail.commands.watch import Seen, _Page
from viewtail.operations.findings import Findings
from viewtail.operations.status import PipelineStatus, ViewStatus


def view(number: int, state: str = "filled", parked: int = 0) -> ViewStatus:
    return ViewStatus(
        name=f"redis:a_view_with_a_long_name_{number:03}",
        state=state,
        reason="the table was dropped. " * 8 if state == "halted" else None,
        filled_percent=100.0,
        row_count=10**9,
        row_estimate=10**9,
        rows_per_second=0.0,
        eta_s=None,
        parked=parked,
    )


def pipeline(name: str, state: str = "running", views: Sequence[ViewStatus] = (), lag_s: float = 0.2) -> PipelineStatus:
    return PipelineStatus(
        name=name,
        state=state,
        position="binlog.000012:345",
        gtid=None,
        lag_s=lag_s,
        rows_per_second=123456,
        applied_row_count=1,
        reconnect_count=0,
        error=None if state == "running" else "Redis at 10.0.0.7:6379 does not answer. " * 6,
        owner="host:1",
        reported_s_ago=2.0,
        views=tuple(views),
    )


class Looked:
    """What the page asks."""

    server = "mysql://viewtail@db:3306"

    def __init__(self, pipelines: Sequence[PipelineStatus], error: str | None = None, age_s: float = 0.0) -> None:
        now = time.monotonic() - age_s
        found = Findings(pipelines=pipelines)
        lags = {one.name: History().with_one(now, one.lag_s) for one in pipelines}
        self.seen = Seen(found=found, at=now, error=error, lags=lags)


def drawn(looked: Looked, columns: int = 80, lines: int = 24) -> list[str]:
    console = Console(width=columns, height=lines, force_terminal=True, color_system=None, legacy_windows=False)
    page = _Page(cast(Any, looked), 2.0)
    rendered = console.render_lines(page, console.options.update(width=columns, height=None), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in rendered]


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 12), (20, 8), (80, 6)], ids=str)
@pytest.mark.parametrize("pipelines", [1, 3, 40])
@pytest.mark.parametrize("views", [0, 3, 200])
@pytest.mark.parametrize("is_well", [True, False], ids=["well", "unwell"])
def test_no_line_is_wider_than_the_terminal(size: tuple[int, int], pipelines: int, views: int, is_well: bool) -> None:
    state = "running" if is_well else "retrying"
    shown = [view(number, "filled" if is_well else "halted", 0 if is_well else 3) for number in range(views)]
    many = [pipeline(f"shop.a_topic_of_a_long_name.{number}.redis", state, shown) for number in range(pipelines)]
    lines = drawn(Looked(many, error=None if is_well else "MySQL does not answer: 2003. " * 5), *size)
    assert all(len(line) <= size[0] for line in lines)
    if size[1] >= 24:
        assert len(lines) <= size[1]


def test_each_pipeline_has_its_lag_rate_and_parked_keys_and_each_view_how_long_ago_it_was_proven() -> None:
    then = datetime.now(UTC) - timedelta(hours=3, minutes=5)
    proven = replace(view(1, parked=4), proven_through=f"{then:%Y-%m-%d %H:%M:%S}")
    lines = drawn(Looked([pipeline("redis", views=[proven, view(2, parked=1)], lag_s=7.5)]), 120)
    titled = [line.split() for line in lines]
    (heading,) = [words for words in titled if words[:1] == ["pipeline"]]
    assert heading == ["pipeline", "state", "lag", "lag", "lately", "rows/s", "parked", "reported"]
    (row,) = [words for words in titled if words[:1] == ["redis"]]
    assert row[:4] == ["redis", "running", "7.5", "s"] and row[4][-1] in "▁▂▃▄▅▆▇█" and row[5:7] == ["123,456", "5"]
    rows = {words[0][-3:]: words[-2:] for words in titled if words and words[0].startswith("redis:")}
    assert rows == {"001": ["4", "3h"], "002": ["1", "-"]}, "parked keys, and proven through"


def test_the_unwell_come_first_and_what_is_left_out_is_counted() -> None:
    views = [view(number) for number in range(50)] + [view(98, parked=2), view(99, "halted")]
    pipelines = [pipeline(f"a{number:02}") for number in range(30)] + [pipeline("zz", "retrying", views)]
    lines = drawn(Looked(pipelines))
    rows = [line.split()[0] for line in lines if line]
    assert rows[rows.index("pipeline") + 1] == "zz"
    assert rows[rows.index("view") + 1].startswith("redis:") and rows[rows.index("view") + 2].startswith("redis:")
    of_views = lines[next(number for number, line in enumerate(lines) if line.startswith("view ")) + 1 :]
    assert "halted" in of_views[0]
    (left,) = [line for line in lines if line.startswith("and ") and line.endswith("pipelines")]
    listed = sum(line.startswith("a") and line[1:3].isdigit() for line in lines)
    assert left.split()[1] == str(30 - listed)
    (left,) = [line for line in lines if line.startswith("and ") and line.endswith("views")]
    assert left.split()[1] == str(52 - sum(line.startswith("redis:a_view") for line in lines))


def test_what_to_do_stands_below_and_a_wide_terminal_shows_all_of_it() -> None:
    lines = drawn(Looked([pipeline("redis", "retrying", [view(1, "halted")])]), 120, 40)
    text = " ".join(lines)
    assert "pipeline redis: Redis at 10.0.0.7:6379 does not answer" in text
    assert "view redis:a_view_with_a_long_name_001 is halted: the table was dropped" in text
    assert "has the rest" not in text
    small = drawn(Looked([pipeline("redis", "retrying", [view(1, "halted")])]), 60, 16)
    assert "viewtail status has the rest" in " ".join(small)


def test_a_server_that_does_not_answer_is_told_with_the_age_of_what_stands_below() -> None:
    text = " ".join(drawn(Looked([pipeline("redis")], error="MySQL at db:3306 does not answer", age_s=42)))
    assert "What stands below is 42 s old" in text and "MySQL at db:3306 does not answer" in text
    assert "redis" in text


def test_a_lag_is_drawn_with_its_largest_values_and_blank_where_nothing_is_known() -> None:
    history = History()
    for second, lag in ((1, 0.0), (100, 80.0), (101, 10.0), (179, 0.0)):
        history = history.with_one(float(second), lag)
    line = history.drawn(18, 180.0, "01234567")
    assert len(line) == 18 and line[9] == "7" and line[-1] == "0" and line[0] == "0"
    assert History().drawn(5, 0.0, "01") == "     "
    assert History().with_one(0.0, None).drawn(5, 1.0, "01") == "     "


def test_what_is_older_than_the_picture_is_forgotten() -> None:
    history = History()
    for second in range(1000):
        history = history.with_one(float(second), 1.0)
    assert len(history.values) <= KEPT_S + 1


def test_a_look_and_a_drawing_do_not_wait_for_each_other() -> None:
    looked = Looked([pipeline("redis")])
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            looked.seen = Looked([pipeline(f"redis{number}") for number in range(3)]).seen

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(50):
            assert drawn(looked)
    finally:
        stop.set()
        thread.join()
