"""docs/performance.md: the tables, and what was measured how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import decode, live, starts
from bench.cleaning import LINGERS_S, WARM_UP_S
from bench.commands import CALLERS_OF_MANY, MANY
from bench.lines import TURNS, Line, Told, table
from bench.operators import REBUILDS
from bench.projecting import FAKE_BATCH_S
from bench.pushing import WRITERS
from bench.topics import FULL_ROWS, STILL_S

MOST_MIB = 150
# What each command measures stands between two comments with its name, and stays when another one is written again.
BINLOG, TOPICS, OPERATORS, REBUILT, CLEANER = "binlog", "topics", "operators", "rebuilds", "cleaner"
ENTITIES, PEERS = "entities", "peers"

TEXT = """# Performance

You want to know how fast viewtail is. Every figure is a ratio against a reference that was measured in the same run.
The servers run on the same cores as what is measured. Above each table stand the command that printed it, and the
machine.

## From the binlog to views

{binlog}

## Topics

{topics}

Where a line above misses its goal on a machine of two cores, this is why:

- To a topic, 500 rows a transaction: the bare producer hands over messages that are there. The tailer also reads,
  decodes, projects and encodes each row, and all of it is Python's one core; the broker and librdkafka need the other.
  So it is bound by a core, not by Kafka. What helps is a faster core; several tailers help where the source is sharded.
- To a topic, single-row transactions: the clock starts with a fresh process. Beside the peers, below, where the reader
  is warm, the same rows take less time.
- From a topic: a row comes as JSON, many times as large as in the binlog. What stands around the images of a
  transaction is compared, not parsed, and the images are read as one array; what is left is the price.
- Two projectors in place of one: one process and the broker take more than one core already, so that two of them share
  what is left. On more cores nothing is shared but MySQL and the broker.

## Verify, replay, rebuild, clean

{operators}

{rebuilds}

{cleaner}

Where a line of these misses its goal:

- A replay does all that the first backfill does, and then sweeps: it looks for what is still older than its watermark,
  whose rows may be gone. The first backfill begins with an empty place, so it has nothing to sweep. Elasticsearch
  numbers its writes, so there the sweep leaves out what the replay wrote. MySQL reads its table by key. Redis tells
  the names of all its keys, with the one thread that does the writes. Rows of an index table that are as they would be
  written get their new version 1,000 at a time, while the next ones are compared; where rows differ, are scattered
  (`--where`), have no values or are of a list, they are upserted, which costs InnoDB more than their first INSERT.
  Elasticsearch looks each document up, marks it as deleted, and merges such segments sooner: to write it again costs
  the server more than to write it first, and to read it and leave it out would cost more still, as `_mget` shows, with
  which verify is compared. The medians of these lines are 0.80 to 1.43 from run to run. For Redis and Elasticsearch
  the goal is given up ([decisions.md](decisions.md)); the lines tell how far they are from it. Index tables miss it in
  some rounds, and their medians are 1.00 or more.
- Verify of search documents reads their rows and makes the documents anew, on the core that also waits for `_mget`; the
  figure is 0.68 to 0.96 from run to run.
- During a rebuild each live change is written to both copies, and while Redis keys move, to both names of a key. Before
  it a slow change takes a few milliseconds, so the second write, and a chunk of 1,024 rows (100 in Redis and
  Elasticsearch) or its comparison, is seen at once.
- A rebuild gives way to live changes, so it takes many times as long as a backfill. Redis keys are moved ten entities a
  step beside the pipeline; a view with `{{generation}}` in its template moves nothing. `viewtail rebuild
  --hurry` turns the bargain round.

## Polling, commands, DataStore

{entities}

Where a line of these misses its goal on a machine of two cores:

- Commands: Python, which runs one thread at a time, handles a command and wakes its caller. The server inserts its
  event into three indexes, and checks its JSON twice. The quicker the disk syncs, the more does one command a
  transaction, and the less is there to gain. How many a second there are is the machine's speed, as the bare INSERTs
  show that stand beside.
- Pushes: a row is read again before its COMMIT, and written when it has come through. For MySQL and Elasticsearch a
  thread of its own does that. Where all cores are busy, it is the thread that waits. Elasticsearch stops for 30 to
  100 ms now and then, and what is pushed meanwhile waits for that.
- An idle poller looks at each table ten times a second, and twice at its watermarks. A larger `poll_s` makes it
  cheaper.

{peers}

## What is measured

The references:

- **library**: python-mysql-replication. Its rows are counted in seconds of processor time, as ours are. Garbage
  collection is off for both.
- **bare packets**: the same stream, received and stepped over packet by packet. The three take turns in slices of a
  second or so.
- **floor**: python-mysql-replication (BinLogStreamReader, write events) that only counts the same rows.
- **bare**: the same statements or scripts, ready-made, from one connection that does nothing else. Live, it is a
  raw dump connection with a hard-wired parser that writes each row to the store at once (in MySQL by the same
  guarded upsert).
- **bare, to a topic**: a producer that sends the same messages, ready-made, with the tailer's own settings, as many a
  transaction as the tailer takes when it is behind. It is the faster of `produce`, with the version as a header, and
  `produce_batch`, which takes no headers. Live, it is the raw dump connection with a transaction of one message a row.
  It falls behind where a transaction takes longer than 3.3 ms; viewtail puts several rows
  into one then.
- **from the binlog**: the same view of the same rows, with the pipeline that reads the binlog itself.
- **one process**: a projector that reads all partitions, on a store that takes {fake_ms:g} ms a batch and keeps
  nothing. Two projectors read half of the partitions each. Which ones is given to them, without a consumer group.
- **both tables by one connection**: all rows of the table, then all of the index table, with the columns of the view
  and its version, by viewtail's own reader of result sets. It is several times as fast as PyMySQL's.
- **HGETALL in pipelines**: redis-py, 1,000 in a pipeline. **_mget**: elasticsearch-py, 1,000 documents in a request.
- **backfill**: the first one of the same view, in the same round. It begins with an empty place, and a replay does not.
- **without its time**: the rate of the same drain, had the cleaner taken no time. **changes that met none**: those of
  the same live changes that met no step of the cleaner.
- **the tailer**, to polled rows: the pipeline that reads the binlog of the same table, into a view of its own.
- **one a transaction**: a program by hand that does for each command what a worker does: looks whether it was handled,
  reads the newest state, calls the handler, INSERTs the event, COMMITs. One connection, one command after the other.
- **bare INSERT**, of commands: the same events ready-made, {callers_of_many:,} rows a statement and COMMIT, on one
  connection. Of a DataStore: the row of an entity, its body packed before, autocommit.
- **the two bare SELECTs**: the ids of the index, and the rows of the entities, by PyMySQL; bodies stay as they are.
- **parallel_bulk**: elasticsearch.helpers with its defaults (4 threads, 500 documents a request), documents
  ready-made.

The rows and documents:

- A row has a BIGINT key, INT, VARCHAR(64), BIGINT and TIMESTAMP(6). The index table holds the VARCHAR, the hash the
  VARCHAR and the BIGINT, the document three columns.
- The JSON documents have some 40 members in three levels, 100 a transaction. Checksums are on.

How it is measured:

- A round of the drains to MySQL and Redis and of the backfill is {turns} turns, reference and ours one after the
  other. Its rates are of all rows over all the time. Of the other work a round is one turn.
- A drain is timed inside the process, from the moment at which the pipeline begins to read to the last row applied.
  Python's start, connecting to the store and making a topic are not in it. The rows are written before it with
  relaxed flushing, which is set back before anything is timed.
- After each drain the rows are counted, and in MySQL compared with the table.
- To a topic, the tailer's transactions carry its position too. A consumer with isolation.level=read_committed counts
  the messages after each drain. Live, it is a plain consumer of confluent-kafka that polls; the time is the one at
  which it has the message.
- From a topic, all rows are published before; the clock starts when each partition's pipeline starts to read.
- The tailer's memory is measured while a transaction of {full_rows:,} rows is published: the broker is stopped with
  SIGSTOP until the process's memory has been the same for {still_s:g} s, and goes on afterwards.
- Verify takes what `viewtail verify --json` says that it took: with its watermarks, without Python's start. A replay by
  mark and the backfill are timed alike: from the moment at which the view's state is `filling` to `filled`.
- During a rebuild, before it and behind it, when the view has one copy again, 300 single-row transactions a second are
  committed, and looked for as live ones are. The machine's speed drifts within a minute, so rebuilds are short:
  {rebuilds_a_round} a round. The p99 is that of each 3 s, and the median of these; the slowest change is one of all.
  Beside that a client reads random rows by key, one each millisecond; a read that does not give the row's value has
  failed. The swap whose longest read has a goal is that of `rebuild --rollback`, which does nothing else; the other
  longest read is one of the whole rebuild.
- Two runs differ by more than the cleaner costs, so its cost is measured within one: the worker notes when each step of
  the cleaner began and ended, servers' answers included. A live change met a step that ran between its COMMIT and the
  moment at which it was seen. The reference leaves out those, and those of the {lingers_ms:.0f} ms after a step. What a
  step leaves behind for longer is on both sides, and not seen. Slow changes meet more steps, which counts against the
  cleaner. It rests most of the time while changes come: a whole round would
  take hours, so what is met is the beginning of one, and looks at what changed a moment ago. {warm_up_s:.0f} s come
  before the first round, as Java is slow at first, and a process's first {warm_s:.0f} s do not count.
- While a pipeline drains, the cleaner notes the keys that change, and does nothing else. The reference is what the rate
  would be without the time of that, and of any step.
- The cleaner's share of a core is the processor time of the pipeline's process while nothing changes, less that of one
  without a cleaner. It begins its next round at once (`cleaner.rest_s = 0`); by default it rests for five minutes.
- A row is damaged with the store's own commands, under its version, right after it was written.
- A drain by polling begins before the first id. Both views of the polled table are compared with it after each drain.
  The transaction that is open meanwhile has written a row before all others, and is rolled back. The share of a core of
  an idle poller is the whole process's, with its lease and its reports, without a cleaner.
- Commands are sent from one process by coroutines, each of which waits for its answer; the worker is in that process. A
  handler adds a number to a state of a few members. The server syncs its redo log and its binlog at each COMMIT
  (`innodb_flush_log_at_trx_commit=1`, `sync_binlog=1`); the bench looks that it is so. To {many:,} entities
  {callers_of_many:,} callers send commands at random. Each measurement begins with one event an entity, and its first
  1.5 seconds do not count.
- The table has one view, in the store that is measured, and three rounds before the first do not count.
- A push is timed from the moment at which the caller of a command has its answer, at 300 commands a second, until
  another process sees the row. The pipelines look every 10 s meanwhile. The store's own write is an HSET, the guarded
  upsert of an index table, or the PUT of a document, at the same rate, from the moment at which it is sent until such a
  process sees it; PUTs go over {writers} connections, since one is not enough for the rate.
- Puts and bare INSERTs alternate one by one, and so do get_all and bare SELECTs. An entity has some 400 bytes of JSON.
  Its indexes are looked at, at 300 puts a second, from the end of `put` until both of two indexes have it.
- Live, the 60 s are as many slices as rounds, the bare loop and ours by turns. A second thread looks for each row
  by key, every 0.2 ms. In Elasticsearch that is a get; a search sees a row only after the index's refresh interval,
  1 s by default.
"""


def page(written: str, measured: Mapping[str, str]) -> str:
    """The page: what was measured now, and beside it the sections that are written already."""
    sections = {
        name: _between(name, measured.get(name) or _section(written, name))
        for name in (BINLOG, TOPICS, OPERATORS, REBUILT, CLEANER, ENTITIES, PEERS)
    }
    return TEXT.format(
        **sections,
        turns=TURNS,
        full_rows=FULL_ROWS,
        still_s=STILL_S,
        lingers_ms=LINGERS_S * 1000,
        warm_up_s=WARM_UP_S,
        warm_s=live.WARM_S,
        rebuilds_a_round=REBUILDS,
        writers=WRITERS["elasticsearch"],
        fake_ms=FAKE_BATCH_S * 1000,
        many=MANY,
        callers_of_many=CALLERS_OF_MANY,
    )


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
