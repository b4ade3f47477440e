"""People are told of each incident once, by one process, whatever restarts, takes over, or does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import structlog.testing

from ingest import Margin
from offsets import schema
from stack import Server
from tests.support.webhook import Webhook, webhook
from viewtail.notifying import webhook as module
from viewtail.notifying.notifier import HOLD_S, Notifier
from viewtail.notifying.webhook import WebhookError, post
from viewtail.operations.findings import Findings
from viewtail.operations.status import PipelineStatus
from viewtail.servers.sessions import MySQLAddress, open_session
from viewtail.settings import NotifySettings

DATABASE = "notified_views"
PIPELINE = PipelineStatus(
    name="redis", state="running", position=None, gtid=None, lag_s=0.0, rows_per_second=0, applied_row_count=1,
    reconnect_count=0, error=None, owner="host:1", reported_s_ago=1.0, views=(),
)  # fmt: skip
WELL = Findings(pipelines=[PIPELINE])
DOWN = Findings(pipelines=[replace(PIPELINE, state="down")])


@dataclass
class Fleet:
    """Processes that could tell, and the webhook that they share."""

    address: MySQLAddress
    hook: Webhook
    begun: list[Notifier] = field(default_factory=list)

    def one(self, *, hold_s: float = 0.0, over_s: float = 0.0, source: str = "default") -> Notifier:
        notifier = Notifier(
            settings=NotifySettings(url=self.hook.url),  # type: ignore[arg-type]
            open_own=partial(open_session, self.address, role="store"),
            database=DATABASE,
            source=source,
            keeps=lambda name: name.startswith("topic.") == (source == "#topics"),
            hold_s=dict.fromkeys(HOLD_S, hold_s),
            over_s=over_s,
        )
        self.begun.append(notifier)
        return notifier

    def rows(self) -> int:
        with closing(open_session(self.address, role="store")) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {DATABASE}.pipeline_incident")
            return int((cursor.fetchone() or (0,))[0])


@pytest.fixture(params=["mysql", "mariadb"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    with closing(open_session(address, role="store")) as connection:
        connection.query(f"DROP DATABASE IF EXISTS {DATABASE}")
        schema.create(connection, address, DATABASE, schema.STORE_TABLES, role="store")
    with webhook() as hook:
        found = Fleet(address, hook)
        yield found
        for notifier in found.begun:
            notifier.close()


def look(notifier: Notifier, findings: Findings) -> bool:
    """One round; whether this process is the one that tells."""
    connection = notifier.session()
    if connection is not None:
        notifier.tell(connection, findings)
    return connection is not None


def test_an_incident_is_told_once_and_once_that_it_is_over(fleet: Fleet) -> None:
    notifier = fleet.one()
    for findings in (WELL, DOWN, DOWN, DOWN, WELL, WELL, WELL):
        assert look(notifier, findings)
    assert fleet.hook.told() == [("down", "began"), ("down", "over")] and fleet.rows() == 0
    began, over = fleet.hook.bodies
    assert "viewtail run" in began["began"][0]["mend"]
    assert over["over"][0]["words"].startswith("over, after 0 s: pipeline redis was down")
    look(notifier, DOWN)
    assert fleet.hook.told()[2:] == [("down", "began")], "it is another incident"


def test_what_comes_and_goes_is_one_incident_and_what_is_short_is_none(fleet: Fleet) -> None:
    notifier = fleet.one(over_s=60.0)
    for findings in (DOWN, WELL, DOWN, WELL, DOWN):
        look(notifier, findings)
    assert fleet.hook.told() == [("down", "began")]
    patient = fleet.one(hold_s=60.0, source="#topics")
    topics = [replace(DOWN.pipelines[0], name="topic.0.redis")]
    for findings in (Findings(pipelines=topics), WELL, WELL):
        look(patient, findings)
    assert fleet.hook.told() == [("down", "began")]


def test_one_process_tells_and_the_next_one_goes_on_where_it_was(fleet: Fleet) -> None:
    first, second = fleet.one(), fleet.one()
    assert look(first, DOWN) and not look(second, DOWN)
    first.close()  # as the server does when a process dies
    assert look(second, DOWN) and not look(first, DOWN)
    assert fleet.hook.told() == [("down", "began")]
    look(second, WELL)
    look(second, WELL)
    assert fleet.hook.told() == [("down", "began"), ("down", "over")]


def test_sources_that_other_processes_read_are_told_by_these(fleet: Fleet) -> None:
    both = Findings(pipelines=[replace(PIPELINE, name=name, state="down") for name in ("redis", "topic.0.redis")])
    tailer, projector = fleet.one(), fleet.one(source="#topics")
    for _ in range(2):
        assert look(tailer, both) and look(projector, both)
    told = [(one["pipeline"], what) for body in fleet.hook.bodies for what in ("began", "over") for one in body[what]]
    assert told == [("redis", "began"), ("topic.0.redis", "began")]


def test_a_webhook_that_is_away_is_told_later_and_left_alone_meanwhile(fleet: Fleet) -> None:
    notifier = fleet.one()
    fleet.hook.status = 503
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            look(notifier, DOWN)
    assert fleet.hook.attempts == 1 and fleet.hook.bodies == []
    assert [one["error"] for one in logs] == ["it answered 503"] and "s3cr3t" not in f"{logs}"
    fleet.hook.status = 200
    notifier._not_before = 0.0
    look(notifier, DOWN)
    assert fleet.hook.told() == [("down", "began")]


def test_what_began_and_ended_while_the_webhook_was_away_is_told_as_over(fleet: Fleet) -> None:
    notifier = fleet.one()
    fleet.hook.status = 500
    for findings in (DOWN, WELL):
        look(notifier, findings)
    fleet.hook.status = 200
    notifier._not_before = 0.0
    look(notifier, WELL)
    assert fleet.hook.told() == [("down", "over")] and fleet.rows() == 0


def test_a_webhook_that_asks_for_a_pause_gets_it(fleet: Fleet) -> None:
    fleet.hook.status, fleet.hook.headers = 429, {"Retry-After": "900"}
    notifier = fleet.one()
    look(notifier, DOWN)
    assert notifier._not_before - time.monotonic() > 800


def test_a_margin_that_nobody_can_tell_is_not_over(fleet: Fleet) -> None:
    notifier = fleet.one()
    low = Findings(pipelines=[PIPELINE], margins={"redis": Margin(left_s=1.0, keeps_s=9.0, limit="age")})
    for findings in (low, replace(WELL, source_error="no answer"), low):
        look(notifier, findings)
    assert fleet.hook.told() == [("margin", "began")]
    look(notifier, WELL)
    look(notifier, WELL)
    assert fleet.hook.told()[1:] == [("margin", "over")]


def test_an_answer_that_leads_elsewhere_is_not_followed() -> None:
    with webhook() as hook, webhook() as other:
        hook.status, hook.headers = 307, {"Location": other.url}
        with pytest.raises(WebhookError, match="it answered 307"):
            post(hook.url, b"{}")
        assert other.attempts == 0


@pytest.mark.parametrize("begin", [b"HT", b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 100 Continue\r\nX-Long: "])
def test_an_answer_that_comes_byte_by_byte_is_given_up(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WITHIN_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=_drip, args=(listening, begin))
        dripping.start()
        began_at = time.monotonic()
        with pytest.raises(WebhookError, match="no answer within 1 s"):
            post(f"http://127.0.0.1:{listening.getsockname()[1]}/s3cr3t", b"{}")
        assert time.monotonic() - began_at < 5
        dripping.join()


def _drip(listening: socket.socket, begin: bytes) -> None:
    """Answer by a byte each tenth of a second, for as long as somebody listens."""
    connection = listening.accept()[0]
    with connection, suppress(OSError):
        connection.sendall(begin)
        for _ in range(100):
            time.sleep(0.1)
            connection.sendall(b"T")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/s3cr3t", "http://127.0.0.1:99999/s3cr3t"])
def test_no_error_of_a_webhook_says_its_address(url: str) -> None:
    with pytest.raises(WebhookError) as caught:
        post(url, b"{}")
    assert "s3cr3t" not in str(caught.value) and caught.value.__cause__ is None
