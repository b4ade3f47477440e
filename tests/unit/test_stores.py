"""The registry of stores: a new one is a folder and one line, and the light parts import no client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from projectors.binding import bind
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import Entity, View
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

CHECKOUT = Path(__file__).parents[2]
USER = Entity("shop.user")
TABLE = Table(
    schema="shop",
    name="user",
    columns=(
        Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False),
        Column(
            name="email",
            kind=Kind.TEXT,
            declared="varchar(100)",
            is_nullable=True,
            charset="utf8mb4",
            length=100,
        ),
        Column(name="rank", kind=Kind.INTEGER, declared="int", is_nullable=True),
        Column(name="viewtail_x", kind=Kind.INTEGER, declared="int", is_nullable=True),
    ),
    primary_key=("id",),
)

NEW_STORE = """
from pathlib import Path
from projectors.stores import registry
from tests.support.log_sink import LogStore, LogView
registry.STORES += (LogStore(),)                                 # the one line

Path("views.py").write_text('''
from tests.support.log_sink import LogView
from viewtail import Entity
views = [LogView("user", Entity("shop.user"), fields=["email"])]
''')
from viewtail.changes.errors import DeclarationError, SettingsError
from viewtail.operations import check
from projectors.binding import bind
from projectors.catalog import Catalog
from projectors.views import Entity
from viewtail.servers.sessions import MySQLAddress
from tests.unit.test_stores import TABLE
from viewtail import declarations, settings
from viewtail.commands import init

assert settings.variable(("log", "url")) == "VIEWTAIL_LOG__URL"
assert ("log", "password_file") in settings.known_names()
source = {"VIEWTAIL_SOURCE__URL": "mysql://me@db"}
loaded = settings.load(None, {**source, "VIEWTAIL_LOG__URL": "redis://log"})
views = declarations.load("views:views")
loaded.check_stores(views)
try:
    settings.load(None, source).check_stores(views)
except SettingsError as error:
    assert "view log:user needs the log: the address of the log is not set; set VIEWTAIL_LOG__URL=" in str(error)
else:
    raise AssertionError("an address is needed")
servers = check.needed_servers(Catalog(servers=loaded.servers()), views)
assert "-- On the log: nothing to grant" in check.grants(servers, views)
log = next(store for store, access in servers.stores if store.name == "log")
assert [finding.where for finding in log.checks(loaded.access(log), views)] == ["log"]
assert "[log]" in init._toml(loaded, None)
try:
    bind([LogView("none", Entity("shop.user"), fields=["email"])], lambda *_: TABLE)
except DeclarationError as error:
    assert "takes no name that begins" in str(error)
else:
    raise AssertionError("the store's own rule holds")
assert bind(views, lambda *_: TABLE)[0].id == "log:user"
"""


def python(code: str, folder: Path) -> str:
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_new_store_is_one_line_in_the_registry(tmp_path: Path) -> None:
    python(NEW_STORE, tmp_path)


@pytest.mark.parametrize(
    ("store", "client"), [("redis", "redis"), ("elasticsearch", "elasticsearch"), ("kafka", "confluent_kafka")]
)
def test_a_sink_imports_the_client_of_its_own_store_alone(store: str, client: str, tmp_path: Path) -> None:
    code = (
        "import sys, viewtail.process\n"
        "from projectors.stores.access import Access\n"
        "from projectors.stores.registry import store_named\n"
        "from viewtail import settings\n"
        "loaded = settings.load(None, {'VIEWTAIL_SOURCE__URL': 'mysql://db', 'VIEWTAIL_REDIS__URL': 'redis://r',"
        " 'VIEWTAIL_ELASTICSEARCH__URL': 'http://e', 'VIEWTAIL_KAFKA__URL': 'kafka://k'})\n"
        "print(*sorted({'redis', 'elasticsearch', 'confluent_kafka'} & set(sys.modules)), sep=',')\n"
        f"found = store_named({store!r})\n"
        "found.sink(loaded.access(found), [], 'pipeline')\n"
        "print(*sorted({'redis', 'elasticsearch', 'confluent_kafka'} & set(sys.modules)), sep=',')\n"
    )
    assert python(code, tmp_path).split("\n") == ["", client, ""]


def test_view_classes_are_light(tmp_path: Path) -> None:
    heavy = "{'pydantic', 'pymysql', 'redis', 'elasticsearch', 'confluent_kafka'}"
    code = f"import sys, viewtail; print(*{heavy} & set(sys.modules))"
    assert python(code, tmp_path).strip() == ""


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (SearchIndex("viewtail-x", USER, fields=["email"]), "'viewtail-'"),
        (SearchIndex("viewtail.x", USER, fields=["email"]), "'viewtail.'"),
        (SearchIndex("s", USER, fields=["viewtail_x"]), "field viewtail_x"),
    ],
)
def test_names_that_viewtail_keeps_for_itself_in_elasticsearch_are_refused_at_once(view: View, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        bind([view], lambda *_: TABLE)


@pytest.mark.parametrize(
    ("view", "fingerprint"),
    [
        (IndexTable("by_email", USER, value=["email", "rank"]), "d39f210a0770d05d"),
        (RedisHash("user", USER, fields=["email"]), "21819b9c28a52f95"),
        (RedisHash("user2", USER, fields=["email"], key="u:{id}"), "40523a66adfcfc56"),
        (RedisJson("json", USER, fields=["email", "rank"]), "483edc17326b6761"),
        (SearchIndex("users", USER, fields=["email"]), "c615130a60a297b8"),
        (
            SearchIndex("typed", USER, fields={"email": {"type": "keyword"}, "rank": "long"}),
            "9b66409e289837aa",
        ),
    ],
)
def test_views_that_were_filled_before_stores_had_rooms_are_not_filled_again(view: View, fingerprint: str) -> None:
    assert bind([view], lambda *_: TABLE)[0].fingerprint[:16] == fingerprint
