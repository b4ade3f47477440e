"""Entries are posted, changed and deleted on two shards; every query gives what the entities say."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from examples.screen import heading, line
from examples.stage import played, stage, verified
from stack.server import Server
from viewtail.demo.process import DemoError

USERS = 30
WRITERS = 4
DAYS = ("monday", "tuesday", "wednesday")


def main() -> int:
    """The exit code: 0 when every index equals its entities."""
    return played("friendfeed", _play)


def _play() -> int:
    seconds = float(os.environ.get("FRIENDFEED_LIVE_S", "10"))
    with stage({"db0": "mysql", "db1": "mysql"}, _prepared) as on:
        on.wait_until_well()
        written = _live(seconds)
        _ask(written)
        return verified(on, count=10)  # three on each shard's own entities, two on the other's


def _prepared(servers: Mapping[str, Server]) -> Mapping[str, str]:
    settings = {
        "FRIENDFEED_SHARDS": " ".join(f"{server.url}/friendfeed" for server in servers.values()),
        "VIEWTAIL_VIEWS": "examples.friendfeed.views:datastore",
    }
    os.environ.update(settings)  # the store reads them too
    from examples.friendfeed.views import datastore

    datastore.create()
    return settings


def _live(seconds: float) -> dict[UUID, dict[str, object]]:
    """The entities as their writers left them."""
    heading(f"{WRITERS} writers post, change and delete entries for {seconds:.0f} s")
    found: list[dict[UUID, dict[str, object]]] = [{} for _ in range(WRITERS)]
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(WRITERS) as writers:
        for written in [writers.submit(_write, number, until, found[number]) for number in range(WRITERS)]:
            written.result()
    entities = {entity_id: entity for one in found for entity_id, entity in one.items()}
    line(f"{len(entities):,} entries are there now")
    return entities


def _write(seed: int, until: float, mine: dict[UUID, dict[str, object]]) -> None:
    from examples.friendfeed.views import datastore

    chance = random.Random(seed)
    while time.monotonic() < until:
        what = chance.random()
        if mine and what < 0.15:
            gone = chance.choice(list(mine)[-50:])
            datastore.delete(gone)
            del mine[gone]
            continue
        entity: dict[str, object] = {"user_id": chance.randrange(USERS), "kind": "link", "day": chance.choice(DAYS)}
        entity["link"] = f"https://example.org/{chance.randrange(500)}"
        known = {"id": chance.choice(list(mine)[-50:])} if mine and what < 0.5 else {}
        mine[datastore.put({**known, **entity})] = entity
    datastore.put({"user_id": -1}, wait=True, within_s=60)
    datastore.close()


def _ask(entities: Mapping[UUID, Mapping[str, object]]) -> None:
    from examples.friendfeed.views import by_kind, by_link, by_user, datastore

    heading("Every query, checked against what was written")
    questions: list[tuple[str, object, dict[str, object]]] = [
        *(("by_user", by_user, {"user_id": user}) for user in range(USERS)),
        *(("by_link", by_link, {"link": f"https://example.org/{number}"}) for number in range(500)),
        *(("by_kind", by_kind, {"kind": "link", "day": day}) for day in DAYS),
    ]
    deadline = time.monotonic() + 60
    for name, index, values in questions:
        wanted = sorted(one for one, entity in entities.items() if values.items() <= entity.items())
        while (got := [one["id"] for one in index.get_all(datastore, **values)]) != wanted:  # type: ignore[attr-defined]
            if time.monotonic() > deadline:
                raise DemoError(f"{name} gave {len(got)} entities of {values}, and there are {len(wanted)}")
            time.sleep(0.1)
    line(f"{len(questions)} queries over {len(entities):,} entities: each as the entities say")


if __name__ == "__main__":
    sys.exit(main())
