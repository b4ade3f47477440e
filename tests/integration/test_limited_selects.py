"""SELECTs of a session with a time limit: the server ends those that take longer, and nothing goes on for nobody."""

from __future__ import annotations

from contextlib import closing

import pymysql
import pytest

from projectors.catalog import Catalog
from stack import Server
from viewtail.servers.sessions import took_too_long, value_of
from viewtail.settings import load


@pytest.mark.parametrize("kind", ["mysql_server", "mariadb_server"])
def test_the_server_ends_a_select_that_takes_longer_than_its_session_allows(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    catalog = Catalog(servers=load(None, {"VIEWTAIL_SOURCE__URL": server.url}).servers())
    with closing(catalog.servers.open_limited(0.2)) as connection:
        assert value_of(connection, "SELECT 1") == 1
        with pytest.raises(pymysql.err.MySQLError) as ended:
            value_of(connection, "SELECT COUNT(*) FROM (SELECT 1 AS n UNION SELECT 2) t WHERE n + SLEEP(20) > 5")
        assert took_too_long(ended.value)
        assert value_of(connection, "SELECT 2") == 2
