"""A short run of the fuzzer; the long one is `make fuzz`."""

from __future__ import annotations

import pytest

from ingest.binlog import rare_events
from stack import Server
from tests.support import fuzz as fuzzer
from tests.support.fuzz import Corpus, corpus_of, fuzz


@pytest.fixture(scope="module")
def corpus(mysql_server: Server) -> Corpus:
    return corpus_of(mysql_server)


@pytest.mark.timeout(180)
def test_damaged_events_end_in_an_error_of_ours_or_in_rows(corpus: Corpus) -> None:
    told: list[str] = []
    assert fuzz(corpus, 2, range(15_000), told.append) == []
    assert " 0 refused" not in told[-1] and " 0 rows" not in told[-1]


def test_the_fuzzer_finds_a_parser_that_fails_in_another_way(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untagged(body: bytes) -> bytearray:
        return bytearray([len(body), {}[body[0]]])

    monkeypatch.setattr(rare_events, "untagged", untagged)
    (fault, *_) = fuzz(corpus, 2, range(1_000), lambda _: None)
    assert "KeyError" in fault


def test_the_fuzzer_ends_a_parser_that_hangs_and_sees_one_that_takes_memory(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def untagged(body: bytes) -> bytearray:
        kept.append(b"x" * (8 << 20))
        while True:
            pass

    monkeypatch.setattr(rare_events, "untagged", untagged)
    monkeypatch.setattr(fuzzer, "SLOWEST_S", 0.05)
    faults = fuzz(corpus, 2, range(300), lambda _: None)
    assert "took more than" in " ".join(faults)
    assert "memory grew" in " ".join(faults)
