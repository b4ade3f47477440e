"""docs/scale.md: what was measured at small numbers, and what follows for large ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bench.lines import table

if TYPE_CHECKING:
    from bench.scale import Idle, Shared

SHARDS, PARTITIONS, PROCESSES = 100, 1_000, 50  # the fleet on paper: partitions over all topics
SMALLINT = 65_535


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What one more costs, and what there is without any: least squares."""
    fit = statistics.linear_regression(*zip(*points, strict=True))
    return fit.slope, max(fit.intercept, 0.0)


def page(machine: str, idles: Sequence[Idle], shared: Sequence[Shared], partitions: int) -> str:
    """The whole page."""
    return TEXT.format(
        machine=machine,
        idle=_idle(idles),
        shared=_shared(shared),
        partitions=partitions,
        paper=_paper(idles, shared),
        first=PARTITIONS // PROCESSES,
        processes=PROCESSES,
        shards=SHARDS,
        all_partitions=PARTITIONS,
        most_views=SMALLINT // PARTITIONS,
        smallint=SMALLINT,
        sessions=_fitted(idles)["sessions"][0],
    )


def _idle(idles: Sequence[Idle]) -> str:
    heads = [
        "Partitions", "Start", "Memory", "Threads", "MySQL sessions", "Broker connections", "MySQL statements",
        "Processor",
    ]  # fmt: skip
    rows = [
        [
            str(one.partitions), f"{one.start_s:.1f} s", f"{one.memory_mib:.0f} MiB", str(one.threads),
            str(one.sessions), str(one.connections), f"{one.statements:.0f} a second", f"{one.processor:.1%}",
        ]
        for one in idles
    ]  # fmt: skip
    return table([heads, *rows, ["one more costs", *_slopes(idles)]])


_COSTS: Sequence[tuple[str, Callable[[Idle], float], str]] = (
    ("start", lambda one: one.start_s, "{:.2f} s"),
    ("memory", lambda one: one.memory_mib, "{:.1f} MiB"),
    ("threads", lambda one: float(one.threads), "{:.1f}"),
    ("sessions", lambda one: float(one.sessions), "{:.1f}"),
    ("connections", lambda one: float(one.connections), "{:.1f}"),
    ("statements", lambda one: one.statements, "{:.1f} a second"),
    ("processor", lambda one: one.processor, "{:.2%}"),
)


def _fitted(idles: Sequence[Idle]) -> dict[str, tuple[float, float]]:
    """By cost: that of one more partition, and that of the process."""
    return {name: slope([(one.partitions, of(one)) for one in idles]) for name, of, _ in _COSTS}


def _slopes(idles: Sequence[Idle]) -> list[str]:
    fitted = _fitted(idles)
    return [form.format(fitted[name][0]) for name, _, form in _COSTS]


def _shared(shared: Sequence[Shared]) -> str:
    heads = [
        "Processes", "Memory of each", "MySQL sessions of all", "One more joins within", "One killed is replaced",
        "Processor for a row", "Statements for a row", "Rows, written to seen",
    ]  # fmt: skip

    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:.1f} s"

    rows = [
        [
            str(one.processes), f"{one.memory_mib:.0f} MiB", str(one.sessions), seconds(one.joined_s),
            seconds(one.killed_s), f"{one.processor_us:.1f} µs", f"{one.statements_per_row:.4f}",
            f"{one.rows_per_s:,.0f}/s",
        ]
        for one in shared
    ]  # fmt: skip
    return table([heads, *rows])


def _paper(idles: Sequence[Idle], shared: Sequence[Shared]) -> str:
    """The fleet on paper: one store, every partition's cost and every process's, as measured."""
    fitted = _fitted(idles)

    def total(name: str) -> float:
        one_more, process = fitted[name]
        return one_more * PARTITIONS + process * PROCESSES

    each = PARTITIONS / PROCESSES
    memory_mib = fitted["memory"][0] * each + fitted["memory"][1]
    rows = [
        ["memory of a process", f"{memory_mib:.0f} MiB", f"{memory_mib * PROCESSES / 1024:.0f} GiB in all"],
        ["sessions in the MySQL of the offsets", f"{total('sessions'):,.0f}", "its `max_connections`, 151 by default"],
        ["statements there while nothing happens", f"{total('statements'):,.0f} a second", "leases, reports, progress"],
        ["connections to the brokers", f"{total('connections'):,.0f}", "at every broker that leads a partition"],
        ["threads of a process", f"{fitted['threads'][0] * each + fitted['threads'][1]:,.0f}", "most are librdkafka's"],
        ["processor while nothing happens", f"{total('processor'):.1f} cores", "over the whole fleet"],
        [
            "rows a second that one core projects",
            f"{1e6 / statistics.median(one.processor_us for one in shared):,.0f}",
            "more cores, more processes: they share nothing but MySQL and the broker",
        ],
    ]
    return table([["What grows", f"{PARTITIONS:,} partitions, {PROCESSES} processes", "Against"], *rows])


TEXT = """# Scale

You run viewtail on one machine and want to know what comes when one is not enough. `python -m bench.scale --out
docs/scale.md` printed this page from what it measured. The machine: {machine}.

MySQL, the broker, the tailer and all projectors run on those cores. So times and rates are of a full machine; counts
are the same everywhere.

## A partition's cost

One `viewtail run --role project`, one index table, while nothing happens. A source partition is one pipeline a store:
its own offset, fence, lease, consumer and threads. Each store is a process, so another store costs the same again.

{idle}

A pipeline of the binlog, or of a polled source, keeps up to 18 sessions on its MySQL servers (10 without a cleaner), 6
of them on the source: the dump connection, watermarks, and what the cleaner reads. While views are backfilled, or the
cleaner mends some, it has up to 8 more; `viewtail rebuild` adds some for its time. **The number of views changes
nothing**: 60 views have as many sessions as one, and as many connections to Redis, Elasticsearch or Kafka. `viewtail
check` compares what all pipelines, a standby and some commands need with `max_connections`, and with what the account
may have (`MAX_USER_CONNECTIONS`), on the source and on the server of viewtail's own tables.

## A process's cost

{partitions} partitions, shared out. Every line gets the same rows, through the tailer and the topic.

{shared}

The processes share no state but MySQL and the broker, so rows a second grow with the cores that there are. Here all of
it shares the machine's cores with the servers: with more processes than cores they take turns, each takes smaller
batches, and a row costs more.

## On paper: {shards} shards, {all_partitions:,} partitions

Each shard is a MySQL of its own with a tailer of its own (one process, one dump connection, one transactional id), and
its own topics, 10 partitions a shard. {processes} projector processes, {first} partitions each, one store.

{paper}

## What gives out first, and what to do

1. **Sessions in the MySQL of the offsets.** Each partition's pipeline keeps {sessions:.0f} sessions (lease, offsets,
   reports, the store itself where that is MySQL), and 3 more once its rows change: the cleaner looks at them. So
   `max_connections` is the first limit, and `viewtail check` compares. Raise it; a session that sleeps costs
   MySQL well below 1 MiB. Or give each deployment its own database server for offsets: a deployment is a views.py with
   its settings, and a shard, or a group of shards, can be one. Deployments know nothing of each other.
2. **Partitions.** Take as many as the projectors that you will ever run for a topic, not more. Partitions cannot be
   taken away, and a key stays where it is only while their number stays ([more of them](deployments.md#kafka-between)).
3. **Statements while nothing happens.** They grow with partitions, not with rows. Above some thousand a second, split
   the deployment.
4. **A tailer.** One binlog is read by one process; that is what keeps it in order. Its rate is in
   [performance.md](performance.md). A source above it must be sharded in MySQL first.
5. **Numbers.** A view has a row for each partition in `viewtail.view`, whose key is a SMALLINT: {smallint:,} of them in
   one deployment, {most_views} views at {all_partitions:,} partitions.
6. **Rebalances.** One process that comes or goes moves its share alone (cooperative-sticky). Others go on meanwhile.
   A killed one is missed after 6 s (`session.timeout.ms`).

What does not grow: transactions in the source (the tailer reads the binlog, however many projectors there are), and
what a row costs. Rebalancing moves offsets, not data.
"""
