"""`viewtail serve` with a real MySQL: commands take effect once, and whatever is wrong has a clear answer."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from stack import Server
from stack.server import free_port
from tests.support.asking import ask
from tests.support.running import addresses, running, wait_for
from tests.support.serving import TABLE, Said, Served

pytestmark = pytest.mark.mysql

KEY = {"Idempotency-Key": "k"}


# Requests for each operation and phase; of all that schemathesis checks nothing is left out.
EXAMPLES = 40


@pytest.fixture(scope="module")
def served(mysql_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    ask(mysql_server, "DROP DATABASE IF EXISTS bank")
    found = Served(tmp_path_factory.mktemp("serve"), mysql_server.port)
    assert found.command("entities", "create").returncode == 0
    found.start()
    yield found
    found.kill()


def test_a_command_takes_effect_once_and_keeps_its_answer(served: Served) -> None:
    first = served.post("ada", "deposit", "1", amount=5)
    assert (first.status, first.body) == (200, {"response": {"balance": 5}, "version": "1", "is_repeated": False})
    assert first.headers["content-type"] == "application/json" and first.headers["cache-control"] == "no-store"
    assert served.post("ada", "deposit", "2", amount=7).body["version"] == "2"
    assert served.post("ada", "deposit", "1", amount=5).body == {**first.body, "is_repeated": True}
    found = served.ask("GET", f"/{TABLE}/ada")
    assert (found.status, found.body) == (200, {"state": {"balance": 12}, "version": "2"})
    assert served.ask("GET", f"/{TABLE}/ada?version=1").body == {"state": {"balance": 5}, "version": "1"}
    for path, says in (("ada?version=3", "no event of version 3"), ("nobody", "no events")):
        missing = served.ask("GET", f"/{TABLE}/{path}")
        assert (missing.status, missing.kind) == (404, "not-found") and says in missing.body["detail"]


def test_another_request_under_a_used_key_is_a_conflict(served: Served) -> None:
    served.post("bob", "deposit", "1", amount=5)
    for again in (served.post("bob", "deposit", "1", amount=6), served.post("bob", "note", "1", amount=5)):
        assert (again.status, again.kind) == (409, "used-id")


def test_a_refusal_has_its_reason_and_may_succeed_later(served: Served) -> None:
    refused = served.post("eve", "deposit", "1", amount=-5)
    assert (refused.status, refused.kind, refused.body["detail"]) == (422, "refused", "not enough money")
    served.post("eve", "deposit", "2", amount=9)
    assert served.post("eve", "deposit", "1", amount=-5).body["response"] == {"balance": 4}


@pytest.mark.parametrize(
    ("headers", "body", "status", "kind", "says"),
    [
        ({}, b"{}", 400, "bad-request", "Idempotency-Key is missing"),
        ({"Idempotency-Key": ""}, b"{}", 400, "bad-request", "1 to 190"),
        ({"Idempotency-Key": "k" * 191}, b"{}", 400, "bad-request", "1 to 190"),
        ({"Idempotency-Key": "k\xe4"}, b"{}", 400, "bad-request", "visible ASCII"),
        ({**KEY, "Content-Type": "text/plain"}, b"{}", 415, "unsupported-media-type", "application/json"),
        (KEY, b"", 400, "bad-request", "not JSON"),
        (KEY, b"{", 400, "bad-request", "not JSON at byte 1"),
        (KEY, b"\xff", 400, "bad-request", "not UTF-8"),
        (KEY, b'{"a": NaN}', 400, "bad-request", "not JSON"),
        (KEY, b"[" * 100_000, 422, "invalid", "deep"),
        (KEY, b'{"a": ' * 31 + b"1" + b"}" * 31, 422, "invalid", "30 deep"),
        (KEY, b"[]", 422, "invalid", "must be a JSON object"),
        (KEY, b"null", 422, "invalid", "must be a JSON object"),
        (KEY, b'{"a": 1, "a": 2}', 422, "invalid", "two members of one name"),
        (KEY, b'{"a": 1e999}', 422, "invalid", "infinite"),
        (KEY, b'{"a": 123456789012345678901234}', 422, "invalid", "64 bits do not hold"),
        (KEY, b'{"a": 1' + b"0" * 5_000 + b"}", 422, "invalid", "64 bits do not hold"),
        (KEY, b'{"a": "\\ud800"}', 422, "invalid", "no JSON"),
        (KEY, b'{"a": "' + b"x" * (1 << 20) + b'"}', 413, "too-large", "1,048,576"),
        ({**KEY, "Content-Length": "9" * 19}, b"{}", 413, "too-large", "1,048,576"),
    ],
)
def test_what_cannot_be_read_is_told_and_writes_nothing(
    served: Served, headers: dict[str, str], body: bytes, status: int, kind: str, says: str
) -> None:
    found = served.ask("POST", f"/{TABLE}/none/note", body, headers)
    assert (found.status, found.kind) == (status, kind), found
    assert says in found.body["detail"]
    assert served.ask("GET", f"/{TABLE}/none").status == 404


def test_numbers_arrive_as_they_were_sent(served: Served) -> None:
    sent = b'{"a":[18446744073709551615,-9223372036854775808,100000000000000000000,1e300,0.1]}'
    found = served.ask("POST", f"/{TABLE}/numbers/note", sent, KEY)
    assert found.body["response"] == {"a": [(1 << 64) - 1, -(1 << 63), 1e20, 1e300, 0.1]}


def test_a_client_that_sends_a_little_too_much_sees_the_answer(served: Served) -> None:
    """It looks for one when all is sent; a connection that was closed before would be all that it sees."""
    body = b"x" * (1 << 20) + b"x" * 300_000
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.putrequest("POST", f"/{TABLE}/none/note")
    for name, value in {**KEY, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders()
    for start in range(0, len(body), 100_000):
        connection.send(body[start : start + 100_000])
        time.sleep(0.02)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_in_chunks_is_bounded_too(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    headers = {**KEY, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    try:
        connection.request("POST", f"/{TABLE}/none/note", iter([b"x" * 100_000] * 20), headers, encode_chunked=True)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it was answered before all was sent
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("path", "entity_id"),
    [
        ("a%2Fb", "a/b"),
        ("%C3%A4", "ä"),
        ("..", ".."),
        ("%2e%2e", ".."),
        ("a%20b+c", "a b+c"),
        ("%25", "%"),
        ("x" * 128,) * 2,
    ],
)
def test_an_id_is_what_the_path_says(served: Served, mysql_server: Server, path: str, entity_id: str) -> None:
    assert served.post(path, "to%20the%20last", path, at=path).status == 200
    assert served.ask("GET", f"/{TABLE}/{path}").body["state"]["note"] == {"at": path}
    escaped = entity_id.replace("%", "%%")
    assert ask(mysql_server, f"SELECT COUNT(*) FROM bank.account WHERE entity_id = '{escaped}'".replace("%%", "%"))


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        (f"/{TABLE}/%ff", 400, "UTF-8"),
        (f"/{TABLE}/%zz", 400, "hexadecimal"),
        (f"/{TABLE}/%00", 400, "NUL"),
        (f"/{TABLE}/{'x' * 129}", 400, "1 to 128"),
        (f"/{TABLE}/", 400, "1 to 128"),
        (f"/{TABLE}", 404, "the paths are"),
        ("/", 404, "the paths are"),
        ("//", 404, "no entities"),
        (f"/{TABLE}/ada/deposit/", 404, "the paths are"),
        ("/bank.acount/ada", 404, "did you mean bank.account?"),
        (f"/{TABLE}/ada/deposits", 404, "did you mean deposit?"),
        (f"/{TABLE}/ada?version=0", 400, "whole number"),
        (f"/{TABLE}/ada?version=-1", 400, "whole number"),
        (f"/{TABLE}/ada?version=", 400, "whole number"),
        (f"/{TABLE}/ada?version=1&version=2", 400, "whole number"),
        (f"/{TABLE}/ada?version=99999999999999999999", 400, "whole number"),
        (f"/{TABLE}/ada?version=%ff", 400, "UTF-8"),
    ],
)
def test_a_path_that_leads_nowhere_says_why(served: Served, path: str, status: int, says: str) -> None:
    found = served.ask("GET", path)
    assert found.status == status and found.kind in ("bad-request", "not-found") and says in found.body["detail"]


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        (f"/{TABLE}/ada", "GET, HEAD, OPTIONS"),
        (f"/{TABLE}/ada/note", "POST, OPTIONS"),
        ("/livez", "GET, HEAD, OPTIONS"),
    ],
)
def test_other_methods_are_told_which_there_are(served: Served, path: str, allow: str) -> None:
    options = served.ask("OPTIONS", path)
    assert (options.status, options.headers["allow"], options.text) == (204, allow, b"")
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"} - set(allow.split(", ")):
        found = served.ask(method, path, b"{}", KEY)
        assert (found.status, found.kind, found.headers["allow"]) == (405, "method-not-allowed", allow)


def test_head_is_get_without_a_body(served: Served) -> None:
    served.post("head", "deposit", "1", amount=5)
    got, head = (served.ask(method, f"/{TABLE}/head") for method in ("GET", "HEAD"))
    assert (head.status, head.headers["content-length"], head.text) == (200, str(len(got.text)), b"")


def test_a_handler_that_raises_is_told_without_its_values(served: Served) -> None:
    found = served.post("ada", "fails", "f", secret="hunter2")
    assert (found.status, found.kind) == (500, "handler-failed")
    assert "raised KeyError; nothing was written" in found.body["detail"]
    assert b"hunter2" not in found.text
    assert "hunter2" not in served.log and "raised KeyError" in served.log
    assert re.search(r'"where":"entities.py:\d+"', served.log)


def test_a_handler_that_hangs_is_told_and_the_others_go_on(served: Served, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as caller:
        files = {"is_here": tmp_path / "is here", "until": tmp_path / "until"}
        hangs = caller.submit(served.post, "hang", "waits", "1", **{name: str(path) for name, path in files.items()})
        wait_for("it is handled", files["is_here"].exists)
        assert served.post("other", "deposit", "1", amount=1).status == 200
        found = hangs.result()
        files["until"].touch()
    assert (found.status, found.kind) == (504, "handler-hung")
    assert served.ask("GET", f"/{TABLE}/hang").status == 404


def test_many_callers_of_one_entity_are_each_answered(served: Served) -> None:
    with ThreadPoolExecutor(16) as callers:
        found = list(callers.map(lambda at: served.post("many", "deposit", f"{at // 2}", amount=1), range(300)))
    assert {one.status for one in found} == {200}
    assert sorted(int(one.body["version"]) for one in found if not one.body["is_repeated"]) == list(range(1, 151))
    assert served.ask("GET", f"/{TABLE}/many").body == {"state": {"balance": 150}, "version": "150"}


def is_refused(one: Served) -> bool:
    try:
        one.ask("GET", "/livez")
    except ConnectionRefusedError:
        return True
    return False


def test_what_was_accepted_is_answered_at_a_stop_and_nothing_new_is_taken(
    mysql_server: Server, served: Served, tmp_path: Path
) -> None:
    other = Served(tmp_path, mysql_server.port)
    other.start()
    with ThreadPoolExecutor(1) as caller:
        accepted = caller.submit(other.post, "stop", "waits", "1", is_here="is here", until="until")
        wait_for("it is handled", (tmp_path / "is here").exists)
        other.signal(signal.SIGINT)
        wait_for("nothing listens", lambda: is_refused(other))
        (tmp_path / "until").touch()
        assert accepted.result().body["response"] == "waited"
    assert other.ended() == 0
    assert served.ask("GET", f"/{TABLE}/stop").body["version"] == "1"


def test_commands_sent_to_a_server_that_is_killed_take_effect_once(
    mysql_server: Server, served: Served, tmp_path: Path
) -> None:
    other = Served(tmp_path, mysql_server.port)
    answered: dict[int, Said] = {}

    def send(at: int) -> None:
        while at not in answered:
            try:
                answered[at] = other.post("killed", "deposit", str(at), amount=1)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)

    other.start()
    with ThreadPoolExecutor(8) as callers:
        sent = [callers.submit(send, at) for at in range(400)]
        for _ in range(2):
            time.sleep(0.3)
            other.kill()
            other.start()
        for one in sent:
            one.result()
    other.kill()
    assert {one.status for one in answered.values()} == {200}
    assert sorted(int(one.body["version"]) for one in answered.values()) == list(range(1, 401))
    assert served.ask("GET", f"/{TABLE}/killed").body == {"state": {"balance": 400}, "version": "400"}


def test_a_store_that_is_away_is_503_and_not_ready(tmp_path: Path) -> None:
    away = Served(tmp_path, 1)  # nobody listens there
    away.start()
    try:
        found = away.ask("GET", f"/{TABLE}/ada")
        assert (found.status, found.kind, found.headers["retry-after"]) == (503, "unavailable", "1")
        assert b"127.0.0.1" not in found.text and b"root" not in found.text
        ready = away.ask("GET", "/readyz")
        assert (ready.status, ready.body) == (503, {"ready": False, "silent": [TABLE]})
        assert away.ask("GET", "/livez").status == 200
    finally:
        away.kill()


def test_it_is_ready_when_its_tables_can_be_read(served: Served) -> None:
    assert served.ask("GET", "/readyz").body == {"ready": True, "silent": []}


def test_the_document_names_the_handlers_and_what_their_docstrings_say(served: Served) -> None:
    document = served.ask("GET", "/openapi.json").body
    assert document["openapi"] == "3.1.0"
    deposit = document["paths"]["/bank.account/{id}/deposit"]["post"]
    assert deposit["summary"] == "Add an amount, which may be negative."
    assert deposit["description"].endswith("A balance never becomes negative.")
    assert "/bank.account/{id}/to%20the%20last" in document["paths"]
    assert set(deposit["responses"]) == {*map(str, (200, 400, 408, 409, 413, 415, 422, 500, 503, 504))}


def test_a_request_that_is_not_as_its_handler_declares_is_told_by_the_field_and_writes_nothing(served: Served) -> None:
    cases = (({"amount": "cAnArY"}, "amount: "), ({}, "amount: Field required"), ({"amount": 1, "why": 7}, "why: "))
    for request, says in cases:
        found = served.post("declared", "pay", "1", **request)
        assert (found.status, found.kind) == (422, "invalid") and says in found.body["detail"]
        assert "cAnArY" not in found.text.decode() + served.log
    assert served.ask("GET", f"/{TABLE}/declared").status == 404
    assert served.post("declared", "pay", "1", amount=3).body["response"] == {"balance": -3}
    assert served.post("declared", "pay", "1", amount=3).body["is_repeated"]
    document = served.ask("GET", "/openapi.json").body
    body = document["paths"]["/bank.account/{id}/pay"]["post"]["requestBody"]["content"]["application/json"]
    schema = document["components"]["schemas"][body["schema"]["$ref"].rpartition("/")[2]]
    assert schema["required"] == ["amount"] and schema["properties"]["amount"]["exclusiveMinimum"] == 0


def test_the_page_for_people_shows_the_document_and_loads_nothing(served: Served) -> None:
    page = served.ask("GET", "/docs")
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for says in (b"POST /bank.account/{id}/pay", b"exclusiveMinimum", b"A balance never becomes negative."):
        assert says in page.text
    assert not re.search(rb"<script|<link|src=|https?://", page.text)


VIEWS = """
from viewtail import Entity, IndexTable

account = Entity("bank.account", key="entity_id", version="version", append_only=True, order="event_id")
views = [IndexTable("by_event", account, value="event_id")]
"""


def test_a_version_over_http_is_the_one_that_get_shows(mysql_server: Server, served: Served, tmp_path: Path) -> None:
    for at in range(1, 4):
        version = served.post("versions", "deposit", str(at), amount=1).body["version"]
    with running(
        tmp_path, VIEWS, {**addresses(mysql_server), "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/of_versions"}
    ) as run:
        wait_for("it is filled", run.is_well)
        shown = orjson.loads(run.command("get", "by_event", "versions", "--json").stdout)
    assert shown["version"] == version == served.ask("GET", f"/{TABLE}/versions").body["version"] == "3"


def test_a_table_is_made_by_a_command_and_serve_asks_for_it(mysql_server: Server, tmp_path: Path) -> None:
    other = Served(tmp_path, mysql_server.port)
    (tmp_path / "entities.py").write_text(
        (tmp_path / "entities.py").read_text().replace("bank.account", "bank2.account")
    )
    ask(mysql_server, "DROP DATABASE IF EXISTS bank2")
    refused = other.command("serve")
    assert refused.returncode == 1 and "Make the table: viewtail entities create" in refused.stderr
    printed = other.command("entities", "create", "--print-sql")
    assert printed.returncode == 0 and printed.stdout.startswith("CREATE TABLE IF NOT EXISTS `bank2`.`account`")
    assert other.command("serve").returncode == 1, "nothing was made"
    for says in ("created", "is there already"):
        made = other.command("entities", "create")
        assert (made.returncode, made.stdout) == (0, f"bank2.account: {says}\n")


def test_an_address_that_is_in_use_is_said(served: Served) -> None:
    found = served.command("serve", "--port", str(served.port))
    assert found.returncode == 2 and "cannot listen on 127.0.0.1" in found.stderr


def test_nothing_that_a_request_holds_is_logged(served: Served) -> None:
    served.post("person-4711", "note", "key-4711", phone="phone-4711")
    served.ask("POST", f"/{TABLE}/person-4711/note", b'{"phone-4711', KEY)
    served.post("person-4711", "deposit", "key-4712", amount="phone-4711")
    assert "4711" not in served.log


def test_schemathesis_finds_nothing(mysql_server: Server, served: Served, tmp_path: Path) -> None:
    """Every check it has, over the real store; the handlers take every object, as the document says."""
    other = Served(tmp_path, mysql_server.port, VIEWTAIL_TEST_TAKES_ALL="1")
    other.start()
    try:
        url = f"http://127.0.0.1:{other.port}/openapi.json"
        wishes = ["--checks", "all", "--max-examples", str(EXAMPLES), "--seed", "14", "--generation-database", "none"]
        done = subprocess.run(
            [Path(sys.executable).with_name("schemathesis"), "run", url, *wishes, "--no-color"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
    finally:
        other.kill()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert re.search(r"\d+ generated, \d+ passed", done.stdout), done.stdout[-3000:]
    assert '"level":"error"' not in other.log


def test_members_pass_commands_on_and_handle_them_where_the_owner_is_gone(
    mysql_server: Server, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ports = [free_port() for _ in range(3)]
    members = [f"http://127.0.0.1:{port}" for port in ports]
    processes = [
        Served(
            tmp_path_factory.mktemp("member"),
            mysql_server.port,
            VIEWTAIL_SERVE__PORT=str(port),
            VIEWTAIL_SERVE__MEMBERS=",".join(members),
            VIEWTAIL_SERVE__MEMBER=member,
        )
        for port, member in zip(ports, members, strict=True)
    ]
    ids = [f"ring{at}" for at in range(12)]

    def send(process: Served, key: str) -> list[Said]:
        with ThreadPoolExecutor(6) as callers:
            return list(callers.map(lambda one: process.post(one, "deposit", key, amount=1), ids))

    try:
        for one in processes:
            one.start()
        found = [send(one, f"k{at}") for at, one in enumerate(processes)]
        owners = [[said.headers["viewtail-member"] for said in by_one] for by_one in found]
        assert owners[0] == owners[1] == owners[2] and set(owners[0]) == set(members)
        assert [said.body["version"] for by_one in found for said in by_one] == ["1"] * 12 + ["2"] * 12 + ["3"] * 12
        again = send(processes[1], "k0")
        assert all(said.body["is_repeated"] and said.body["version"] == "1" for said in again)
        refused = processes[0].post(ids[0], "deposit", "r", amount=-100)
        assert (refused.status, refused.kind) == (422, "refused")

        processes[2].kill()
        after = send(processes[0], "k3")
        expected = [members[0] if owner == members[2] else owner for owner in owners[0]]
        assert [said.headers["viewtail-member"] for said in after] == expected
        assert {said.body["version"] for said in after} == {"4"}

        processes[1].signal(signal.SIGSTOP)  # it takes connections and says nothing
        assert {said.body["version"] for said in send(processes[0], "k4")} == {"5"}
    finally:
        for one in processes:
            one.kill()
    for entity_id in ids:
        assert served.ask("GET", f"/{TABLE}/{entity_id}").body == {"state": {"balance": 5}, "version": "5"}
