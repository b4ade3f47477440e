"""A server that goes away between two questions is awaited like one that does not answer at all."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pymysql
import pytest

from tests.support.authority import DAY, Authority
from viewtail.changes.errors import SourceUnavailableError, StoreError
from viewtail.composition import deploy
from viewtail.servers.sessions import MySQLAddress, asking, login_error, open_session, session_error
from viewtail.settings import load

ADDRESS = MySQLAddress(host="db", port=3307, user="me", password="cAnArY")
LOST = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


def opened(monkeypatch: pytest.MonkeyPatch, error: Exception) -> MagicMock:
    """A connection whose every question fails."""
    connection = MagicMock()
    connection.cursor.return_value.__enter__.return_value.execute.side_effect = error
    connection.commit.side_effect = error
    monkeypatch.setattr("viewtail.servers.sessions.pymysql.connect", lambda **_: connection)
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


COLLATION = pymysql.err.OperationalError(1253, "COLLATION 'utf8mb4_bin' is not valid for CHARACTER SET 'latin1'")


@pytest.fixture
def over_tls(tmp_path: Path) -> MySQLAddress:
    """With a client certificate that has expired."""
    Authority("ours").write(tmp_path / "expired", subject="app", valid=-DAY)
    return replace(ADDRESS, tls=ssl.create_default_context(), certificate=tmp_path / "expired" / "cert.pem")


def test_an_error_in_a_session_is_none_of_tls_whatever_words_it_has(over_tls: MySQLAddress) -> None:
    for error in (COLLATION, LOST, pymysql.err.InterfaceError(0, "the connection is closed")):
        for address in (ADDRESS, over_tls):
            found = session_error(error, address, "source")
            assert isinstance(found, SourceUnavailableError) and "TLS" not in str(found), found
    # A login ends so where the server does not like the certificate and its alert is lost.
    assert "expired on" in str(login_error(LOST, over_tls, "source"))


def test_what_a_server_refuses_at_login_is_none_of_tls_either(over_tls: MySQLAddress) -> None:
    local = replace(ADDRESS, host="127.0.0.1")  # where no TLS is spoken
    lost = pymysql.err.OperationalError(2013, "CA could not be verified, unknown CA")
    for error, address in ((COLLATION, over_tls), (lost, local)):
        found = login_error(error, address, "store")
        assert not isinstance(found, StoreError) and "TLS" not in str(found), found


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--skip-grant-tables", "Start that server without --skip-grant-tables"),
        ("--secure-file-priv", "Start that server without --secure-file-priv"),
        ("--super-read-only", "SET GLOBAL super_read_only = OFF"),
    ],
)
def test_a_server_whose_option_forbids_a_statement_is_told_with_the_option(option: str, says: str) -> None:
    said = f"The MySQL server is running with the {option} option so it cannot execute this statement"
    for role in ("source", "store"):
        found = str(session_error(pymysql.err.OperationalError(1290, said), ADDRESS, role))
        assert says in found and "does not answer" not in found and "is the server up" not in found


def test_a_server_that_refuses_a_statement_is_not_told_as_one_that_does_not_answer() -> None:
    found = str(session_error(COLLATION, ADDRESS, "store"))
    assert "refuses: 1253" in found and "does not answer" not in found


def test_a_mistake_of_viewtails_in_a_login_is_not_told_as_a_server_of_another_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("viewtail.servers.sessions.connection_arguments", lambda _: {"prot": 1})
    with pytest.raises(TypeError, match="prot"):
        open_session(ADDRESS, role="source")
    monkeypatch.setattr("viewtail.servers.sessions.connection_arguments", lambda _: {"connect_timeout": -1})
    with pytest.raises(ValueError, match="connect_timeout"):
        open_session(ADDRESS, role="source")
