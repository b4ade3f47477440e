"""docs/events.md is what happens on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

import stack.mysql
from tests.support.event_matrix import matrix

PAGE = Path(__file__).resolve().parents[2] / "docs/events.md"


@pytest.mark.timeout(180)
def test_each_type_of_event_is_read_as_the_page_says(tmp_path: Path) -> None:
    server = stack.mysql.start(tmp_path / "mysql")  # one that may be restarted
    try:
        assert matrix({"MySQL 9.7": server}) == PAGE.read_text(), (
            "run: python -m tests.support.event_matrix > docs/events.md"
        )
    finally:
        server.stop()
