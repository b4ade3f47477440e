"""Whatever is wrong with TLS is named, and what to do: a certificate of the client that is missing, is not the one that
is required, has expired or is signed by nobody whom the server trusts; one of the server that is not to be trusted; and
TLS that only one side speaks."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pymysql
import pytest
from cryptography import x509

import stack.mariadb
import stack.mysql
import stack.redis
from projectors.stores.registry import store_named
from stack import Server
from stack.server import free_port
from tests.support.authority import DAY, HERE, Authority
from viewtail import Entity, RedisHash, SearchIndex, Topic
from viewtail.changes.errors import StoreError, ViewtailError
from viewtail.servers.sessions import open_session
from viewtail.settings import load

PASSWORD = "cAnArY"
item = Entity("shop.item")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates: server, and of clients good, other (another subject), expired and foreign; elsewhere is a server's
    with another host name."""
    into = tmp_path_factory.mktemp("certificates")
    ours, foreign = Authority("ours"), Authority("foreign")
    ours.write(into / "server", HERE)
    ours.write(into / "elsewhere", [x509.DNSName("db.example")])
    ours.write(into / "stale", HERE, valid=-DAY)
    ours.write(into / "good", subject="app")
    ours.write(into / "other", subject="another")
    ours.write(into / "expired", subject="app", valid=-DAY)
    foreign.write(into / "foreign", HERE, subject="app")
    return into


def tls_of(group: str, folder: Path, client: str | None = None, trusts: str = "server") -> dict[str, str]:
    """Settings."""
    found = {f"VIEWTAIL_{group}__TLS_CA": str(folder / trusts / "ca.pem")}
    if client is not None:
        found[f"VIEWTAIL_{group}__TLS_CERT"] = str(folder / client / "cert.pem")
        found[f"VIEWTAIL_{group}__TLS_KEY"] = str(folder / client / "key.pem")
    return found


# -- MySQL and MariaDB ---------------------------------------------------------------------------------------------

ACCOUNTS = {
    "any": "REQUIRE X509",
    "subject": "REQUIRE SUBJECT '/CN=app'",
    "issuer": "REQUIRE ISSUER '/CN=nobody'",
    "tls": "REQUIRE SSL",
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(stack.mysql, marks=pytest.mark.mysql), pytest.param(stack.mariadb, marks=pytest.mark.mariadb)],
    ids=["mysql", "mariadb"],
)
def database(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    kind: ModuleType = request.param
    own = folder / "server"
    options = [f"--ssl-ca={own}/ca.pem", f"--ssl-cert={own}/cert.pem", f"--ssl-key={own}/key.pem"]
    started: Server = kind.start(tmp_path_factory.mktemp("tls") / "data", options=options)
    connection: Any = pymysql.connect(host="127.0.0.1", port=started.port, user="root", autocommit=True)
    with closing(connection), connection.cursor() as cursor:
        for user, require in ACCOUNTS.items():
            cursor.execute(f"CREATE USER {user}@'%' IDENTIFIED BY '{PASSWORD}' {require}")
    yield started
    started.kill()


def refused(database: Server, user: str, role: str = "source", **tls: str) -> ViewtailError:
    """What is said to that user; the settings are those of the source, or of viewtail's own tables."""
    group = "SOURCE" if role == "source" else "MYSQL"
    url = f"mysql://{user}:{PASSWORD}@127.0.0.1:{database.port}"
    loaded = load(None, {"VIEWTAIL_SOURCE__URL": url, f"VIEWTAIL_{group}__URL": url, **tls})
    address = loaded.source_address() if role == "source" else loaded.store_address()
    with pytest.raises(ViewtailError) as caught:
        open_session(address, role=role).close()
    assert PASSWORD not in str(caught.value) and f"127.0.0.1:{database.port}" in str(caught.value)
    return caught.value


@pytest.mark.parametrize("user", ACCOUNTS)
def test_an_account_that_wants_more_than_a_password_is_told_of_what_it_may_want(
    database: Server, folder: Path, user: str
) -> None:
    plain = refused(database, user)
    assert "REQUIRE SSL) needs tls_ca" in str(plain) and "tls_cert and tls_key" in str(plain)
    if user == "tls":
        return
    without = refused(database, user, **tls_of("SOURCE", folder))
    for one in (plain, without):
        assert isinstance(one, StoreError) and "1045" in str(one)
        assert "client certificate (REQUIRE X509, SUBJECT or ISSUER)" in str(one)
    assert "none is set: set tls_cert and tls_key" in str(without)


@pytest.mark.parametrize(("user", "client"), [("subject", "other"), ("issuer", "good")])
def test_a_client_certificate_that_is_not_the_required_one_is_shown_as_the_server_compares_it(
    database: Server, folder: Path, user: str, client: str
) -> None:
    said = str(refused(database, user, **tls_of("SOURCE", folder, client)))
    assert "is not the one that the account requires (REQUIRE SUBJECT or ISSUER)" in said
    subject = "another" if client == "other" else "app"
    assert f"subject '/CN={subject}', issuer '/CN=ours', valid until " in said


@pytest.mark.parametrize("role", ["source", "store"])
def test_a_client_certificate_that_expired_is_named_however_the_server_ends_it(
    database: Server, folder: Path, role: str
) -> None:
    for _ in range(6):  # mostly the alert is lost, as viewtail writes on
        error = refused(database, "any", role, **tls_of("SOURCE" if role == "source" else "MYSQL", folder, "expired"))
        assert isinstance(error, StoreError), error
        assert f"tls_cert ({folder / 'expired' / 'cert.pem'}), expired on " in str(error)


def test_the_required_certificate_logs_in(database: Server, folder: Path) -> None:
    for user, client in (("any", "good"), ("any", "other"), ("subject", "good"), ("tls", "good")):
        url = f"mysql://{user}:{PASSWORD}@127.0.0.1:{database.port}"
        loaded = load(None, {"VIEWTAIL_SOURCE__URL": url, **tls_of("SOURCE", folder, client)})
        open_session(loaded.source_address(), role="source").close()


def test_a_client_certificate_that_nobody_there_trusts_is_shown(database: Server, folder: Path) -> None:
    for _ in range(6):
        said = str(refused(database, "any", **tls_of("SOURCE", folder, "foreign")))
        assert "no authority that the server trusts has signed the client certificate" in said
        assert "issuer '/CN=foreign'" in said


def test_a_server_that_a_wrong_authority_is_set_for_is_named(database: Server, folder: Path) -> None:
    said = str(refused(database, "any", **tls_of("SOURCE", folder, "good", trusts="foreign")))
    assert "no authority that is trusted has signed the server's certificate: set tls_ca" in said


# -- any server that speaks TLS ------------------------------------------------------------------------------------


@contextmanager
def shaking_hands(own: Path, clients: Path | None = None) -> Iterator[int]:
    """The port of a server that speaks TLS with that certificate, wants one of clients that `clients` signed, and ends
    the connection then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own / "cert.pem", own / "key.pem")
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients / "ca.pem")

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            try:
                with context.wrap_socket(connection, server_side=True) as spoken:
                    spoken.recv(1000)
            except OSError:
                connection.close()

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


VIEWS = {
    "redis": RedisHash("item", item, fields=["name"]),
    "elasticsearch": SearchIndex("item", item, fields={"name": "keyword"}),
    "kafka": Topic("shop.item", item),
}
SCHEMES = {"redis": "rediss", "elasticsearch": "https", "kafka": "kafkas"}


def seen(store: str, port: int, scheme: str | None = None, host: str = "127.0.0.1", **tls: str) -> str:
    """What check says of a store there."""
    url = f"{scheme or SCHEMES[store]}://{host}:{port}"
    loaded = load(None, {"VIEWTAIL_SOURCE__URL": "mysql://127.0.0.1:1", f"VIEWTAIL_{store.upper()}__URL": url, **tls})
    found = store_named(store).checks(loaded.access(store_named(store)), [VIEWS[store]])
    (one,) = (one for one in found if one.what == "reachable")
    assert f"{host}:{port}" in one.seen, one
    return f"{one.level.value} {one.seen} | {one.mend}"


def together(*asked: Callable[[], str]) -> list[str]:
    """The client of Kafka tries for seconds each time."""
    with ThreadPoolExecutor(len(asked)) as callers:
        return list(callers.map(lambda one: one(), asked))


@pytest.mark.parametrize("store", SCHEMES)
def test_a_server_that_is_not_to_be_trusted_is_named_by_what_is_wrong(folder: Path, store: str) -> None:
    cases = {
        ("server", "foreign"): "set tls_ca",
        ("elsewhere", "server"): "names other hosts: use a host name that is in it",
        ("stale", "server"): "the server's certificate has expired: renew it",
    }

    def said(own: str, trusts: str) -> str:
        with shaking_hands(folder / own) as port:
            return seen(store, port, **tls_of(store.upper(), folder, trusts=trusts))

    for text, says in zip(together(*(partial(said, *case) for case in cases)), cases.values(), strict=True):
        if store == "kafka":  # its client says no more than that it does not trust the broker
            says = "set tls_ca to the authority that signed the server's certificate, which must name this host"
        assert says in text


@pytest.mark.parametrize("store", SCHEMES)
def test_a_client_certificate_that_a_store_refuses_is_named(folder: Path, store: str) -> None:
    cases = {
        None: "wants a client certificate, and got none: set tls_cert and tls_key",
        "expired": "cert.pem), expired on ",
        "foreign": "no authority that the server trusts has signed the client certificate",
    }

    def said(client: str | None) -> str:
        with shaking_hands(folder / "server", folder / "server") as port:
            return seen(store, port, **tls_of(store.upper(), folder, client))

    for text, says in zip(together(*(partial(said, one) for one in cases)), cases.values(), strict=True):
        assert says in text


def test_tls_that_the_server_alone_speaks_is_named(folder: Path) -> None:
    plain = {"redis": "redis", "elasticsearch": "http", "kafka": "kafka"}
    with shaking_hands(folder / "server") as port:
        asked = [partial(seen, store, port, scheme) for store, scheme in plain.items()]
        for store, text in zip(plain, together(*asked), strict=True):
            assert SCHEMES[store] in text


@pytest.mark.redis
def test_what_a_real_redis_with_tls_refuses_is_named(folder: Path, tmp_path: Path) -> None:
    own, port = folder / "server", free_port()
    options = ["--tls-port", str(port), "--tls-ca-cert-file", f"{own}/ca.pem", "--tls-cert-file", f"{own}/cert.pem"]
    started = stack.redis.start(tmp_path / "redis", options=[*options, "--tls-key-file", f"{own}/key.pem"])
    try:
        assert "set tls_cert and tls_key" in seen("redis", port, **tls_of("REDIS", folder))
        assert "expired on " in seen("redis", port, **tls_of("REDIS", folder, "expired"))
        url = f"rediss://127.0.0.1:{port}"
        settings = {"VIEWTAIL_SOURCE__URL": "mysql://127.0.0.1:1", "VIEWTAIL_REDIS__URL": url}
        section = load(None, {**settings, **tls_of("REDIS", folder, "good")}).section(store_named("redis"))
        with closing(section.client()) as client:
            assert client.ping()
    finally:
        started.kill()
