"""Commands are sent again and again while their events move out and back, and whoever moves them is killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from projectors import failpoints
from stack import Server
from tests.faults.test_killed_commands import check
from tests.support import slices
from tests.support.asking import ask
from tests.support.command_sender import accounts, send
from tests.support.running import Run, addresses, death_at

COUNT = 600
ROUNDS = 14
SEED = slices.seeds(1, "VIEWTAIL_TEST_ARCHIVE_SEEDS")[0]

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


@pytest.mark.parametrize("way", ["table", "files"])
def test_a_command_takes_effect_once_while_its_event_is_archived_and_restored(
    mysql_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    chance = random.Random(SEED)
    for database in ("commands", "viewtail"):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql_server, "CREATE DATABASE viewtail")
    accounts(mysql_server.port).create()
    run = Run(tmp_path, "views = []", addresses(mysql_server))
    steps = [*failpoints.ARCHIVE_STEPS, *(failpoints.ARCHIVE_FILE_STEPS if way == "files" else ())]
    into = ["--into-files", str(tmp_path)] if way == "files" else []
    senders = []
    for at in range(3):
        arguments = [str(mysql_server.port), str(chance.randrange(1 << 30)), str(COUNT)]
        with (tmp_path / f"{at}.jsonl").open("wb") as out, (tmp_path / "errors").open("ab") as errors:
            senders.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.command_sender", *arguments], stdout=out, stderr=errors
                )
            )
    moved = 0
    try:
        for number in range(ROUNDS):
            is_back = number % 3 == 2
            command = ["restore", "commands.account", "--all", "--yes"]
            if not is_back:
                command = ["archive", "commands.account", "--older-than", "0s", "--yes", *into]
            death = death_at(chance.choice(list(failpoints.RESTORE_STEPS) if is_back else steps), chance, latest=2)
            killed = run.background(*command, VIEWTAIL_FAILPOINT=death if number % 2 else "")
            time.sleep(chance.uniform(0, 0.5))
            out, told = killed.communicate(60)
            assert killed.returncode in (0, -9), (out, told)
            ((count,),) = ask(mysql_server, "SELECT COUNT(*) FROM commands.account_archive") if number else [(0,)]
            moved += count
        assert {one.poll() for one in senders} == {None}, (tmp_path / "errors").read_text()[-2000:]
    finally:
        for one in senders:
            one.kill()
            one.wait()
    assert moved, "nothing was archived"
    for command in (["archive", "commands.account", "--older-than", "0s", "--yes", *into],):
        done = run.command(*command)
        assert done.returncode == 0, done.stderr
    assert len(ask(mysql_server, "SELECT 1 FROM commands.account")) <= 20
    last: list[dict[str, Any]] = []
    with accounts(mysql_server.port).worker() as worker:
        send(worker, list(range(COUNT)), last.append)
    done = run.command("restore", "commands.account", "--all", "--yes")
    assert done.returncode == 0, done.stderr
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().split("\n")[:-1]]
    answers = [*map(json.loads, lines), *last]
    assert [one for one in answers if "error" in one] == []
    monkeypatch.setattr("tests.faults.test_killed_commands.COUNT", COUNT)
    check(mysql_server, answers)
