"""The part `kafka`, second half: views that are fed from a topic, beside the same views fed from the binlog."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import redis

from bench import kafka, live
from bench.consuming import PARTITIONS, admin, ends, messages, require_each_once
from bench.kafka import TOPIC
from bench.lines import Limit, Line, by_turns
from bench.projecting import FAKE_BATCH_S
from bench.setting import Place, Setting, Sizes, prepare, say, told, until, write_bulk_rows

STORES = {"mysql": ("MySQL", "viewtail.index_name"), "redis": ("Redis", "narrow")}
_WITHIN_S = 120.0
_ALL = range(PARTITIONS)


def measure(setting: Setting, sizes: Sizes, rounds: int) -> list[Line]:
    """The lines of this part."""
    place, counts = _published(setting, sizes.bulk)
    lines = _drains(setting, sizes.bulk, place, rounds)
    lines.append(_two_processes(setting, counts, rounds))
    return [*lines, *_live(setting, sizes, rounds)]


def _published(setting: Setting, rows: int) -> tuple[Place, Sequence[int]]:
    """Rows in the binlog and in the topic, behind the filling of every view; the messages of each partition."""
    _begin(setting)
    with _tailing(setting):
        for store in STORES:
            with live.worker(setting.through_kafka(), store):
                _wait_filled(setting, store)
        place = setting.place()
        say(f"writing {rows:,} rows, which are published")
        write_bulk_rows(setting, 0, rows)
        setting.place()
        client, found = admin(setting.brokers), Counter[int]()
        # Markers of transactions count too.
        until("the topic grows", lambda: sum(ends(client, TOPIC)) >= rows, _WITHIN_S)

        def is_there() -> bool:
            found.clear()
            found.update(message.partition() for message in messages(setting.brokers, TOPIC, [0] * PARTITIONS))
            return found.total() >= rows

        until("all rows are in the topic", is_there, _WITHIN_S)
    require_each_once(setting.brokers, TOPIC, range(rows))
    return place, [found[number] for number in _ALL]


def _begin(setting: Setting) -> None:
    """An empty table, and views over it that are filled from the binlog."""
    prepare(setting)
    kafka.forget(setting)
    redis.Redis(port=setting.redis.port).flushall()
    for store in STORES:
        setting.measured("fill", store)


@contextmanager
def _tailing(setting: Setting) -> Iterator[None]:
    with live.worker(setting, "kafka"):
        _wait_filled(setting, "kafka")
        yield


def _drains(setting: Setting, rows: int, place: Place, rounds: int) -> list[Line]:
    """The same rows from the binlog and from the topic, by turns."""
    lines = {
        store: Line(f"{rows:,} rows from a topic to {title}", "rows/s", "from the binlog", 0.8)
        for store, (title, _) in STORES.items()
    }
    for number in range(rounds):
        say(f"from a topic, round {number + 1} of {rounds}")
        for store, line in lines.items():
            by_turns(
                line,
                partial(_from_binlog, setting, store, rows, place),
                partial(_from_topic, setting, store, rows),
            )
    return list(lines.values())


def _from_binlog(setting: Setting, store: str, rows: int, place: Place) -> float:
    _empty(setting, store)
    if store == "redis":  # without its witness it would be filled from the table
        witness = {"epoch": 1, "file": place[0], "end": place[1], "start": place[1], "gtid": ""}
        redis.Redis(port=setting.redis.port).set("viewtail:viewtail:redis:witness", json.dumps(witness))
    seconds = setting.measured("drain", store, str(rows), place[0], str(place[1]))["seconds"]
    _check(setting, store, rows)
    return rows / seconds


def _from_topic(setting: Setting, store: str, rows: int) -> float:
    _empty(setting, store)
    seconds = _projected(setting, store, [(rows, _ALL)])
    _check(setting, store, rows)
    return rows / seconds


def _two_processes(setting: Setting, counts: Sequence[int], rounds: int) -> Line:
    """On a fake store that takes a millisecond a batch: all partitions in one process, half of them in each of two."""
    rows, half = sum(counts), PARTITIONS // 2
    work = f"two projector processes, a store of {FAKE_BATCH_S * 1000:.0f} ms a batch"
    line = Line(work, "rows/s", "one process", 1.8)
    halves = [(sum(counts[:half]), _ALL[:half]), (sum(counts[half:]), _ALL[half:])]
    for number in range(rounds):
        say(f"one projector and two, round {number + 1} of {rounds}")
        by_turns(
            line,
            lambda: rows / _projected(setting, "redis", [(rows, _ALL)], "--fake"),
            lambda: rows / _projected(setting, "redis", halves, "--fake"),
        )
    return line


def _projected(setting: Setting, store: str, parts: Sequence[tuple[int, range]], *options: str) -> float:
    """Seconds from the first process's begin to the last one's end; `parts`: the rows and partitions of each."""
    processes = [
        setting.through_kafka().python("bench.projecting", store, str(rows), ",".join(map(str, some)), *options)
        for rows, some in parts
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"{process.args!r} did not become ready")
        found = _all_told(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return max(one["ended"] for one in found) - min(one["began"] for one in found)


def _all_told(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, float]]:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [told(process) for process in processes]


def _live(setting: Setting, sizes: Sizes, rounds: int) -> list[Line]:
    """Commit to visible through the topic, at 300 transactions a second, beside the same view fed from the binlog."""
    _begin(setting)
    lines, slice_s = list[Line](), sizes.live_s / rounds
    for at, (store, (title, target)) in enumerate(STORES.items()):
        p50 = Limit(f"live through a topic to {title}, p50", "ms", "from the binlog", 15)
        p99 = Limit(f"live through a topic to {title}, p99", "ms", "from the binlog", 50)
        look = live.looker(setting, store, target)
        for number in range(rounds):
            say(f"live through a topic to {store}, round {number + 1} of {rounds}")
            first = (2 * (at * rounds + number) + 1) * 1_000_000
            with live.worker(setting, store):
                theirs = live.measure(setting, store, slice_s, first, look)
            with _tailing(setting), live.worker(setting.through_kafka(), store):
                _wait_filled(setting, store)
                ours = live.measure(setting, store, slice_s, first + 1_000_000, look)
            p50.add(ours.p50_ms, theirs.p50_ms)
            p99.add(ours.p99_ms, theirs.p99_ms)
        lines += [p50, p99]
    return lines


# -- waiting and checking --------------------------------------------------------------------------------------


def _wait_filled(setting: Setting, store: str) -> None:
    """Until every pipeline of the store has filled its views; those of a topic are one a partition."""
    pipelines = 1 if store == "kafka" else 1 + PARTITIONS
    sql = (
        "SELECT COUNT(*) FROM viewtail.view JOIN viewtail.pipeline p ON p.id = pipeline_id "
        f"WHERE state = 'filled' AND p.store = '{store}'"
    )
    until(f"the views of {store} are filled", lambda: setting.run(sql)[0] >= pipelines, _WITHIN_S)


def _empty(setting: Setting, store: str) -> None:
    if store == "mysql":
        setting.run("DROP TABLE IF EXISTS viewtail.index_name", "DO 1")
    else:
        redis.Redis(port=setting.redis.port).flushall()


def _check(setting: Setting, store: str, rows: int) -> None:
    if store == "mysql":
        count = setting.run("SELECT COUNT(*) FROM viewtail.index_name")[0]
    else:
        count = redis.Redis(port=setting.redis.port).dbsize()
    if count < rows:
        raise RuntimeError(f"{store}: {count:,} rows of {rows:,} arrived")
