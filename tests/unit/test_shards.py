"""Which deployment a command is about, where views.py stands for several."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from changes.errors import DeclarationError, MisuseError
from viewtail import declarations, main, shards
from viewtail.shards import NotOneShardError

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


def test_a_command_without_a_choice_is_told_of_all_deployments() -> None:
    with pytest.raises(NotOneShardError, match="VIEWTAIL_SHARD=a") as found:
        shards.load(None)
    assert found.value.shards == {"a": "the first", "b": "the second"}
    with pytest.raises(NotOneShardError):
        declarations.load("views:spread")


def test_a_chosen_deployment_has_its_own_settings_and_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTAIL_SHARD", "b")
    loaded = shards.load(None)
    assert loaded.source_address().host == "b"
    assert [view.id for view in declarations.load(loaded.views)] == ["mysql:by_b"]


def test_a_run_keeps_all_of_them() -> None:
    parts = shards.parts(None)
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
        shards.load(None)
    assert said in str(found.value)


def test_a_mistake_in_views_py_is_told_with_its_line_where_a_deployment_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("views.py").write_text("from viewtail import Entity\nspread = Entity(\n")
    monkeypatch.setenv("VIEWTAIL_SHARD", "a")
    with pytest.raises(DeclarationError, match=r"views\.py:2: "):
        shards.load(None)


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

    def once(arguments: object) -> int:
        asked.append(os.environ.get("VIEWTAIL_SHARD"))
        loaded = shards.load(None)
        return {"a": 1, "b": 0}[loaded.source_address().host]

    monkeypatch.setattr(main, "_command", once)
    with pytest.raises(SystemExit) as ended:
        main.main(["status"])
    assert (asked, ended.value.code) == ([None, "a", "b"], 1)
    assert capsys.readouterr().err == "-- a: the first\n-- b: the second\n"
    assert "VIEWTAIL_SHARD" not in os.environ


SEVERAL = """
from viewtail import Entity, IndexTable
from viewtail.several import Source, Sources

account = Entity("bank.account", key="id", version="version", append_only=True, order="event_id")
sources = Sources(
    shop=Source("mysql://one/x", [IndexTable("by_email", Entity("shop.user"), value="email")], server_id=7),
    bank=Source("mysql://poller:p@two", [IndexTable("by_balance", account, value="balance")], mode="poll", poll_s=0.5),
)
"""


def several(text: str = SEVERAL, toml: str = "") -> list[shards.Part]:
    Path("views.py").write_text(text)
    Path("viewtail.toml").write_text(f'views = "views:sources"\n{toml}')
    sys.modules.pop("views", None)
    importlib.invalidate_caches()
    return shards.parts(None)


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
