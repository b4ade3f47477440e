"""Settings: what is read from where, what wins, and what no message or repr may show."""

from __future__ import annotations

from pathlib import Path

import pytest

from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.redis.store import REDIS
from projectors.stores.redis.views import RedisHash
from projectors.stores.registry import store_named
from projectors.views import Entity
from viewtail.changes.errors import SettingsError
from viewtail.servers.addresses import MYSQL, AddressForm, parse
from viewtail.settings import Settings, known_names, load, variable

SECRET = "cAnArY-p4ss"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(toml: str | None = None, **environ: str) -> Settings:
    if toml is not None:
        Path("viewtail.toml").write_text(toml)
    return load(None, environ)


def test_an_address_is_taken_apart_and_percent_decoded() -> None:
    loaded = settings(VIEWTAIL_SOURCE__URL="mysql://me:p%40ss%2F%23@db.example:3307/shop")
    address = loaded.source_address()
    assert (address.host, address.port, address.user, address.password) == (
        "db.example",
        3307,
        "me",
        "p@ss/#",
    )
    assert address.database is None
    assert loaded.source_schema == "shop"


def test_the_store_is_by_default_the_source_and_database_viewtail() -> None:
    loaded = settings(VIEWTAIL_SOURCE__URL="mysql://me:pw@db/shop")
    assert loaded.store_address().host == "db"
    assert loaded.store_address().database == loaded.store_database == "viewtail"
    assert loaded.primary_address() == loaded.source_address()
    other = settings(VIEWTAIL_SOURCE__URL="mysql://me@db", VIEWTAIL_MYSQL__URL="mysql://you@store/views")
    assert (other.store_address().host, other.store_database) == ("store", "views")


def test_the_primary_has_the_sources_password_where_its_address_has_none() -> None:
    loaded = settings(
        VIEWTAIL_SOURCE__URL="mysql://replica",
        VIEWTAIL_SOURCE__PRIMARY_URL="mysql://primary",
        VIEWTAIL_SOURCE__USER="me",
        VIEWTAIL_SOURCE__PASSWORD="pw",
    )
    address = loaded.primary_address()
    assert (address.host, address.user, address.password) == ("primary", "me", "pw")


def test_a_unix_socket_and_an_ipv6_host_are_addresses() -> None:
    assert (
        settings(VIEWTAIL_SOURCE__URL="mysql://me@localhost/?socket=/run/m.sock").source_address().unix_socket
        == "/run/m.sock"
    )
    assert settings(VIEWTAIL_SOURCE__URL="mysql://me@[::1]:3306").source_address().host == "::1"
    assert parse("unix:///run/redis.sock?db=3", REDIS).socket == "/run/redis.sock"


def test_the_file_is_read_and_the_environment_wins() -> None:
    text = '[source]\nurl = "mysql://a@file"\nheartbeat_s = 3\n[run]\nbatch_rows = 7\n'
    loaded = settings(text, VIEWTAIL_SOURCE__URL="mysql://b@environment")
    assert (loaded.source_address().host, loaded.source.heartbeat_s, loaded.run.batch_rows) == (
        "environment",
        3,
        7,
    )


@pytest.mark.parametrize("login", ['password = "old"', 'user = "old"\npassword = "old"'])
def test_a_login_in_the_environment_wins_over_all_of_the_files(login: str) -> None:
    loaded = settings(
        f'[source]\nurl = "mysql://a@file"\n{login}', VIEWTAIL_SOURCE__URL="mysql://new:newer@environment"
    )
    assert (loaded.source_address().user, loaded.source_address().password) == ("new", "newer")


def test_a_password_in_the_environment_wins_over_a_password_file_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    text = '[source]\nurl = "mysql://a@file"\npassword_file = "old"'
    assert settings(text, VIEWTAIL_SOURCE__PASSWORD="new").source_address().password == "new"


def test_another_file_can_be_named() -> None:
    Path("other.toml").write_text('views = "mine:all"')
    assert load(Path("other.toml"), {}).views == "mine:all"
    assert load(None, {"VIEWTAIL_CONFIG": "other.toml"}).views == "mine:all"


def test_secrets_come_from_files_without_their_newline(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from-file\n")
    loaded = settings(
        VIEWTAIL_SOURCE__URL="mysql://me@db",
        VIEWTAIL_SOURCE__PASSWORD_FILE="secret",
        VIEWTAIL_ELASTICSEARCH__URL="https://es",
        VIEWTAIL_ELASTICSEARCH__API_KEY_FILE="secret",
    )
    assert loaded.source_address().password == "from-file"
    assert loaded.elasticsearch.key() == "from-file"


def test_a_password_that_changes_in_its_file_is_used_for_the_next_session(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("first")
    source = settings(VIEWTAIL_SOURCE__URL="mysql://me@db", VIEWTAIL_SOURCE__PASSWORD_FILE="secret").source_access()
    (tmp_path / "secret").write_text("second")
    assert (source.address().password, source.primary().password) == ("second", "second")


def test_a_variable_may_be_a_file_in_the_directory_of_secrets(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "VIEWTAIL_SOURCE__PASSWORD").write_text("from-directory\n")
    (secrets / "viewtail_source__url").write_text("mysql://me@secret")
    (secrets / "of_another_program").write_text("x")
    found = settings('[source]\nurl = "mysql://a:pw@file"\n', VIEWTAIL_SECRETS_DIR=str(secrets)).source_address()
    assert (found.host, found.user, found.password) == ("secret", "me", "from-directory")
    found = settings(VIEWTAIL_SECRETS_DIR=str(secrets), VIEWTAIL_SOURCE__URL="mysql://you@env").source_address()
    assert (found.host, found.user, found.password) == ("env", "you", "from-directory")


def test_what_is_wrong_with_the_directory_of_secrets_is_told_without_them(tmp_path: Path) -> None:
    (tmp_path / "VIEWTAIL_SOURCE__PASWORD").write_text(SECRET)
    (tmp_path / "VIEWTAIL_SOURCE__URL").write_text(f"mysql://me:{SECRET}@db:port")
    told = str(refused(VIEWTAIL_SECRETS_DIR=str(tmp_path)))
    assert "VIEWTAIL_SOURCE__PASWORD is not a setting; did you mean VIEWTAIL_SOURCE__PASSWORD?" in told
    assert "VIEWTAIL_SOURCE__URL: " in told
    assert SECRET not in told
    assert "VIEWTAIL_SECRETS_DIR=no: is no directory" in str(refused(VIEWTAIL_SECRETS_DIR="no"))
    (tmp_path / "VIEWTAIL_SOURCE__PASWORD").write_bytes(b"\xff" + SECRET.encode())
    assert SECRET not in str(refused(VIEWTAIL_SECRETS_DIR=str(tmp_path)))


def test_a_mistake_in_the_file_is_told_though_the_environment_wins() -> None:
    Path("viewtail.toml").write_text("source = 3\n[Run]\nbatch_rows = 1\n[redsi]\nurl = 'x'\n[logs]\n")
    told = str(refused(VIEWTAIL_SOURCE__HEARTBEAT_S="3")).splitlines()
    assert told == [
        'viewtail.toml: source is a group of settings: write [source] and its names below, e.g. url = "..."',
        "viewtail.toml: Run is not a setting; did you mean run?",
        "viewtail.toml: redsi is not a setting; did you mean redis?",
    ]


def test_metrics_can_be_switched_off() -> None:
    assert settings(VIEWTAIL_METRICS__PORT="off").metrics.port == 0
    assert settings('[metrics]\nport = "off"').metrics.port == 0


def test_tls_is_spoken_when_asked_for_and_verifies_unless_told_otherwise() -> None:
    assert settings(VIEWTAIL_SOURCE__URL="mysql://me@db").source_address().tls is None
    context = settings(VIEWTAIL_SOURCE__URL="mysql://me@db", VIEWTAIL_SOURCE__TLS="true").source_address().tls
    assert context is not None
    assert context.check_hostname
    unverified = settings(
        VIEWTAIL_SOURCE__URL="mysql://me@db", VIEWTAIL_SOURCE__TLS_VERIFY="false"
    ).source_address().tls  # fmt: skip
    assert unverified is not None
    assert not unverified.check_hostname


def test_clients_do_not_retry_by_themselves() -> None:
    loaded = settings(
        VIEWTAIL_REDIS__URL="rediss://me:pw@cache:7000/2", VIEWTAIL_ELASTICSEARCH__URL="https://me:pw@search"
    )
    redis = loaded.redis.client()
    arguments = redis.connection_pool.connection_kwargs
    assert (arguments["host"], arguments["port"], arguments["db"]) == ("cache", 7000, 2)
    assert arguments["retry"].get_retries() == 0
    elasticsearch = loaded.elasticsearch.client()
    (node,) = elasticsearch.transport.node_pool.all()
    assert node.base_url == "https://search:9200"
    assert elasticsearch._max_retries == 0


def test_a_store_that_a_view_needs_must_have_an_address() -> None:
    entity = Entity("shop.user")
    views = [RedisHash("h", entity, fields=["a"]), SearchIndex("s", entity, fields=["a"])]
    with pytest.raises(SettingsError) as refusal:
        settings(VIEWTAIL_SOURCE__URL="mysql://db").check_stores(views)
    assert "view redis:h needs Redis" in str(refusal.value)
    assert "VIEWTAIL_REDIS__URL" in str(refusal.value)
    assert "VIEWTAIL_ELASTICSEARCH__URL" in str(refusal.value)
    settings(VIEWTAIL_REDIS__URL="redis://r", VIEWTAIL_ELASTICSEARCH__URL="http://e").check_stores(views)


def test_everything_that_is_wrong_is_told_at_once_with_its_origin() -> None:
    with pytest.raises(SettingsError) as refusal:
        settings(
            '[source]\nulr = "x"\n[run]\nbatch_rows = 0\n',
            VIEWTAIL_REDSI__URL="x",
            VIEWTAIL_LOGS__LEVEL="loud",
        )
    lines = str(refusal.value).splitlines()
    assert len(lines) == 4
    assert any(line.startswith("viewtail.toml: source.ulr is not a setting; did you mean url?") for line in lines)
    assert any(line.startswith("viewtail.toml: run.batch_rows is 0: must be 1 or more") for line in lines)
    assert any(
        line.startswith("VIEWTAIL_REDSI__URL is not a setting; did you mean VIEWTAIL_REDIS__URL?") for line in lines
    )
    assert any(line.startswith("VIEWTAIL_LOGS__LEVEL is 'loud': must be one of") for line in lines)


def test_a_token_that_is_too_short_is_told_how_long_one_must_be() -> None:
    told = str(refused(VIEWTAIL_CONSOLE__TOKEN="short"))
    assert (
        "VIEWTAIL_CONSOLE__TOKEN" in told and "16 characters or more" in told and "short" not in told.partition(":")[2]
    )


def refused(**environ: str) -> SettingsError:
    with pytest.raises(SettingsError) as refusal:
        settings(**environ)
    return refusal.value


def test_every_setting_has_a_variable_that_is_known() -> None:
    wrong = refused(**{variable(path): "" for path in known_names()})
    assert "not a setting" not in str(wrong)


def test_variables_of_tests_and_of_others_are_left_alone() -> None:
    settings(VIEWTAIL_FAILPOINT="after read:1", VIEWTAIL_STACK_CACHE="/x", PATH="/bin", VIEW="1")


def test_no_repr_shows_a_secret() -> None:
    loaded = settings(
        f'[redis]\nurl = "redis://:{SECRET}@r"\n',
        VIEWTAIL_SOURCE__URL=f"mysql://me:{SECRET}@db",
        VIEWTAIL_MYSQL__URL="mysql://me@db",
        VIEWTAIL_MYSQL__PASSWORD=SECRET,
        VIEWTAIL_ELASTICSEARCH__URL="http://e",
        VIEWTAIL_ELASTICSEARCH__API_KEY=SECRET,
    )
    shown = [
        loaded,
        loaded.source,
        loaded.source_address(),
        loaded.store_address(),
        parse(f"mysql://a:{SECRET}@b", MYSQL),
    ]
    shown += [loaded.model_dump(), loaded.model_dump_json(), loaded.elasticsearch.client()]
    for thing in shown:
        assert SECRET not in repr(thing)
        assert SECRET not in str(thing)


@pytest.mark.parametrize("group", ["SOURCE", "MYSQL", "REDIS", "ELASTICSEARCH"])
@pytest.mark.parametrize(
    "url",
    [
        f"mysql:{SECRET}@db", f"mysql://me:{SECRET}#x@db", f"mysql://me:{SECRET}/x@db", f"mysql://me:{SECRET}?x@db",
        f"mysql://me:{SECRET}@db:port", f"mysql://me:{SECRET}@db:99999", f"mysql://me:{SECRET}@[db", f"x://me:{SECRET}@db",
        f"mysql://me:{SECRET}@", f"redis://me:{SECRET}@r/{SECRET}", f"http://me:{SECRET}@e?{SECRET}={SECRET}",
    ],
)  # fmt: skip
def test_no_message_about_a_wrong_address_shows_a_secret(group: str, url: str) -> None:
    if group in ("SOURCE", "MYSQL") or not parses(url, store_named(group.lower()).address):
        error = refused(**{f"VIEWTAIL_{group}__URL": url})
        assert SECRET not in str(error)
        assert SECRET not in repr(error.__context__)
        assert error.__cause__ is None


def parses(url: str, form: AddressForm) -> bool:
    try:
        parse(url, form)
    except ValueError:
        return False
    return True


def test_a_secret_that_cannot_be_read_is_told_by_the_name_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "long").write_text(f"{SECRET}\nsecond line\n")
    (tmp_path / "empty").write_text("")
    for name, said in (
        ("folder", "cannot be read"),
        ("long", "on one line"),
        ("empty", "on one line"),
        ("no", "No such"),
    ):
        error = refused(VIEWTAIL_SOURCE__PASSWORD_FILE=name)
        assert name in str(error)
        assert said in str(error)
        assert SECRET not in str(error)
