"""Commands from eight processes that are killed all the time: each takes effect once, and keeps its first answer."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stack.mysql
from stack import Server
from tests.support import slices
from tests.support.asking import ask
from tests.support.command_sender import ENTITIES, accounts, command, move, send
from viewtail.entities import Refusal

COUNT = int(os.environ.get("VIEWTAIL_TEST_COMMANDS", "1500"))
PROCESSES = 8
SEED = slices.seeds(1, "VIEWTAIL_TEST_COMMAND_SEEDS")[0]

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It is killed too."""
    found = stack.mysql.start(tmp_path_factory.mktemp("commands"))
    yield found
    found.kill()


class Senders:
    """Processes that send commands into files, and are killed and started again."""

    def __init__(self, folder: Path, server: Server, chance: random.Random) -> None:
        self.folder, self.server, self._chance = folder, server, chance
        self._count = 0
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._count += 1
        arguments = [str(self.server.port), str(self._chance.randrange(1 << 30)), str(COUNT)]
        with (self.folder / f"{self._count}.jsonl").open("wb") as out, (self.folder / "errors").open("ab") as errors:
            self._running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.command_sender", *arguments], stdout=out, stderr=errors
                )
            )

    def kill_one(self) -> None:
        one = self._running.pop(self._chance.randrange(len(self._running)))
        one.kill()
        one.wait()

    def end(self) -> None:
        while self._running:
            self.kill_one()

    def answers(self) -> list[dict[str, Any]]:
        """Whole lines: the last one of a killed process may be cut."""
        lines = [line for path in self.folder.glob("*.jsonl") for line in path.read_text().split("\n")[:-1]]
        return [json.loads(line) for line in lines]


@pytest.mark.timeout(300 + COUNT // 20)
@pytest.mark.parametrize("seed", [SEED])
def test_each_command_takes_effect_once_and_keeps_its_first_answer(server: Server, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    accounts(server.port).create()
    senders = Senders(tmp_path, server, chance)
    for _ in range(PROCESSES):
        senders.start()
    try:
        deadline, kills = time.monotonic() + 240 + COUNT / 20, 0
        while len({one["number"] for one in senders.answers()}) < COUNT * 0.95 or kills < 8:
            assert time.monotonic() < deadline, (tmp_path / "errors").read_text()[-2000:]
            time.sleep(chance.uniform(1, 3))
            senders.kill_one()
            senders.start()
            kills += 1
            if kills == 4:
                server.kill()
                server.start()
    finally:
        senders.end()
    last: list[dict[str, Any]] = []
    with accounts(server.port).worker() as worker:
        for first in range(0, COUNT, 5_000):  # more may not wait at once
            send(worker, list(range(first, min(COUNT, first + 5_000))), last.append)
    answers = [*senders.answers(), *last]
    assert [one for one in answers if "error" in one and "StoreUnavailable" not in one["error"]] == []
    check(server, answers)


def check(server: Server, answers: list[dict[str, Any]]) -> None:
    """Against a model that knows nothing of the library."""
    committed: dict[int, tuple[int, int]] = {}
    for one in answers:
        if "version" in one:
            found = one["version"], one["balance"]
            assert committed.setdefault(one["number"], found) == found, "another answer than the first"
    events = ask(
        server,
        "SELECT entity_id, version, command_id, JSON_EXTRACT(response, '$.balance'), "
        "JSON_EXTRACT(state, '$.balance') FROM commands.account ORDER BY entity_id, version",
    )
    seen: set[str] = set()
    by_entity: dict[str, list[tuple[Any, ...]]] = {f"e{number}": [] for number in range(ENTITIES)}
    for event in events:
        by_entity[event[0]].append(event)
    for entity, of_one in by_entity.items():
        assert [version for _, version, *_ in of_one] == list(range(1, len(of_one) + 1)), entity
        state: Any = None
        for _, version, command_id, response, stored in of_one:
            assert command_id not in seen, "it took effect twice"
            seen.add(command_id)
            number = int(command_id[1:])
            _, state = move(state, command(number).request)
            assert int(response) == int(stored) == state["balance"]
            assert committed.get(number, (version, state["balance"])) == (version, state["balance"])
    assert {f"c{number}" for number in committed} <= seen, "an answer without its event"
    refused = [one["number"] for one in answers[-COUNT:] if "refused" in one]
    assert seen.isdisjoint(f"c{number}" for number in refused), "a committed command was refused"
    assert len(seen) + len(refused) == COUNT
    with pytest.raises(Refusal):
        move({"balance": 5}, {"amount": -6})
