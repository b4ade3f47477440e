"""Views with push=True show what a worker committed at once, with the pipelines beside, stopped, or away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import Server
from tests.support.pushed import Pushed, pushed
from tests.support.running import wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def bank(
    mysql_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pushed]:
    with pushed(mysql_server, redis_server, tmp_path, monkeypatch) as found:
        yield found


def test_what_is_committed_is_shown_while_no_pipeline_runs(bank: Pushed) -> None:
    assert bank.run.stop() == 0
    with bank.accounts.worker() as worker:
        bank.send(worker, "ada", 5)
        bank.wait_until_shown("ada", 5, 1)
        bank.send(worker, "ada", 3)
        bank.send(worker, "first", 1)
        bank.wait_until_shown("ada", 8, 2)
        bank.wait_until_shown("first", 8, 2)
        assert bank.unpushed("ada") is None
        worker.submit(bank.command("ada", name="close")).result(20)
        wait_for("it left", lambda: bank.indexed("ada") == (None, 3) and bank.document("ada") is None)
    pushed_of = {entity: bank.everything(entity) for entity in ("ada", "first")}
    bank.run.start()
    wait_for("the pipeline came", lambda: bank.unpushed("ada") == 3)
    for command in (("wait", "mysql:account_by_balance"), ("wait", "redis:account"), ("verify",), ("status",)):
        done = bank.run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert {entity: bank.everything(entity) for entity in pushed_of} == pushed_of
