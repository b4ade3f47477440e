"""The part `kafka`: the tailer of topics beside a bare transactional producer, the floor and a bare loop."""

from __future__ import annotations

import re
import statistics
import time
from pathlib import Path

from bench import bare, kafka, live
from bench.consuming import admin, ends, require_each_once
from bench.kafka import TOPIC
from bench.lines import Limit, Line, by_turns, rates_by_turns
from bench.live import BARE_TOPIC
from bench.setting import (
    ROWS_A_TRANSACTION,
    Place,
    Setting,
    Sizes,
    insert,
    prepare,
    say,
    told,
    write_bulk_rows,
    write_single_rows,
)  # fmt: skip

FULL_ROWS = 200_000  # of one transaction: three times what librdkafka's queue holds
STILL_S = 2.0
_LONGEST_S = 20.0  # viewtail takes a broker that takes nothing for 30 s as away
_STEP_S = 0.01


def measure(setting: Setting, sizes: Sizes, rounds: int) -> tuple[list[Line], float]:
    """The lines of this part, and the peak memory of the tailer in its drains."""
    drains, memory_mib = _drains(setting, sizes, rounds)
    return [*drains, *_live(setting, sizes, rounds), _full_queue(setting, rounds)], memory_mib


def _drains(setting: Setting, sizes: Sizes, rounds: int) -> tuple[list[Line], float]:
    """Single-row and bulk transactions; the bare producer's two ways of sending take turns as well."""
    prepare(setting)
    single_at = setting.place()
    say(f"writing {sizes.single:,} single-row transactions")
    write_single_rows(setting, 0, sizes.single)
    bulk_at = setting.place()
    write_bulk_rows(setting, sizes.single, sizes.bulk)
    setting.place()
    singles, bulks = range(sizes.single), range(sizes.single, sizes.single + sizes.bulk)
    ready_made = kafka.ready_made(setting, sizes.bulk)
    single = Line(f"drain {sizes.single:,} single-row transactions to a topic", "rows/s", "floor", 10)
    ours, produced, batched, memory_mib = list[float](), list[float](), list[float](), list[float]()

    def drain(ids: range, place: Place) -> float:
        """Rows/s into a new topic; raises when a consumer does not find each row once."""
        kafka.forget(setting)
        found = setting.measured("drain", "kafka", str(len(ids)), place[0], str(place[1]))
        require_each_once(setting.brokers, TOPIC, ids)
        memory_mib.append(found["memory_mib"])
        return len(ids) / found["seconds"]

    for number in range(rounds):
        say(f"drains to a topic, round {number + 1} of {rounds}")
        by_turns(
            single,
            lambda: bare.floor(setting, single_at, sizes.floor_single // 3),
            lambda: drain(singles, single_at),
        )
        rates = rates_by_turns(
            lambda: kafka.produce(setting, ready_made),
            lambda: kafka.produce_batch(setting, ready_made),
            lambda: drain(bulks, bulk_at),
        )
        for found, rate in zip((produced, batched, ours), rates, strict=True):
            found.append(rate)
    name, theirs = max(("produce", produced), ("produce_batch", batched), key=lambda one: statistics.median(one[1]))
    bulk = Line(f"drain {sizes.bulk:,} rows in 500s to a topic", "rows/s", f"bare, {name}", 0.8, ours, theirs)
    return [single, bulk], max(memory_mib)


def _live(setting: Setting, sizes: Sizes, rounds: int) -> list[Line]:
    """Commit to consumed at 300 transactions a second, the bare loop and ours by turns."""
    prepare(setting)
    kafka.forget(setting)
    kafka.make(setting, BARE_TOPIC)
    kafka.make(setting, TOPIC)
    p50 = Limit("live to a consumer of a topic, p50", "ms", "bare", 8)
    p99 = Limit("live to a consumer of a topic, p99", "ms", "bare", 30)
    slice_s = sizes.live_s / rounds
    with live.worker(setting, "kafka"):
        live.measure_topic(setting, TOPIC, live.WARM_S, 900_000_000)
    for number in range(rounds):
        say(f"live to a topic, round {number + 1} of {rounds}: {slice_s:.0f} s bare and as long ours")
        with live.bare(setting, "kafka"):
            theirs = live.measure_topic(setting, BARE_TOPIC, slice_s, 1 + number * 1_000_000)
        with live.worker(setting, "kafka"):
            ours = live.measure_topic(setting, TOPIC, slice_s, 100_000_000 + number * 1_000_000)
        p50.add(ours.p50_ms, theirs.p50_ms)
        p99.add(ours.p99_ms, theirs.p99_ms)
    return [p50, p99]


def _full_queue(setting: Setting, rounds: int) -> Line:
    """Peak memory of the tailer when the broker hangs in a large transaction, beside the same without."""
    prepare(setting)
    place = setting.place()
    _write_in_one(setting, FULL_ROWS)
    line = Limit("memory of the tailer with librdkafka's queue full", "MiB", "broker answers", 150)
    for number in range(rounds):
        say(f"memory with a full queue, round {number + 1} of {rounds}")
        kafka.forget(setting)
        answered = setting.measured("drain", "kafka", str(FULL_ROWS + 1), place[0], str(place[1]))
        kafka.forget(setting)
        line.add(_peak_while_hung(setting, place), answered["memory_mib"])
    return line


def _peak_while_hung(setting: Setting, place: Place) -> float:
    process = setting.python("bench.measured", "drain", "kafka", str(FULL_ROWS + 1), place[0], str(place[1]))
    client = admin(setting.brokers)
    while process.poll() is None and not any(ends(client, TOPIC)):
        time.sleep(_STEP_S)
    setting.kafka.pause()
    try:
        _wait_still(process.pid)
    finally:
        setting.kafka.resume()
    found = told(process)
    require_each_once(setting.brokers, TOPIC, range(FULL_ROWS))
    return found["memory_mib"]


def _wait_still(pid: int) -> None:
    """Until the process takes no more memory: its queue is full."""
    deadline = time.monotonic() + _LONGEST_S
    last, since = "", time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < STILL_S:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        resident = found[1] if found else ""
        if resident != last:
            last, since = resident, time.monotonic()
        time.sleep(_STEP_S)


def _write_in_one(setting: Setting, rows: int) -> None:
    """So many rows in one transaction, and behind it one more: what has read that has committed the others."""
    connection = setting.connect()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for at in range(0, rows, ROWS_A_TRANSACTION):
            cursor.execute(insert(range(at, at + ROWS_A_TRANSACTION)))
        cursor.execute("COMMIT")
        cursor.execute(insert(range(rows, rows + 1)))
    connection.close()
    setting.place()
