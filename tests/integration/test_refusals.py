"""What a server says of a statement that it does not do, and whether it takes writes at all."""

from __future__ import annotations

import pytest

from stack import Server
from tests.support.asking import ask
from viewtail.changes.errors import StoreUnavailableError, ViewtailError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, asking, value_of


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


def address(server: Server) -> MySQLAddress:
    return MySQLAddress(host=server.host, port=server.port, user="root")


def told(server: Server, statement: str) -> ViewtailError:
    with pytest.raises(ViewtailError) as caught, asking(address(server), role="store") as session:
        value_of(session, statement)
    return caught.value


def test_a_statement_that_is_refused_is_told_as_that_and_not_as_tls_or_silence(server: Server) -> None:
    error = told(server, "SELECT _latin1'a' COLLATE utf8mb4_bin")
    assert isinstance(error, StoreUnavailableError) and "refuses: 1253 COLLATION" in str(error)
    assert "TLS" not in str(error) and "is the server up" not in str(error)


@pytest.mark.mysql
def test_a_statement_that_an_option_of_the_server_forbids_is_told_with_the_option(mysql_server: Server) -> None:
    said = str(told(mysql_server, "SELECT 1 INTO OUTFILE '/no/such/folder/x'"))
    assert "refuses: 1290" in said and "Start that server without --secure-file-priv" in said
    assert "is the server up" not in said


@pytest.mark.mariadb
def test_a_mariadb_that_takes_no_writes_is_known_whether_it_says_so_by_a_number_or_by_a_word(
    mariadb_server: Server,
) -> None:
    with asking(address(mariadb_server), role="source") as session:
        asked = facts_of(session).read_only

        def found(value: str) -> object:
            return value_of(session, asked.replace("@@GLOBAL.read_only", value))

        for value in ("0", "'0'", "'OFF'"):
            assert found(value) is None, value
        for value in ("1", "'1'", "'ON'", "'NO_LOCK'", "'NO_LOCK_NO_ADMIN'"):
            assert found(value) == "read_only", value
        assert value_of(session, asked) is None
        ask(mariadb_server, "SET GLOBAL read_only = ON")
        try:
            assert value_of(session, asked) == "read_only"
        finally:
            ask(mariadb_server, "SET GLOBAL read_only = OFF")
