"""Which deployment a command is about, where views.py stands for several."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from viewtail import declarations, main, settings, shards
from viewtail.changes.errors import DeclarationError, MisuseError
from viewtail.commands import status
from viewtail.signals import NOTHING_FOUND

VIEWS = """
from pydantic import SecretStr
from viewtail import Entity, IndexTable
from viewtail.datastore import DataStore, Index

class Spread:
    def shards(self):
        return {"a": "the first", "b": "the second"}

    def settings_of(self, shard, settings):
        source = settings.source.model_copy(update={"url": SecretStr(f"mysql://{shard}:3306")})
        return settings.model_copy(update={"source": source, "views": f"{settings.views}@{shard}"})

    def views_of(self, shard):
        return [IndexTable(f"by_{shard}", Entity("shop.user"), value="email")]

spread = Spread()
feed = DataStore(["mysql://a/feed"], [Index(table="by_user", properties=["user"])])
views = [IndexTable("i", Entity("shop.user"), value="email")]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "views.py").write_text(VIEWS)
    (tmp_path / "viewtail.toml").write_text('views = "views:spread"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("views", None)
    for name in [name for name in os.environ if name.startswith("VIEWTAIL_")]:
        monkeypatch.delenv(name)
    importlib.invalidate_caches()
    yield
    sys.modules.pop("views", None)


def test_a_command_without_a_choice_is_about_all_deployments() -> None:
    found = shards.targets(None)
    assert [(target.shard, target.what) for target in found] == [("a", "the first"), ("b", "the second")]
    assert [target.load().source_address().host for target in found] == ["a", "b"]


def test_what_is_about_one_deployment_asks_for_a_choice() -> None:
    with pytest.raises(MisuseError, match="VIEWTAIL_SHARD=a"):
        shards.one(None)
    with pytest.raises(MisuseError, match="VIEWTAIL_SHARD=a"):
        declarations.load("views:spread")
    with pytest.raises(SystemExit) as ended:
        main.main(["status", "--watch"])
    assert ended.value.code == 2


def test_a_chosen_deployment_has_its_own_settings_and_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTAIL_SHARD", "b")
    loaded = shards.one(None)
    assert loaded.source_address().host == "b"
    (target,) = shards.targets(None)
    assert (target.shard, target.load()) == (None, loaded)
    assert [view.id for view in declarations.load(loaded.views)] == ["mysql:by_b"]


def test_a_run_keeps_all_of_them() -> None:
    parts = shards.targets(None)
    assert [(part.shard, part.settings.source_address().host) for part in parts] == [("a", "a"), ("b", "b")]
    assert [part.names("mysql") for part in parts] == ["a/mysql", "b/mysql"]


@pytest.mark.parametrize(
    ("toml", "shard", "said"),
    [
        ('views = "views:spread"', "c", "is 'c', which is no deployment; there are a, b"),
        ('views = "views:views"', "a", "VIEWTAIL_SHARD is set, and the views of these settings are not in several"),
        ('views = "views:nothing"', "a", "views.py: there is no 'nothing' in it"),
        ('views = "views:spread"\n[source]\nurl = "mysql://one"', "a", "unset url of [source]"),
        ('views = "views:feed"\n[mysql]\nurl = "mysql://one"', "0.0", "unset url of [mysql]"),
    ],
    ids=["unknown", "not spread", "no views", "with an address", "with two"],
)
def test_what_does_not_fit_together_is_refused(
    toml: str, shard: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("viewtail.toml").write_text(toml)
    monkeypatch.setenv("VIEWTAIL_SHARD", shard)
    with pytest.raises(MisuseError) as found:
        shards.one(None)
    assert said in str(found.value)


def test_a_mistake_in_views_py_is_told_with_its_line_where_a_deployment_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("views.py").write_text("from viewtail import Entity\nspread = Entity(\n")
    monkeypatch.setenv("VIEWTAIL_SHARD", "a")
    with pytest.raises(DeclarationError, match=r"views\.py:2: "):
        shards.one(None)


def test_a_mistake_in_views_py_is_told_by_commands_that_need_no_views(capsys: pytest.CaptureFixture[str]) -> None:
    """It may name the servers: that the settings name none is no mistake, perhaps."""
    Path("views.py").write_text("from viewtail import Entity\nspread = Entity(\n")
    for command in (["status"], ["dead-letters", "list"], ["pause", "--all"]):
        with pytest.raises(SystemExit) as ended:
            main.main(command)
        assert ended.value.code == 2 and "views.py:2: " in capsys.readouterr().err


def test_an_address_of_the_source_beside_a_spread_declaration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("viewtail.toml").write_text('views = "views:spread"\n[source]\nurl = "mysql://one"')
    with pytest.raises(SystemExit) as ended:
        main.main(["verify"])
    assert ended.value.code == 2 and "unset url of [source]" in capsys.readouterr().err


def test_a_command_is_called_for_each_and_the_worst_code_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def once(loaded: settings.Settings, **_: object) -> int:
        asked.append(host := loaded.source_address().host)
        assert "VIEWTAIL_SHARD" not in os.environ
        return {"a": 1, "b": 0}[host]

    monkeypatch.setattr(status, "status", once)
    with pytest.raises(SystemExit) as ended:
        main.main(["status"])
    assert (asked, ended.value.code) == (["a", "b"], 1)
    assert capsys.readouterr().err == "-- a: the first\n-- b: the second\n"


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, NOTHING_FOUND), 0), ((NOTHING_FOUND, NOTHING_FOUND), 1), ((0, 1), 1), ((1, NOTHING_FOUND), 1)],
)
def test_what_is_found_in_one_of_several_deployments_is_found(
    codes: tuple[int, int], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [*codes]
    monkeypatch.setattr("viewtail.commands.reading.find", lambda *_, **__: left.pop())
    with pytest.raises(SystemExit) as ended:
        main.main(["find", "by_email", "a"])
    assert ended.value.code == code


@pytest.mark.parametrize(
    "words",
    [
        *(["replay"], ["replay", "x", "--all"], ["replay", "x", "--since", "never", "--into", "t"]),
        *(["pause"], ["pause", "x", "--reason", "two\nlines"], ["resume"], ["rebuild", "x", "--keep", "long"]),
        *(["archive", "t", "--older-than", "long"], ["restore", "t"], ["restore", "a.b.c", "--all"]),
    ],
)
def test_what_no_deployment_would_take_is_told_once(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.startswith("viewtail: error: ") and "--" not in told.split(":")[0], told
    assert "-- a: the first" not in told


def test_each_of_several_deployments_is_given_the_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = b"ALTER TABLE shop.user DROP COLUMN email;"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(statement)))
    with pytest.raises(SystemExit) as ended:
        main.main(["contract", "check", "-", "--offline"])
    told = capsys.readouterr()
    assert (ended.value.code, told.err) == (1, "-- a: the first\n-- b: the second\n")
    assert "by_a" in told.out and "by_b" in told.out


def test_a_name_that_one_of_several_deployments_does_not_know_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise MisuseError("in b")

    monkeypatch.setattr("viewtail.commands.schema.deployed_to_ask", refused)
    with pytest.raises(SystemExit) as ended:
        main.main(["schema", "by_b"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "-- a: the first\n   nothing of that name is here\n-- b: the second\nviewtail: error: in b\n"
    )
    with pytest.raises(SystemExit) as ended:
        main.main(["schema", "by_c"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and "viewtail: error: a: " in told and "viewtail: error: b: " in told


SEVERAL = """
from viewtail import Entity, IndexTable
from viewtail.several import Source, Sources

account = Entity("bank.account", key="id", version="version", append_only=True, order="event_id")
sources = Sources(
    shop=Source("mysql://one/x", [IndexTable("by_email", Entity("shop.user"), value="email")], server_id=7),
    bank=Source("mysql://poller:p@two", [IndexTable("by_balance", account, value="balance")], mode="poll", poll_s=0.5),
)
"""


def several(text: str = SEVERAL, toml: str = "") -> list[shards.Target]:
    Path("views.py").write_text(text)
    Path("viewtail.toml").write_text(f'views = "views:sources"\n{toml}')
    sys.modules.pop("views", None)
    importlib.invalidate_caches()
    return shards.targets(None)


def test_sources_are_read_each_in_its_own_way_and_share_nothing() -> None:
    shop, bank = (part.settings for part in several(toml='[source]\nuser = "reader"\npassword = "r"'))
    assert (shop.source.mode, bank.source.mode, bank.source.poll_s) == ("binlog", "poll", 0.5)
    assert [view.id for view in declarations.load(bank.views)] == ["mysql:by_balance"]
    at = [(one.source_address().host, one.source_address().user, one.store_address()) for one in (shop, bank)]
    assert [(host, user, store.host, store.database) for host, user, store in at] == [
        ("one", "reader", "one", "viewtail_shop"),
        ("two", "reader", "two", "viewtail_bank"),
    ]
    assert (shop.source.database, shop.source.server_id) == ("viewtail_shop", 7)


def test_the_tables_of_all_sources_may_be_on_one_server_of_their_own() -> None:
    found = [part.settings.store_address() for part in several(toml='[mysql]\nurl = "mysql://keeper:k@three/own"')]
    assert [(one.host, one.user, one.password, one.database) for one in found] == [
        ("three", "keeper", "k", "own_shop"),
        ("three", "keeper", "k", "own_bank"),
    ]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("poll_s=0.5", "poll_s=0", "Source bank: poll_s: "),
        ('mode="poll"', 'mode="binlog"', 'poll_s: for mode = "poll" alone'),
        ('mode="poll"', 'mode="pole"', "mode is 'binlog' or 'poll', not 'pole'"),
        ("poll_s", "pole_s", "Source bank: pole_s: "),
        ("bank=", "Bank=", "'Bank' becomes a part of a database's name"),
        ("by_balance", "by_email", "mysql:by_email is a view of two sources"),
        ("mysql://poller:p@two", "redis://poller:p@two", "Source bank: the address "),
        ("Sources(", "Sources() or Sources(", "name at least one"),
    ],
)
def test_sources_that_cannot_work_are_refused_by_name_and_no_secret_is_told(before: str, now: str, said: str) -> None:
    assert before in SEVERAL
    with pytest.raises(MisuseError) as found:
        [declarations.load(part.settings.views) for part in several(SEVERAL.replace(before, now))]
    assert said in str(found.value) and "poller:p" not in str(found.value)
