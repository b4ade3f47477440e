"""`python -m bench.sources`: a view over eight sources, beside the same view over one.

What a pipeline's process costs in memory once it has filled its rows and followed changes. The sources are one server
under eight names: what a process keeps of them is the same. Exit 1 where a pipeline of eight costs more than one alone.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import stack.mysql
from bench.setting import Setting
from bench.starts import running, when

SOURCES, ROWS = 8, 20_000
MOST_MORE = 1.03  # the same process twice differs by so much
VIEWS = """
from viewtail import Entity, IndexTable

views = [IndexTable("narrow_by_name", Entity("bench.narrow", sources="s*"), value="name")]
"""


def worker_kib(folder: Path) -> list[int]:
    """The memory of each pipeline's process in a folder that is its own, now."""
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            is_worker = b"viewtail.process" in cmdline.read_bytes().split(b"\0")
            if is_worker and (cmdline.parent / "cwd").resolve() == folder.resolve():
                lines = (cmdline.parent / "smaps_rollup").read_text().splitlines()
                found.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")))
        except OSError:
            continue
    return found


def measured(setting: Setting, count: int) -> Sequence[int]:
    """KiB of each pipeline of a view over so many sources."""
    setting.run("DROP DATABASE IF EXISTS viewtail", "DO 1")
    more = {f"VIEWTAIL_SOURCES__S{number}__URL": setting.mysql.url for number in range(count)}
    sources = replace(setting, more={**more, "VIEWTAIL_MYSQL__URL": f"{setting.mysql.url}/viewtail"})
    with running(sources, VIEWS):
        shown = "SELECT COUNT(*) FROM viewtail.narrow_by_name WHERE name = %s"
        when(lambda: _count(setting, "SELECT COUNT(*) FROM viewtail.view WHERE state = 'filled'") == count)
        setting.run(f"UPDATE bench.narrow SET name = 'new{count}'", "DO 1")
        when(lambda: _count(setting, shown.replace("%s", f"'new{count}'")) == count * ROWS)
        time.sleep(3)
        return worker_kib(setting.folder)


def _count(setting: Setting, sql: str) -> int:
    try:
        return int(setting.run(sql)[0])
    except Exception:  # viewtail has not made the table yet
        return 0


def main() -> int:
    """Print what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(servers={}, folder=Path(folder) / "app")
        setting.folder.mkdir()
        setting.servers["mysql"] = stack.mysql.start(Path(folder) / "mysql")
        try:
            setting.run(
                "CREATE DATABASE bench",
                "CREATE TABLE bench.narrow (id BIGINT PRIMARY KEY, name VARCHAR(64))",
                "SET SESSION cte_max_recursion_depth = 1000000",
                "INSERT INTO bench.narrow WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n "
                f"WHERE id < {ROWS}) SELECT id, CONCAT('n', id) FROM n",
                "DO 1",
            )
            (alone,) = measured(setting, 1)
            of_many = measured(setting, SOURCES)
        finally:
            setting.servers["mysql"].kill()
    many = statistics.median(of_many)
    print(
        f"a pipeline of a view over {SOURCES} sources, of {ROWS:,} rows each, costs {many / 1024:.1f} MiB of memory, "
        f"{many / alone:.2f} of one over 1 ({alone / 1024:.1f} MiB)"
    )
    return 0 if many <= MOST_MORE * alone else 1


if __name__ == "__main__":
    sys.exit(main())
