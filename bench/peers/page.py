"""The section of docs/performance.md about the peers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from bench.lines import table
from bench.live import RATE
from bench.peers.course import Figures, Sizes


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
    figures: Mapping[str, Figures]  # by reader; the peer's last


def section(sources: list[Source], sizes: Sizes, rounds: int, command: str) -> str:
    """Everything that was measured."""
    parts = "\n\n".join(_part(source, sizes) for source in sources)
    text = TEXT.format(command=command, rounds=rounds, parts=parts)
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
    *ours, peer = source.figures
    behind: dict[str, list[str]] = {name: [] for name in ours}
    cells = [["", *source.figures, *(f"{name} is better by" for name in ours)]]
    for row in _rows(sizes):
        found = {name: figures.median(row.name) for name, figures in source.figures.items()}
        factors = {name: _better(found[name], found[peer], row.is_more_better) for name in ours}
        for name, better in factors.items():
            if better is not None and better < 1:
                behind[name].append(row.what)
        told = [row.form.format(value) for value in found.values()]
        cells.append([row.what, *told, *("" if better is None else f"{better:.2f}" for better in factors.values())])
    verdict = "\n".join(_verdict(name, rows) for name, rows in behind.items())
    return f"### {peer}\n\nOn {source.machine}.\n\n{table(cells)}\n\n{verdict}"


def _verdict(name: str, behind: list[str]) -> str:
    if behind:
        return f"- {name} is behind in: {'; '.join(behind)}."
    return f"- {name} is ahead or level in every row."


def _better(ours: float, theirs: float, is_more_better: bool) -> float | None:
    """The factor by which ours is better; None where both are 0, or one is."""
    if not ours or not theirs:
        return None if ours <= theirs else 0.0
    return ours / theirs if is_more_better else theirs / ours


TEXT = """## Beside Debezium and Maxwell

You want to know how the tailer stands beside others that read a binlog into Kafka. The command:

    {command}

Rounds: {rounds}; figures are medians. Servers, broker, reader and consumer share the machine's cores.

{parts}

viewtail is there twice. As it is by default, a reader of committed messages gets a row once its Kafka transaction is
committed, some milliseconds after it was sent, and gets it once. With
[`delivery="at_least_once"`](views.md#topic) the reader does not wait for commits, and as with the others he may get a
message twice after a crash; viewtail commits every few seconds. The commits are also most of the processor time of the
default while little happens. Maxwell's messages hold the row and few words about it; ours are Debezium's, several
times as large. That, and an interpreter, is the tenth of a millisecond by which Maxwell's p50 is less. After a kill in
the middle of a drain all of viewtail's open transaction comes again, up to 24,000 rows.

[bench/README.md](../bench/README.md) says how it is measured, and how the readers are set up.
"""
