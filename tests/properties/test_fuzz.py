"""A short run of the fuzzer, and bugs of each kind that it must find in it; the long one is `make fuzz`."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import pytest
import structlog

from ingest.binlog import column_forms, common_transactions, dispatcher, payload, row_source, table_map
from ingest.binlog.compressed_transactions import CompressedTransactions
from ingest.binlog.control_events import ControlEvents
from ingest.binlog.mariadb_events import MariaDBEvents
from ingest.binlog.open_transaction import OpenTransaction
from ingest.binlog.place import Place
from ingest.binlog.row_events import RowEvents
from ingest.binlog.statement_events import StatementEvents
from ingest.binlog.walk import Walk
from stack import Server
from tests.support import fuzz as fuzzer
from tests.support.fuzz import Corpus, fuzz, long_walk
from tests.support.fuzz_corpus import of_mariadb, of_mysql

CI_INPUTS = 15_000  # within these each bug must be found
SOUND_INPUTS = 6_000
SEED = 2


@pytest.fixture(autouse=True)
def _without_a_log(logs_for_the_report: None) -> None:
    """It would take most of the time."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


@pytest.fixture(scope="module")
def corpora(mysql_server: Server, mariadb_server: Server) -> list[Corpus]:
    return [of_mysql(mysql_server), of_mariadb(mariadb_server)]


def test_damaged_events_end_in_an_error_of_ours_or_in_rows(corpora: list[Corpus]) -> None:
    told: list[str] = []
    assert list(fuzz(corpora, SEED, range(SOUND_INPUTS), told.append)) == []
    assert " 0 refused" not in told[-1] and " 0 row events" not in told[-1]
    # The quick walk is reached, and left again.
    assert fuzzer.Walk.transactions_taken > SOUND_INPUTS / 5 and fuzzer.Walk.runs_left > SOUND_INPUTS / 10


@pytest.mark.parametrize("at", [0, 1], ids=["mysql", "mariadb"])
def test_a_walk_that_goes_on_and_on_keeps_nothing(corpora: list[Corpus], at: int) -> None:
    assert long_walk(corpora[at], 60) < 1


# -- bugs that it must find -------------------------------------------------------------------------------------------

TAKE = (common_transactions.CommonTransactions, "_run")
WALK = (dispatcher.Dispatcher, "_walk_events")
BUGS: dict[str, tuple[Any, str, str, str]] = {
    "an exception of a table map": (table_map, "parse", "UnicodeDecodeError, struct.error, ValueError", "struct.error"),
    "an exception of the quick walk": (
        *TAKE, "except (UnicodeDecodeError, TableUnreadableError):", "except TableUnreadableError:",
    ),
    "an exception of MariaDB's events": (
        MariaDBEvents, "decompressed", "(MalformedCompressionError, IndexError)", "IndexError",
    ),
    "a hang": (CompressedTransactions, "walk_events", "if size < _HEAD_BYTES or q", "if q"),
    "a wrong value": (column_forms, "_time_text", 'sign, number = ("-", -number)', 'sign, number = ("", -number)'),
    "wrong NULLs": (
        row_source.Writer, "_one_column", 'f"nulls & {1 << index}"', 'f"nulls & {2 << index}"',
    ),
    "rows that are left out": (RowEvents, "_sort_out", "range(0, len(rows), step)", "range(step, len(rows), step)"),
    "a wrong version of the quick walk": (*TAKE, "base | rows_end >> 4", "base | start >> 4"),
    "GTIDs that the quick walk loses": (*TAKE, "gtids += this_gtid", "this_gtid += b''"),
    "rows of a transaction without its end": (*WALK, "if held:", "if False:"),
    "rows without a position": (Place, "has_wrapped", "log_pos == 0 and kind in SILENT", "not log_pos"),
    "an unknown event that is skipped": (
        ControlEvents, "_handle_other", "elif not event.flags & events.IGNORABLE_FLAG:", "elif False:",
    ),
    "an event that is waited for": (*WALK, "if q > filled:", "if q >= filled:"),
    "a checksum that is not looked at": (*WALK, "check(view[p + 5 : q]) != residue", "False"),
    "a checksum that the quick walk does not look at": (
        *TAKE, "check(view[rows_p + 5 : commit_p]) != residue", "False",
    ),
    "much memory for one input": (
        payload.Payload, "whole", "zstandard.frame_content_size(packed) not in (-1, self.size)", "False",
    ),
    "memory that is kept": (
        Walk, "commit", "self.tables.by_id.clear()", "self.tables.by_id.clear(); _ALL.append(bytes(9))"
    ),
}  # fmt: skip


def plant(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Make a function anew with `new` in the place of `old`."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert old in source, f"{name} is no longer as it was: plant the bug elsewhere"
    module = sys.modules[function.__module__]
    scope = {**vars(module), "_ALL": []}
    exec(source.replace(old, new), scope)
    patch.setattr(owner, name, scope[name])
    for user in list(sys.modules.values()):  # where it is imported by name
        if user is not module and getattr(user, name, None) is function:
            patch.setattr(user, name, scope[name])


@pytest.mark.parametrize("bug", BUGS)
def test_the_fuzzer_finds(bug: str, corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *BUGS[bug])
    monkeypatch.setattr(fuzzer, "SLOWEST_S", 0.3)
    inputs = 1_000 if "kept" in bug else CI_INPUTS  # that shows at the end
    fault = next(fuzz(corpora, SEED, range(inputs)), None)
    assert fault is not None
    print(fault)


@pytest.mark.parametrize(
    "bug",
    [
        (OpenTransaction, "set_savepoint", "self._savepoints.clear()", "pass"),
        (
            StatementEvents,
            "_change_tables",
            "followed = statements",
            "_ALL.append(bytes(9))\n    followed = statements",
        ),
    ],
    ids=["savepoints", "statements"],
)
def test_a_long_walk_shows_what_it_keeps(
    bug: tuple[Any, str, str, str], corpora: list[Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, *bug)
    assert long_walk(corpora[1], 30) > 1
