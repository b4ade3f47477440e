"""Settings of a polled source: [source] with mode = "poll"."""

from __future__ import annotations

from pydantic import Field

from viewtail.servers.login import MySQLUrl, Server


class PollSettings(Server):
    """The MySQL server whose tables are polled."""

    url: MySQLUrl | None = Field(None, description="mysql://USER:PASSWORD@HOST:PORT[/SCHEMA] of the server")
    poll_s: float = Field(0.1, ge=0.005, le=60, description='mode = "poll" only: seconds between two looks at a table')
    poll_wait_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description='mode = "poll" only, where the server does not say who may still bring a row: how long the longest '
        "transaction takes, at most. A row of one that takes longer is MISSED",
    )
