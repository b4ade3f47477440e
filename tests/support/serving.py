"""`viewtail serve` in a process of its own, over accounts in a real MySQL."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from tests.support.forked import clean_environment
from tests.support.running import wait_for

ENTITIES = '''
import os
import time
from pathlib import Path

from pydantic import BaseModel, Field

from viewtail.entities import EventSourced, Refusal


class Pay(BaseModel):
    amount: int = Field(gt=0)
    why: str = ""


def pay(state, request: Pay):
    """Take an amount."""
    balance = (state or {"balance": 0})["balance"] - request.amount
    return {"balance": balance}, {"balance": balance}


def deposit(state, request):
    """Add an amount, which may be negative.

    A balance never becomes negative.
    """
    amount = request.get("amount")
    if type(amount) is not int:
        raise Refusal("amount is a whole number")
    balance = (state or {"balance": 0})["balance"] + amount
    if balance < 0:
        raise Refusal("not enough money")
    return {"balance": balance}, {"balance": balance}


def note(state, request):
    return request, {"balance": (state or {"balance": 0})["balance"], "note": request}


def fails(state, request):
    raise KeyError(request["secret"])


def waits(state, request):
    Path(request["is_here"]).touch()
    while not Path(request["until"]).exists():
        time.sleep(0.05)
    return "waited", {"balance": 0}


commands = {"deposit": deposit, "note": note, "fails": fails, "waits": waits, "to the last": note, "pay": pay}
if os.environ.get("VIEWTAIL_TEST_TAKES_ALL"):  # for who sends what no handler could expect
    commands = {"note": note, "to the last": note}
entities = [EventSourced("bank.account", commands)]
'''
TABLE = "bank.account"


class Said(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    text: bytes

    @property
    def body(self) -> Any:
        return orjson.loads(self.text)

    @property
    def kind(self) -> str:
        """Of a problem."""
        assert self.headers["content-type"] == "application/problem+json"
        assert set(self.body) == {"type", "title", "status", "detail"} and self.body["status"] == self.status
        return str(self.body["type"]).removeprefix("urn:viewtail:problem:")


class Served:
    """One process, in a folder with entities.py."""

    def __init__(self, folder: Path, mysql_port: int, **environment: str) -> None:
        self.folder = folder
        (folder / "entities.py").write_text(ENTITIES)
        self._environment = {
            **clean_environment(),
            "VIEWTAIL_SOURCE__URL": f"mysql://root@127.0.0.1:{mysql_port}",
            "VIEWTAIL_SERVE__PORT": "0",
            **environment,
        }
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command there, to its end."""
        argv = [sys.executable, "-m", "viewtail.main", *arguments]
        return subprocess.run(argv, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=60)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self, **environment: str) -> None:
        argv, at = [sys.executable, "-m", "viewtail.main", "serve"], {**self._environment, **environment}
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(argv, cwd=self.folder, env=at, stderr=log)
        wait_for("it serves", self._serves)

    def consume(self) -> None:
        """`viewtail entities consume` instead."""
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "viewtail.main", "entities", "consume"],
                cwd=self.folder,
                env=self._environment,
                stderr=log,
            )
        wait_for("it consumes", lambda: "consuming commands" in self.log)

    def _serves(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log
        for line in self.log.splitlines():
            if '"event":"serving"' in line:
                self.port = int(orjson.loads(line)["url"].rpartition(":")[2])
                return self.ask("GET", "/livez").status == 200
        return False

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Said:
        """As it is, nothing is normalised."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            if body is not None and "Content-Length" not in (headers or {}):
                connection.putheader("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            with contextlib.suppress(BrokenPipeError):  # it has answered before it read all
                connection.endheaders(body)
            found = connection.getresponse()
            return Said(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()

    def post(self, entity_id: str, name: str, key: str, **request: Any) -> Said:
        """A command."""
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        return self.ask("POST", f"/{TABLE}/{entity_id}/{name}", orjson.dumps(request), headers)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        """Its exit code, when it has ended."""
        assert self.process is not None
        return self.process.wait(60)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()
