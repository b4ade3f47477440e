"""Search indices, read raw over HTTP. Nothing of viewtail is imported, as in world.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from stack import Server


@dataclass(frozen=True, slots=True)
class Indices:
    """The search views of a node, by name."""

    server: Server

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The parsed answer; OSError where there is none, or it is no good one."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.server.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except HTTPException as error:  # the node was killed in the midst of its answer
            raise ConnectionError(str(error)) from error

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self.ask("DELETE", f"/viewtail-{name}")
            except HTTPError as error:
                if error.code != 404:
                    raise

    def drop_all(self) -> None:
        """All that viewtail made."""
        self.drop(quote(name.removeprefix("viewtail-"), safe="") for name in self.ask("GET", "/viewtail-*"))

    def contents(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """By view and id: the document, as a reader finds it. At most 10,000 a view."""
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            self.ask("POST", f"/viewtail-{name}/_refresh")
            hits = self.ask("GET", f"/{name}/_search?size=10000")["hits"]["hits"]
            found[f"elasticsearch:{name}"] = {hit["_id"]: hit["_source"] for hit in hits}
        return found

    def stored(self, name: str, ids: Sequence[str]) -> list[Any]:
        """What the index holds of these, tombstones too, with versions."""
        found: list[Any] = self.ask("POST", f"/viewtail-{name}/_mget", {"ids": list(ids)})["docs"]
        return found
