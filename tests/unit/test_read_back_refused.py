"""Views whose rows are read again at a change: refused where no source says when a SELECT shows it."""

from __future__ import annotations

import pytest

from ingest import SourceKind
from ingest.binlog.kind import BinlogKind
from ingest.kafka.kind import KafkaKind
from ingest.poll.kind import PollKind
from projectors.catalog import check_source
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity, View
from viewtail.changes.errors import DeclarationError

PERSON = Entity("jog.cell", key="row_key", columns_by="column_name", newest="ref_key", body="body", codec="json")
VIEWS: list[View] = [RedisJson("person", PERSON, document=lambda row: row["users"])]


@pytest.mark.parametrize("kind", [PollKind(), KafkaKind()])
def test_a_source_that_does_not_say_when_a_change_is_shown_is_refused(kind: SourceKind) -> None:
    with pytest.raises(DeclarationError, match=r"view redis:person: .*only a source that tails the binlog"):
        check_source(kind, VIEWS)
    check_source(kind, [RedisJson("plain", Entity("jog.cell"), fields=["body"])])


def test_the_binlog_of_the_server_says_it() -> None:
    check_source(BinlogKind(), VIEWS)
