"""The section of docs/performance.md about the peers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from bench.lines import table
from bench.live import RATE, WARM_S
from bench.peers.course import Figures, Sizes
from bench.peers.readers import CONNECT, DEBEZIUM, MAXWELL


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the table."""

    what: str
    name: str  # of a field of Figures
    form: str
    is_more_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was measured on one source server."""

    machine: str
    figures: Mapping[str, Figures]  # by reader; viewtail's first


def section(sources: list[Source], sizes: Sizes, rounds: int, command: str) -> str:
    """Everything that was measured."""
    parts = "\n\n".join(_part(source, sizes) for source in sources)
    text = TEXT.format(
        command=command, rounds=rounds, parts=parts, rate=RATE, live_s=sizes.live_s, warm_s=WARM_S, killed=sizes.killed,
        single=sizes.single, bulk=sizes.bulk, debezium=_settings(DEBEZIUM), connect=_settings(CONNECT),
        maxwell=_settings(MAXWELL),
    )  # fmt: skip
    return "\n".join(map(_folded, text.splitlines())) + "\n"


def _folded(line: str) -> str:
    """A line of prose that settings have made too long."""
    indent = "  " * line.startswith(("- ", "  "))
    return line if line.startswith("|") else textwrap.fill(line, 120, subsequent_indent=indent, break_on_hyphens=False)


def _rows(sizes: Sizes) -> list[_Row]:
    return [
        _Row(f"drain of {sizes.single:,} single-row transactions, rows/s", "single_rate", "{:,.0f}", True),
        _Row(f"drain of {sizes.bulk:,} rows in 500s, rows/s", "bulk_rate", "{:,.0f}", True),
        _Row("commit to consumed, p50, ms", "p50_ms", "{:.1f}"),
        _Row("commit to consumed, p99, ms", "p99_ms", "{:.1f}"),
        _Row("processor seconds for a million single-row transactions", "single_cpu_s", "{:.1f}"),
        _Row("processor seconds for a million rows in 500s", "bulk_cpu_s", "{:.1f}"),
        _Row(f"share of a core at {RATE} transactions a second, %", "live_cpu", "{:.0f}"),
        _Row("peak memory, MiB", "memory_mib", "{:,.0f}"),
        _Row(f"messages too many after a kill, of {sizes.killed:,} rows", "duplicates", "{:,.0f}"),
        _Row(f"rows lost after a kill, of {sizes.killed:,}", "losses", "{:,.0f}"),
    ]


def _part(source: Source, sizes: Sizes) -> str:
    """The table of one source server, and the rows in which viewtail is not ahead."""
    ours, peer = source.figures
    cells, behind = [["", ours, peer, "viewtail is better by"]], []
    for row in _rows(sizes):
        found = {name: figures.median(row.name) for name, figures in source.figures.items()}
        better = _better(found[ours], found[peer], row.is_more_better)
        if better is not None and better < 1:
            behind.append(row.what)
        told = [row.form.format(found[name]) for name in (ours, peer)]
        cells.append([row.what, *told, "" if better is None else f"{better:.2f}"])
    verdict = f"viewtail is behind in: {'; '.join(behind)}." if behind else "viewtail is ahead or level in every row."
    return f"### {peer}\n\nOn {source.machine}.\n\n{table(cells)}\n\n{verdict}"


def _better(ours: float, theirs: float, is_more_better: bool) -> float | None:
    """The factor by which ours is better; None where both are 0, or one is."""
    if not ours or not theirs:
        return None if ours <= theirs else 0.0
    return ours / theirs if is_more_better else theirs / ours


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in settings.items())


TEXT = """## Beside Debezium and Maxwell

You want to know how the tailer stands beside others that read a binlog into Kafka. The command:

    {command}

Rounds: {rounds}; figures are medians. Servers, broker, reader and consumer share the machine's cores.

{parts}

Where viewtail is behind, this is why. A reader of committed messages gets a row of ours once its Kafka transaction is
committed, some milliseconds after it was sent. The others send without transactions, and after a crash a consumer may
get a message twice. The commits are also most of the processor time while little happens. Maxwell's messages hold the
row and few words about it; ours are Debezium's, several times as large.

How it is measured:

- All readers of a server read the same rows of the same binlog in the same run, by turns; another one is first in each
  round. Only one of them runs at a time. The topics have 4 partitions.
- A drain: {single:,} single-row transactions and {bulk:,} rows in transactions of 500 are written twice while no reader
  runs. Then the reader starts and goes on where it left off. The first of each warms it, since a JVM is slow at first;
  the second counts. The time is that from the last message before it to its own last, by the broker's clock
  (`message.timestamp.type=LogAppendTime`). A consumer then checks that each row is in the topic once.
- Live: the warm reader runs while {rate} single-row transactions a second are committed, {warm_s:g} s that do not count
  and {live_s:g} s that do. The time is from the end of COMMIT until a plain consumer (confluent-kafka,
  `isolation.level=read_committed`) has the message.
- Processor time and memory are those of all processes of the reader. The memory is the sum of each one's largest.
- A kill: {killed:,} rows in transactions of 500 wait. When half of them is in the topic, the reader's processes get
  SIGKILL. It is started again, and a read_committed consumer counts the messages of each row.

How the readers are set up. All have acks=all and lz4; the JVMs may take 1 GiB of heap:

- viewtail: `viewtail run` with one `Topic`, and no setting besides addresses.
- Debezium: Kafka Connect, standalone, with {connect}; the connector with {debezium}. Kafka Connect can write each row
  once (`exactly.once.source.support`) in its distributed mode only, which is not measured here.
- Maxwell: {maxwell}. It is the newest release that Maven has, of 2019, and reads no MySQL of today. So it has a table
  of its own, with viewtail on the same MariaDB beside it.
"""
