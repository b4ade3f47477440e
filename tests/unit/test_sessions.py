"""A server that goes away between two questions is awaited like one that does not answer at all."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pymysql
import pytest

from changes.errors import SourceUnavailableError, StoreError
from servers.sessions import MySQLAddress, asking
from viewtail.composition import deploy
from viewtail.settings import load

ADDRESS = MySQLAddress(host="db", port=3307, user="me", password="cAnArY")
LOST = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


def opened(monkeypatch: pytest.MonkeyPatch, error: Exception) -> MagicMock:
    """A connection whose every question fails."""
    connection = MagicMock()
    connection.cursor.return_value.__enter__.return_value.execute.side_effect = error
    connection.commit.side_effect = error
    monkeypatch.setattr("servers.sessions.pymysql.connect", lambda **_: connection)
    return connection


@pytest.mark.parametrize(
    ("error", "kind"), [(LOST, SourceUnavailableError), (pymysql.err.OperationalError(1142, "denied"), StoreError)]
)
def test_an_error_in_a_session_is_told_with_its_server_and_the_session_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    connection = opened(monkeypatch, error)
    with pytest.raises(kind, match="db:3307") as caught, asking(ADDRESS, role="source") as session:
        session.commit()
    assert "cAnArY" not in str(caught.value)
    connection.close.assert_called_once_with()


def test_a_server_that_goes_away_behind_the_last_question_of_a_start_is_not_asked_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened(monkeypatch, LOST)
    variables: Any = {"VIEWTAIL_SOURCE__URL": "mysql://db"}
    assert deploy(load(None, variables), []).views == []
