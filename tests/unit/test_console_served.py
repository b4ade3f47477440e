"""The console over HTTP, of deployments whose state is known beforehand: limits, long tables, keys of any text."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest
import structlog.testing

from offsets.views import State
from tests.support.running import wait_for
from viewtail import web
from viewtail.console import app, asking, connections, declared, guard, pages
from viewtail.console.app import Console
from viewtail.console.jobs import Commands
from viewtail.console.looking import Deployment, Fleet, Seen
from viewtail.operations.findings import Findings
from viewtail.operations.status import PipelineStatus, ViewStatus
from viewtail.settings import ConsoleSettings, Settings, load

TOKEN = "a-token-that-is-long-enough"


class _NoRedirection(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


_opener = build_opener(_NoRedirection)


class Served:
    """A console on a port of its own."""

    def __init__(self, console: Console, commands: Commands) -> None:
        self.console, self.commands = console, commands
        self._listening = web.listen("127.0.0.1", 0, "console")
        self.port = self._listening.getsockname()[1]
        self._server = web.Server(console.application, finish_within_s=1, protocol=connections.Connection)
        console.is_stopping = lambda: self._server.is_stopping
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server._server.serve(sockets=[self._listening]))
        )
        self._thread.start()

    def ask(
        self, path: str, form: Mapping[str, str] | None = None, **headers: str
    ) -> tuple[int, str, Mapping[str, str]]:
        body = None if form is None else urlencode(form).encode()
        try:
            with _opener.open(Request(f"http://127.0.0.1:{self.port}{path}", body, headers), timeout=20) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def get(self, path: str) -> str:
        code, text, _ = self.ask(path)
        assert code == 200, text
        return text

    @property
    def connections(self) -> int:
        return len(self._server._server.server_state.connections)

    def connect(self, said: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        connection.sendall(said)
        return connection

    def close(self) -> None:
        self._server.stop()
        self._thread.join()
        self.commands.close()


def deployment(name: str, views: int, loaded: Settings | None = None) -> Deployment:
    """One that was asked a moment ago, and is asked no more."""
    found = [
        ViewStatus(
            name=f"redis:view_{number:03}", state=State.FILLED, reason=None, filled_percent=100.0, row_count=number,
            row_estimate=number, rows_per_second=0.0, eta_s=None, parked=0,
        )
        for number in range(views)
    ]  # fmt: skip
    pipeline = PipelineStatus(
        name="redis", state="running", position=None, gtid=None, lag_s=0.0, rows_per_second=0, applied_row_count=1,
        reconnect_count=0, error=None, owner="host:1", reported_s_ago=1.0, views=tuple(found),
    )  # fmt: skip
    seen = Seen(findings=Findings(pipelines=[pipeline]), at=time.monotonic())
    return Deployment(name, loaded or Settings(), _seen=seen, _asked_at=time.monotonic() + 1e6)


def console(*deployments: Deployment) -> Served:
    fleet, commands = Fleet.__new__(Fleet), Commands(None)
    fleet.deployments = [*deployments]
    return Served(Console(fleet, commands, ConsoleSettings(token=TOKEN)), commands)  # type: ignore[arg-type]


@pytest.fixture
def served() -> Iterator[Served]:
    with closing(console(deployment("", 3))) as found:
        yield found


REQUEST = b"GET /static/icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 900\r\n\r\nname="
)


# --- Connections ---


@pytest.mark.parametrize("said", [b"", REQUEST, FORM])
def test_a_request_that_does_not_come_ends_its_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "ASKED_WITHIN_S", 0.5)
    began_at = time.monotonic()
    with served.connect(said) as slow, suppress(ConnectionError):
        slow.settimeout(0.1)
        while time.monotonic() - began_at < 10:  # a byte now and then is no request either
            with suppress(TimeoutError):
                if not slow.recv(1000):
                    break
            slow.sendall(b"x" if said else b"")
    assert 0.4 < time.monotonic() - began_at < 5


def test_an_answer_that_nobody_takes_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TAKEN_WITHIN_S", 0.5)
    with closing(console(deployment("", 300))) as served:
        long = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100
        with served.connect(long):
            wait_for("it is there", lambda: served.connections, 20)
            wait_for("it is closed", lambda: not served.connections, 20)


def test_the_end_of_an_answer_that_nobody_takes_ends_its_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little of it waits in the console, behind what the machine has of it."""
    monkeypatch.setattr(connections, "TAKEN_WITHIN_S", 0.5)
    monkeypatch.setattr(served._server._server.config, "timeout_keep_alive", 1)

    with ExitStack() as opened:
        for size in range(1 << 20, 6 << 20, 50_000):
            served.console._static["icon.svg"] = b"x" * size
            slow = opened.enter_context(served.connect(REQUEST + b"\r\n"))
            assert slow.recv(1)
        wait_for("they are closed", lambda: not served.connections, 20)


def test_a_request_behind_an_answer_that_waits_has_its_own_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ASKED_WITHIN_S", 1.0)
    served.console._static["icon.svg"] = b"x" * (16 << 20)
    with served.connect(REQUEST + b"\r\n") as slow:
        assert slow.recv(1)
        slow.sendall(b"GET /")
        time.sleep(0.2)
        got = 1
        with suppress(ConnectionError):
            while chunk := slow.recv(1 << 20):
                got += len(chunk)
        assert got > 16 << 20
        wait_for("it is closed", lambda: not served.connections, 10)


def test_a_stream_outlives_the_time_of_a_request(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ASKED_WITHIN_S", 0.2)
    monkeypatch.setattr(app, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(app, "SAY_EVERY_S", 0.1)
    with served.connect(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as stream:
        began_at = time.monotonic()
        while time.monotonic() - began_at < 1:
            assert stream.recv(100_000)


def test_too_many_connections_are_told_so_and_far_too_many_are_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST", 2)
    silent = [served.connect() for _ in range(2)]
    wait_for("they are there", lambda: served.connections == 2)
    code, text, _ = served.ask("/static/icon.svg")
    assert code == 503 and "connections to the console are open" in text
    silent += [served.connect() for _ in range(2)]
    wait_for("they are there", lambda: served.connections == 4)
    with served.connect(REQUEST + b"\r\n") as further, suppress(ConnectionError):
        assert further.recv(100) == b""
    for each in silent:
        each.close()
    wait_for("there is room", lambda: served.ask("/static/icon.svg")[0] == 200)


def test_live_pages_leave_connections_for_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * app.MOST_STREAMS <= connections.MOST
    monkeypatch.setattr(app, "MOST_STREAMS", 3)
    monkeypatch.setattr(app, "LOOK_EVERY_S", 0.1)
    ask = b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    streams = [served.connect(ask) for _ in range(12)]
    began = [stream.recv(12)[9:12] for stream in streams]
    assert sorted(began) == [b"200"] * 3 + [b"503"] * 9
    code, text, _ = served.ask("/events")
    assert code == 503 and "pages of the console are live" in text
    assert "redis:view_001" in served.get("/")
    for each in streams:
        each.close()
    wait_for("their places are free", lambda: served.console._streams == 0)


def test_a_head_request_for_a_live_page_ends(served: Served) -> None:
    lines = b" /events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    both = b"HEAD" + lines + b"\r\nHEAD" + lines + b"Connection: close\r\n\r\n"
    with served.connect(both) as asked, asked.makefile("rb") as answers:
        assert answers.read().count(b"text/event-stream") == 2
    assert served.console._streams == 0


# --- Wrong tokens ---


def test_wrong_tokens_are_counted_in_the_log_with_addresses_and_slow_all_sign_ins_down(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WRONG_TOKEN_S", 0.0)
    monkeypatch.setattr(guard, "MINUTE_S", 2.0)
    monkeypatch.setattr(guard, "PAUSE_S", 0.7)
    monkeypatch.setattr(guard, "MANY_WRONG", 5)

    def sign_in(token: str) -> tuple[int, float]:
        began_at = time.monotonic()
        code = served.ask("/sign-in", {"name": "mallory", "token": token, "to": "/"})[0]
        return code, time.monotonic() - began_at

    with structlog.testing.capture_logs() as logs, ThreadPoolExecutor(8) as pool:
        assert {code for code, _ in pool.map(sign_in, [f"wr0ng-{n}" for n in range(12)])} == {403}
        code, took_s = sign_in(TOKEN)
        assert code == 303 and took_s > 0.6
        wait_for("they are counted", lambda: sum(one.get("count", 0) for one in logs) == 12, 10)
        wait_for("it is over", lambda: sign_in(TOKEN)[1] < 0.6, 10)
    told = [one for one in logs if one["event"] == "wrong tokens"]
    assert 2 <= len(told) <= 3 and {address for one in told for address in one["addresses"]} == {"127.0.0.1"}
    assert "wr0ng" not in f"{logs}" and "mallory" not in f"{logs}"


# --- Long tables ---


def test_each_of_many_views_is_on_a_page_without_javascript() -> None:
    with closing(console(deployment("", 700))) as served:
        text, found = served.get("/"), set[str]()
        hrefs = re.findall(r'href="(\?[^"]*)" aria-label="Part \d of the views"', text)
        assert len(hrefs) == 2
        for href in ("", *hrefs):
            text = served.get(f"/{href}")
            listed = set(re.findall(r">(redis:view_\d+)</a>", text))
            assert len(listed) <= pages.MOST_LISTED and "700 views" in text
            found |= listed
        assert len(found) == 700
        assert set(re.findall(r">(redis:view_\d+)</a>", served.get("/?page=99"))) == listed, "the last one"
        assert ">redis:view_000<" in served.get("/?page=x") and ">redis:view_000<" in served.get("/?page=0")
        assert re.findall(r">(redis:view_\d+)</a>", served.get("/?find=VIEW_69&page=3")) == [
            f"redis:view_{number}" for number in range(690, 700)
        ]
        assert "No view of 700 has “nothing”" in served.get("/?find=nothing")
        of_pipeline = served.get("/pipeline/redis?page=3")
        assert ">redis:view_699<" in of_pipeline and 'href="?page=1"' in of_pipeline


def test_the_parts_of_a_table_keep_what_else_was_asked() -> None:
    with closing(console(deployment("eu", 400), deployment("us", 400))) as served:
        text = served.get("/pipeline/redis?of=us&find=view")
        assert 'href="?of=us&amp;find=view&amp;page=2"' in text and 'name="of" value="us"' in text
        assert ">redis:view_399<" in served.get("/pipeline/redis?of=us&find=view&page=2")


# --- Pages of a view ---


def test_views_py_is_read_for_a_page_and_not_each_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "console_views.py").write_text(
        'from viewtail import Entity, RedisHash\nviews = [RedisHash("view_001", Entity("shop.user"), fields=["a"])]\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load(None, {"VIEWTAIL_VIEWS": "console_views:views", "VIEWTAIL_SOURCE__URL": "mysql://h"})
    monkeypatch.setattr(app, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(app, "SAY_EVERY_S", 0.05)
    parsed, parse = list[str](), declared.ast.parse
    monkeypatch.setattr(declared.ast, "parse", lambda *given: (parsed.append(given[0]), parse(*given))[1])
    with closing(console(deployment("", 3, loaded))) as served:
        with served.connect(b"GET /view/redis/view_001/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as stream:
            heard = b""
            while heard.count(b"data: ") < 5:
                heard += stream.recv(100_000)
        assert b"filled" in heard and parsed == []
        assert "console_views.py, line 2" in served.get("/view/redis/view_001") and len(parsed) == 1


def test_others_are_answered_while_views_py_is_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(*_: object) -> tuple[None, str]:
        begun.set()
        return None, "it went on" if goes_on.wait(10) else "nobody else was answered"

    monkeypatch.setattr(asking, "declared", slow)
    with ThreadPoolExecutor(1) as pool:
        page = pool.submit(served.get, "/view/redis/view_001")
        assert begun.wait(10)
        assert served.ask("/static/icon.svg")[0] == 200 and not page.done()
        goes_on.set()
        assert "it went on" in page.result()


# --- Keys of any text ---


def test_a_key_of_several_lines_is_acted_on(served: Served) -> None:
    cookie = {"Cookie": served.ask("/sign-in", {"name": "ada", "token": TOKEN})[2]["Set-Cookie"].partition(";")[0]}
    key = "two\r\nlines\x1b \u2028"
    text = served.ask(pages.action_url("redrive", "", "redis:view_001", key=key), **cookie)[1]
    assert 'name="key" value="two%0D%0Alines' in text, "a browser takes line ends out of a field"
    (form_key,) = set(re.findall(r'name="form_key" value="([0-9a-f]+)"', text))
    for given in (key, "two%0D%0Alines\x1b \u2028"):  # as in an address, and as the field of a form keeps it
        form = {"name": "redis:view_001", "form_key": form_key, "key": given}
        code, text, headers = served.ask("/do/redrive", form, **cookie)
        assert code == 303, text
        job = served.commands.job(int(headers["Location"].rpartition("/")[2]))
        assert job is not None and job.words[-1] == "two%0D%0Alines\x1b \u2028"
    code, text, _ = served.ask("/do/redrive", {"name": "redis:view_001", "form_key": form_key, "key": "a\0"}, **cookie)
    assert code == 400 and "NUL" in text
