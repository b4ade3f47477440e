"""What `viewtail check` says of the server of viewtail's own tables."""

from __future__ import annotations

import pytest

from projectors.stores.index_tables.checks import checks
from stack import Server
from tests.support.asking import ask
from viewtail.servers.sessions import MySQLAddress


@pytest.mark.parametrize(
    "kind", [pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def test_a_server_that_may_take_back_commits_is_warned_of_with_what_a_topic_then_lacks(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    name = "innodb_flush_log_at_trx_commit"
    assert not [finding for finding in checks(address, "viewtail", has_views=False) if finding.what == name]
    ask(server, f"SET GLOBAL {name} = 2")
    try:
        (finding,) = [finding for finding in checks(address, "viewtail", has_views=False) if finding.what == name]
    finally:
        ask(server, f"SET GLOBAL {name} = 1")
    assert "changes are applied again" in finding.why
    assert "A topic of documents is filled again where a fan-out was taken back" in finding.why
