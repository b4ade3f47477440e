"""The columns of views of all columns, which are kept as a text: read again they are the same, and can be compared."""

from __future__ import annotations

import pytest

from offsets.views import _columns_from, _columns_text
from viewtail.changes.tables import Column, Kind

PLAIN = Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False)
LABELLED = Column(name="size", kind=Kind.ENUM, declared="enum('s','m')", is_nullable=True, labels=("s", "m"))
OF_ROWS = Column(name="lines", kind=Kind.JSON, declared="json", is_nullable=False, fields=(PLAIN, LABELLED))
NESTED = Column(name="orders", kind=Kind.JSON, declared="json", is_nullable=False, fields=(PLAIN, OF_ROWS))


@pytest.mark.parametrize("columns", [[PLAIN], [PLAIN, LABELLED], [OF_ROWS], [PLAIN, NESTED]])
def test_columns_that_were_kept_are_read_as_they_were(columns: list[Column]) -> None:
    kept = _columns_from(_columns_text(columns))
    assert kept == columns
    assert dict.fromkeys(kept) == dict.fromkeys(columns)  # a column is a key where forms of a table are told apart
