"""docs/performance.md: the tables, and what was measured how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import decode, starts
from bench.commands import CALLERS_OF_MANY
from bench.lines import Line, Told, table
from bench.projecting import FAKE_BATCH_S

MOST_MIB = 150
# What each command measures stands between two comments with its name, and stays when another one is written again.
BINLOG, TOPICS, OPERATORS, REBUILT, CLEANER = "binlog", "topics", "operators", "rebuilds", "cleaner"
ENTITIES, DOCUMENTS, CONSOLE, PEERS = "entities", "documents", "console", "peers"

TEXT = """# Performance

You want to know how fast viewtail is. Every figure is a ratio against a reference that was measured in the same run.
The servers run on the same cores as what is measured. Above each table stand the command that printed it, and the
machine.

## From the binlog to views

{binlog}

## Topics

{topics}

Where a line above misses its goal on a machine of two cores, this is why:

- To a topic, 500 rows a transaction: the bare producer sends messages that are there. The tailer also reads, decodes,
  projects and encodes each row, on Python's one core, while the broker and librdkafka need the other. A faster core
  helps; several tailers help where the source is sharded.
- To a topic, single-row transactions: the clock starts with a fresh process. Beside the peers, below, the reader is
  warm.
- From a topic: a row comes as JSON, many times as large as in the binlog.
- Two projectors: one process and the broker take more than one core already.

## Verify, replay, rebuild, clean

{operators}

{rebuilds}

{cleaner}

Where a line of these misses its goal:

- A replay sweeps after all that a backfill does: it looks for rows older than its watermark. Redis names all its keys
  for that, with the one thread that writes. Elasticsearch marks each replaced document as deleted and merges sooner; to
  read it and leave it out would cost more, as `_mget` shows. The medians are 0.80 to 1.43 from run to run; for Redis
  and Elasticsearch the goal is given up.
- Verify of search documents makes the documents again, on the core that also waits for `_mget`: 0.68 to 0.96.
- During a rebuild each live change is written twice, and meets a chunk of 1,024 rows (100 in Redis and Elasticsearch)
  or its comparison.
- A rebuild gives way to live changes, so it takes many times as long as a backfill; `--hurry` turns that round.

## Documents of several tables

{documents}

## Polling, commands, DataStore

{entities}

Where a line of these misses its goal on a machine of two cores:

- Commands: one thread of Python handles a command and wakes its caller, and the server inserts its event into three
  indexes. How many a second there are is the machine's speed, as the bare INSERTs show.
- Pushes: a thread reads a row before its COMMIT and writes it after. Where all cores are busy, that thread waits.
  Elasticsearch stops for 30 to 100 ms now and then.
- An idle poller looks at each table ten times a second. A larger `poll_s` makes it cheaper.

## The console

{console}

A page that changes by itself is open meanwhile. On a machine of two cores, which the servers, the pipeline and the
bench share, any process that computes for 3 ms ten times a second makes the slowest change in a hundred slower: the
console is held against such a process, too. So one change in a hundred comes some milliseconds later while ten pages a
second are asked for. A `why` reads the newest binlog from its begin, and takes a core as long as that lasts.

{peers}

## The references

- **library**, **floor**: python-mysql-replication; for *floor* it only counts the rows. **bare packets**: the same
  stream, received and stepped over.
- **bare**: the same statements, scripts or messages, ready-made, from one connection that does nothing else. Live, it
  is a raw dump connection with a hard-wired parser that writes each row at once.
- **from the binlog**, **the tailer**: the same view, with the pipeline that reads the binlog. **backfill**: the first
  one of the same view; it begins with an empty place, and a replay does not.
- **one process**: a projector of all partitions, on a store that takes {fake_ms:g} ms a batch and keeps nothing.
- **both tables by one connection**: all rows of both, by viewtail's own reader. **HGETALL in pipelines**, **_mget**:
  1,000 at once, by the store's own client. **parallel_bulk**: elasticsearch.helpers with its defaults.
- **without its time**, **changes that met none**: the same run, without what met the cleaner.
- **one a transaction**: a program by hand that does for each command what a worker does. **bare INSERT**:
  {callers_of_many:,} ready-made events a statement; of a DataStore one entity's row. **the two bare SELECTs**: ids of
  the index, rows of the entities.

A row has a BIGINT key, INT, VARCHAR(64), BIGINT and TIMESTAMP(6). [bench/README.md](../bench/README.md) says how each
line is measured.
"""


def page(written: str, measured: Mapping[str, str]) -> str:
    """The page: what was measured now, and beside it the sections that are written already."""
    sections = {
        name: _between(name, measured.get(name) or _section(written, name))
        for name in (BINLOG, TOPICS, OPERATORS, REBUILT, CLEANER, ENTITIES, DOCUMENTS, CONSOLE, PEERS)
    }
    return TEXT.format(**sections, fake_ms=FAKE_BATCH_S * 1000, callers_of_many=CALLERS_OF_MANY)


def _between(name: str, body: str) -> str:
    return f"<!-- {name} -->\n{body.strip()}\n<!-- end of {name} -->"


def _section(written: str, name: str) -> str:
    """That of a page; nothing where it has none."""
    return written.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]


def section(
    command: str,
    machine: str,
    lines: Sequence[Line],
    memory_mib: Mapping[str, float],
    decoded: Sequence[decode.Workload] = (),
    started: Sequence[starts.Told] = (),
) -> str:
    """What one command measured."""
    return f"`{command}`, on {machine}.\n\n{_ratios(lines, memory_mib)}{_decoded(decoded)}{_started(started)}"


def operated(command: str, machine: str, lines: Sequence[Line], told: Sequence[Told]) -> str:
    """What one command measured of operators' work, or of entities."""
    besides = "\n\n" + table([["Besides", "viewtail", "Goal", "Met"], *map(list, told)]) if told else ""
    return f"`{command}`, on {machine}.\n\n{_ratios(lines, {})}{besides}"


def _ratios(lines: Sequence[Line], memory_mib: Mapping[str, float]) -> str:
    heads = ["Work", "viewtail", "Reference", "Ratio, median (min to max)", "Goal", "Met"]
    rows = [line.cells() for line in lines]
    if memory_mib:
        most = max(memory_mib.values())
        told = ", ".join(f"{store} {mib:.0f}" for store, mib in memory_mib.items())
        met = "yes" if most <= MOST_MIB else "NO"
        name, goal = "peak resident memory of a pipeline", f"≤ {MOST_MIB} MiB"
        rows.append([name, f"{told} MiB", "", f"{most:.0f} MiB", goal, met])
    return table([heads, *rows])


def _decoded(works: Sequence[decode.Workload]) -> str:
    """What one core decodes, beside what receiving alone takes."""
    heads = ["Rows a second of one core", "viewtail", "library", "bare packets", "viewtail's share of bare packets"]
    return "\n\n" + table([heads, *(work.cells() for work in works)]) if works else ""


def _started(told: Sequence[starts.Told]) -> str:
    """What a first run takes."""
    return (
        "\n\n" + table([["From the start of `viewtail run`", "viewtail", "Goal", "Met"], *map(list, told)])
        if told
        else ""
    )
