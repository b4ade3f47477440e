"""The settings of index tables: [mysql], which is also where viewtail's own tables are."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from servers.addresses import MYSQL
from servers.login import MySQLUrl, Server

ADDRESS = replace(MYSQL, example="mysql://USER:PASSWORD@HOST:3306/viewtail")


class MySQLSettings(Server):
    """The MySQL server of the index tables and of viewtail's own tables."""

    url: MySQLUrl | None = Field(
        None, description="mysql://USER:PASSWORD@HOST:PORT/DATABASE; by default the source, database viewtail"
    )
