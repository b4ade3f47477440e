"""A run whose source's address can be led to any server: for tests of failover."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack import Server
from tests.support.asking import ask
from tests.support.proxy import Proxy
from tests.support.running import Run, running, wait_for

DATABASE = "viewtail_failover"


class Following:
    """The run, the address, and what the view of one column of one table shows; it is kept on another server."""

    def __init__(self, proxy: Proxy, run: Run, store: Server, table: str, column: str) -> None:
        self.proxy, self.run = proxy, run
        self._store, self._table, self._column = store, table, column

    def shown(self) -> dict[int, str]:
        column = self._column
        return dict(self._kept(f"SELECT id, {column} FROM {DATABASE}.ix WHERE {column} IS NOT NULL"))  # type: ignore[arg-type]

    def equals(self, server: Server) -> bool:
        return self.shown() == dict(ask(server, f"SELECT id, {self._column} FROM {self._table}"))  # type: ignore[arg-type]

    def epoch(self) -> int:
        return int(self._kept(f"SELECT epoch FROM {DATABASE}.source")[0][0])

    def error(self) -> str:
        """Why the pipeline is halted; '' where it is not."""
        (pipeline,) = json.loads(self.run.command("status", "--json").stdout)["pipelines"]
        return str(pipeline["error"]) if pipeline["state"] == "halted" else ""

    def is_filled(self) -> bool:
        """Until then a row may come from the fill, whatever the stream does."""
        return self._kept(f"SELECT state FROM {DATABASE}.view") == [("filled",)]

    def _kept(self, query: str) -> list[tuple[Any, ...]]:
        return ask(self._store, query)


@contextmanager
def following(first: Server, store: Server, folder: Path, table: str, column: str) -> Iterator[Following]:
    """A run that follows the first server, with its view filled."""
    ask(store, f"DROP DATABASE IF EXISTS {DATABASE}")
    folder.mkdir(exist_ok=True)
    views = (
        f'from viewtail import Entity, IndexTable\nviews = [IndexTable("ix", Entity("{table}"), value="{column}")]\n'
    )
    with Proxy(first.port) as proxy:
        environment = {
            "VIEWTAIL_SOURCE__URL": f"mysql://root@127.0.0.1:{proxy.port}",
            "VIEWTAIL_SOURCE__HEARTBEAT_S": "0.5",
            "VIEWTAIL_MYSQL__URL": f"{store.url}/{DATABASE}",
            "VIEWTAIL_METRICS__PORT": "0",
        }
        with running(folder, views, environment) as run:
            made = Following(proxy, run, store, table, column)
            wait_for("the view is filled", lambda: made.equals(first) and made.is_filled())
            yield made
