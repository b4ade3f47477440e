"""The demo as a new user runs it, at a terminal and without one, on fetched servers and on the user's."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka.admin import AdminClient
from elasticsearch import Elasticsearch

from examples import comparing
from stack import Server
from stack.places import CHECKOUT, stack_directory
from tests.support import picture
from tests.support.asking import ask
from tests.support.running import addresses
from viewtail.demo import servers
from viewtail.demo.process import environment

VIEWTAIL = [str(Path(sys.executable).with_name("viewtail"))]
DEMO = [*VIEWTAIL, "demo", "--yes"]
SMALL = ["--without", "elasticsearch", "--without", "kafka"]
ORDERS = [sys.executable, "-m", "examples.orders"]
UNSHATTER = [sys.executable, "-m", "examples.unshatter"]
TWO_VIEWS = "viewtail demo: 2 views, 600 rows: each equals its table"
FOUR_VIEWS = "viewtail demo: 4 views, 1,200 rows: each equals its table"


@pytest.mark.slow
def test_at_a_terminal_a_worker_is_killed_by_a_key_and_the_picture_shows_what_is_seen() -> None:
    session = picture.session(wait_s=0.3)
    text = session.text
    assert session.code == 0, "\n".join(text)
    assert [line for line in text if line][-1].startswith(FOUR_VIEWS)
    assert [line for line in text if "✗ kill -9 " in line] and [line for line in text if "all are right after" in line]
    assert not _left("\n".join(text))

    shown = picture.lines_of(picture.PICTURE.read_text())
    ever = {
        picture.essence("".join(character for character, _ in line)) for frame in session.frames for line in frame.lines
    }
    hint = "docs/images/demo.svg is of an older demo; run: make picture"
    assert {picture.essence(line) for line in text} - shown <= {""}, hint
    assert shown <= ever, hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "at", "count"),
    [
        ([*DEMO, *SMALL], "mysql>", 2),
        (ORDERS, "Real servers", 0),
        (ORDERS, "is starting", 3),
        (UNSHATTER, "ALTER TABLE: ", 1),
    ],
)
def test_ctrl_c_stops_everything_that_was_started(command: list[str], at: str, count: int) -> None:
    process = _start(command)
    assert process.stdout is not None
    addresses = []
    for line in process.stdout:
        if "up in" in line:
            addresses.append(line.split()[1])
        if at in line:
            groups = _groups_of(process.pid)
            folders = {folder for group in groups for folder in _demos_above(Path(f"/proc/{group}/cwd").readlink())}
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)  # as from make; it must not end the cleaning up
            break
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, rest + errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert len(addresses) == count <= len({*groups})
    assert bool(folders) == bool(count)
    assert not [folder for folder in folders if folder.exists()]
    assert not [group for group in {*groups, *_groups_of(process.pid)} if Path(f"/proc/{group}").exists()]


@pytest.mark.slow
def test_what_is_kept_can_be_tried_and_goes_when_it_is_stopped() -> None:
    kept = servers.kept()
    try:
        done = _run([*DEMO, *SMALL, "--keep"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert (
            TWO_VIEWS in done.stdout
            and "viewtail demo --stop" in done.stdout
            and "find city_by_country FR" in done.stdout
        )
        found = _run([*VIEWTAIL, "get", "city", "2988507"], cwd=kept)
        assert found.returncode == 0 and "Paris" in found.stdout, found.stdout + found.stderr
    finally:
        stopped = _run([*VIEWTAIL, "demo", "--stop"])
    assert "stopped and removed" in stopped.stdout and not kept.exists()
    assert "nothing was left running" in _run([*VIEWTAIL, "demo", "--stop"]).stdout


class Others:
    """The servers of a user, with what he has on them."""

    def __init__(self, mysql: Server, redis_server: Server, elasticsearch: Server, kafka: Server) -> None:
        self.mysql, self.redis = mysql, redis.Redis(port=redis_server.port)
        self.elastic = Elasticsearch(elasticsearch.url)
        self.kafka = AdminClient({"bootstrap.servers": f"{kafka.host}:{kafka.port}"})
        self.settings = {**addresses(mysql, redis_server, elasticsearch), "VIEWTAIL_KAFKA__URL": kafka.url}
        ask(mysql, "CREATE DATABASE IF NOT EXISTS demo_shop")
        self.redis.set("city:2988507", "mine")
        self.elastic.indices.create(index="cities")

    def everything(self) -> dict[str, set[str]]:
        """What there is, without what brokers and clusters keep for themselves."""
        databases: list[tuple[Any, ...]] = ask(self.mysql, "SHOW DATABASES")
        topics = self.kafka.list_topics(timeout=10).topics
        return {
            "mysql": {name for (name,) in databases},
            "redis": {key.decode() for key in self.redis.scan_iter()},
            "elasticsearch": {*self.elastic.indices.get(index="*", expand_wildcards="all")},
            "kafka": {name for name in topics if not name.startswith("__")},
        }

    def close(self) -> None:
        self.elastic.indices.delete(index="cities")
        self.elastic.close()
        self.redis.delete("city:2988507")
        self.redis.close()
        for name in ("demo_shop", "viewtail_demo", "viewtail_demo_views"):
            ask(self.mysql, f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def others(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server, kafka_server: Server
) -> Iterator[Others]:
    with closing(Others(mysql_server, redis_server, elasticsearch_server, kafka_server)) as made:
        yield made


@pytest.mark.slow
@pytest.mark.mysql
@pytest.mark.redis
@pytest.mark.elasticsearch
@pytest.mark.kafka
def test_on_servers_of_the_user_everything_else_is_left_and_all_that_was_made_goes(
    others: Others, tmp_path: Path
) -> None:
    before = others.everything()
    ask(others.mysql, "CREATE DATABASE viewtail_demo")  # by a demo that was killed
    ask(others.mysql, "CREATE TABLE viewtail_demo.made_by_viewtail_demo (id INT PRIMARY KEY)")
    (tmp_path / "views.py").write_text("raise AssertionError('the demo has views of its own')\n")
    done = _run(DEMO, cwd=tmp_path, **others.settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert FOUR_VIEWS in done.stdout and "UPDATE viewtail_demo.city" in done.stdout
    after = others.everything()
    assert after.pop("kafka") - before.pop("kafka") <= {"viewtail_positions"}  # another deployment may write there
    assert after == before


@pytest.mark.mysql
def test_a_database_of_the_user_that_is_called_as_the_demos_is_not_touched(mysql_server: Server) -> None:
    ask(mysql_server, "CREATE DATABASE viewtail_demo")
    try:
        ask(mysql_server, "CREATE TABLE viewtail_demo.city (id INT PRIMARY KEY)")
        done = _run(DEMO, **addresses(mysql_server))
        assert done.returncode == 1, done.stdout + done.stderr
        assert "there is a database viewtail_demo already" in done.stderr and "nothing was touched" in done.stderr
        assert "Redis           is not shown: no address is set" in done.stdout
        assert ask(mysql_server, "SHOW TABLES FROM viewtail_demo") == [("city",)]
        kept = _run([*DEMO, "--keep"], **addresses(mysql_server))
        assert kept.returncode == 2 and "--keep is for servers that the demo starts" in kept.stderr
    finally:
        ask(mysql_server, "DROP DATABASE viewtail_demo")


def test_a_view_that_differs_is_named_with_the_keys_that_do() -> None:
    wanted = {"1": {"a": 1}, "2": {"a": 2}, "3": {"a": 3}}
    found = {"1": {"a": 1}, "2": {"a": 9}, "4": {"a": 4}}
    assert comparing.differences(wanted, found) == [
        "3 is in the table and not in the view",
        "4 is in the view and not in the table",
        "2 should be {'a': 2}, is {'a': 9}",
    ]
    assert comparing.differences(wanted, wanted) == []


def _demos_above(place: Path) -> list[Path]:
    return [folder for folder in (place, *place.parents) if folder.name.startswith("demo-")]


def _left(output: str) -> list[Path]:
    """The folders of a demo that are still there."""
    folders = {stack_directory() / name for name in re.findall(r"\bdemo-\d+-\d+", output)}
    assert folders
    return [folder for folder in folders if folder.exists()]


def _run(command: list[str], cwd: Path = CHECKOUT, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(settings),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={
            **environment({}),
            "ORDERS_WEEKS": "1",
            "UNSHATTER_ACCOUNTS": "60",
            "PYTHONUNBUFFERED": "1",
        },
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _groups_of(pid: int) -> list[str]:
    """The process groups that a program started and that end with it: their guards name both."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_text(errors="replace").split("\0"))
    return [line[line.index(str(pid)) + 1] for line in lines if "guard.py" in " ".join(line) and str(pid) in line]
