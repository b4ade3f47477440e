"""What a pipeline's process says of itself."""

from __future__ import annotations

import time

from viewtail.reports import TELL_PREPARED_AFTER_S, _held_back


def test_transactions_that_stay_prepared_are_told_after_a_while() -> None:
    """Not at once: where they are used they come and go, and each report is a row in the binlog."""
    now_us = int(time.time() * 1e6)
    assert _held_back(0, 0) is None
    assert _held_back(3, now_us) is None
    said = _held_back(3, now_us - int((TELL_PREPARED_AFTER_S + 1) * 1e6))
    assert said is not None and said.startswith("prepared: 3 XA transactions") and "XA ROLLBACK" in said
