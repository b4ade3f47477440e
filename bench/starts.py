"""What a first `viewtail run` takes, from the start of its process: many new views, and a large backfill."""

from __future__ import annotations

import contextlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import redis

from bench.setting import Setting, prepare, until, write_bulk_rows

Told = tuple[str, str, str, str]  # what, seconds, goal, whether it is met
LONGEST_S = 300.0
VIEW = {
    "mysql": "IndexTable('ix{0}', Entity('bench.t{0}'), value='name')",
    "redis": "RedisHash('h{0}', Entity('bench.t{0}'), fields=['name'])",
}


@contextlib.contextmanager
def running(setting: Setting, views: str) -> Iterator[float]:
    """`viewtail run` with these views; when it was started. Ends it with SIGTERM."""
    (setting.folder / "views.py").write_text(views)
    began = time.monotonic()
    process = subprocess.Popen(
        [Path(sys.executable).with_name("viewtail"), "run"], cwd=setting.folder, env=setting.environment
    )
    try:
        yield began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def when(is_so: Callable[[], bool]) -> float:
    """The time at which something became so."""
    return until("`viewtail run` has come so far", is_so, LONGEST_S)


def _asking(setting: Setting, sql: str, expected: int) -> Callable[[], bool]:
    """Whether a query gives that number; on one session, so that asking costs the server little."""
    cursor = setting.connect().cursor()

    def ask() -> bool:
        try:
            cursor.execute(sql)
        except pymysql.err.MySQLError:  # viewtail has not made the table yet
            return False
        return bool(cursor.fetchone()[0] == expected)

    return ask


def _filled(setting: Setting, count: int) -> Callable[[], bool]:
    """Whether so many views are filled."""
    return _asking(setting, "SELECT COUNT(*) FROM viewtail.view WHERE state = 'filled'", count)


def _visible(setting: Setting, store: str, key: int) -> Callable[[], bool]:
    """Whether a row of bench.t0 is in its view."""
    client = redis.Redis(port=setting.redis.port)
    if store == "redis":
        return lambda: bool(client.exists(f"h0:{key}"))
    return _asking(setting, f"SELECT COUNT(*) FROM viewtail.ix0 WHERE id = {key}", 1)


def many_views(setting: Setting, store: str, count: int) -> tuple[float, float]:
    """Seconds until so many new views over empty tables are filled; from a later start until a waiting row shows."""
    prepare(setting)
    redis.Redis(port=setting.redis.port).flushall()
    setting.run(*(f"CREATE TABLE bench.t{n} (id INT PRIMARY KEY, name VARCHAR(50))" for n in range(count)), "DO 1")
    declared = ", ".join(VIEW[store].format(n) for n in range(count))
    views = f"from viewtail import Entity, IndexTable, RedisHash\nviews = [{declared}]\n"
    with running(setting, views) as began:
        filled_s = when(_filled(setting, count)) - began
    setting.run("INSERT INTO bench.t0 VALUES (1, 'first')", "DO 1")
    with running(setting, views) as began:
        first_row_s = when(_visible(setting, store, 1)) - began
    return filled_s, first_row_s


def backfill(setting: Setting, rows: int) -> tuple[float, float]:
    """A view of so many rows in Redis: seconds until its last row is there, and until it is filled."""
    prepare(setting)
    client = redis.Redis(port=setting.redis.port)
    client.flushall()
    write_bulk_rows(setting, 0, rows)
    view = "RedisHash('n', Entity('bench.narrow'), fields=['name'])"
    with running(setting, f"from viewtail import Entity, RedisHash\nviews = [{view}]\n") as began:
        there_s = when(lambda: client.exists(f"n:{rows - 1}") == 1) - began
        filled_s = when(_filled(setting, 1)) - began
    return there_s, filled_s


def measure(setting: Setting, views: int, rows: int, rounds: int) -> list[Told]:
    """Each line's median over the rounds."""
    told = []
    for store in VIEW:
        filled, first_row = zip(*(many_views(setting, store, views) for _ in range(rounds)), strict=True)
        told += [
            _line(f"{views} new views of empty tables are filled: {store}", filled, 5.0),
            _line(f"the first row is in its view, {views} views: {store}", first_row, 1.5),
        ]
    there, filled = zip(*(backfill(setting, rows) for _ in range(rounds)), strict=True)
    last_row_s = statistics.median(there)
    told += [
        (f"the last of {rows:,} rows is in Redis", f"{last_row_s:.2f} s", "", ""),
        _line("and the view is filled", filled, last_row_s + 1),
    ]
    return told


def _line(what: str, seconds: tuple[float, ...], goal_s: float) -> Told:
    median = statistics.median(seconds)
    spread = f" ({min(seconds):.2f} to {max(seconds):.2f})" if len(seconds) > 1 else ""
    return what, f"{median:.2f} s{spread}", f"≤ {goal_s:.1f} s", "yes" if median <= goal_s else "NO"
