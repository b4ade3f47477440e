"""docs/events.md is what happens on real servers."""

from __future__ import annotations

from pathlib import Path

import stack.mariadb
import stack.mysql
from tests.support.event_matrix import matrix

PAGE = Path(__file__).resolve().parents[2] / "docs/events.md"


def test_each_type_of_event_is_read_as_the_page_says(tmp_path: Path) -> None:
    mysql = stack.mysql.start(tmp_path / "mysql")  # ones that may be restarted
    mariadb = stack.mariadb.start(tmp_path / "mariadb")
    try:
        assert matrix({"MySQL 9.7": mysql, "MariaDB 10.11": mariadb}) == PAGE.read_text(), (
            "run: python -m tests.support.event_matrix > docs/events.md"
        )
    finally:
        mysql.kill()
        mariadb.kill()
