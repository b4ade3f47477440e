"""Wrong settings, declarations and arguments: each has a message that names it, an exit code, and no traceback.

Most run in this process, for speed; the last ones as the real command. Nothing is written anywhere by any of them.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest

from stack.server import Server
from viewtail.main import main

SCHEMA = "bad_input"
CANARY = "cAnArY-p4ss"
GOOD_URL = "mysql://me@127.0.0.1:1"

TABLES = f"""
CREATE DATABASE {SCHEMA};
CREATE TABLE {SCHEMA}.user (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  email VARCHAR(255) NULL UNIQUE,
  login VARCHAR(700) NOT NULL UNIQUE,
  age INT NOT NULL,
  weight FLOAT NOT NULL,
  about TEXT,
  settings JSON,
  old ENUM('a', 'b') CHARACTER SET binary,
  revision BIGINT NULL,
  version INT NOT NULL
);
CREATE TABLE {SCHEMA}.keyless (a INT NOT NULL, b VARCHAR(10));
CREATE VIEW {SCHEMA}.seen AS SELECT id FROM {SCHEMA}.user
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One wrong input."""

    arguments: tuple[str, ...] = ("run",)
    environ: dict[str, str] = field(default_factory=dict)
    toml: str | None = None
    views: str | None = None  # 'entity' and all classes are there
    said: str
    code: int = 2


def env(name: str, value: str, said: str) -> Case:
    return Case(environ={f"VIEWTAIL_{name}": value}, said=said)


def toml(text: str, said: str) -> Case:
    return Case(toml=text, said=said)


def views(text: str, said: str) -> Case:
    return Case(views=f"views = [{text}]", said=said)


def arguments(text: str, said: str, code: int = 2) -> Case:
    return Case(arguments=tuple(text.split()), said=said, code=code)


SETTINGS = [
    env("SOURCE__ULR", "x", "VIEWTAIL_SOURCE__ULR is not a setting; did you mean VIEWTAIL_SOURCE__URL?"),
    env("SOURCE_URL", "x", "VIEWTAIL_SOURCE_URL is not a setting; did you mean VIEWTAIL_SOURCE__URL?"),
    env("SORUCE__URL", "x", "did you mean VIEWTAIL_SOURCE__URL?"),
    env("REDIS__PASWORD", "x", "did you mean VIEWTAIL_REDIS__PASSWORD?"),
    env("VIEW", "x:y", "VIEWTAIL_VIEW is not a setting; did you mean VIEWTAIL_VIEWS?"),
    env("XYZZY__QUUX", "x", "VIEWTAIL_XYZZY__QUUX is not a setting"),
    env("SOURCE", "mysql://db", "VIEWTAIL_SOURCE is a group of settings"),
    env("VIEWS", "views", "VIEWTAIL_VIEWS is 'views': must be MODULE:ATTRIBUTE"),
    env("VIEWS", "views.py:views:x", "must be MODULE:ATTRIBUTE"),
    env("SOURCE__URL", "db.example.org", "VIEWTAIL_SOURCE__URL: is not the address of a source: write mysql://"),
    env("SOURCE__URL", "postgres://db", "is not the address of a source: write mysql://"),
    env("SOURCE__URL", "mysql://", "the host is missing"),
    env("SOURCE__URL", "mysql://me@db:port", "the port is a number from 1 to 65535"),
    env("SOURCE__URL", "mysql://me@db:70000", "the port is a number from 1 to 65535"),
    env("SOURCE__URL", "mysql://me:a#b@db", "a # in a password is written %23"),
    env("SOURCE__URL", "mysql://me@db?ssl=1", "a parameter that is not known (known: ?socket=)"),
    env("SOURCE__URL", "mysql://me@db/a/b", "the name of one database"),
    env("MYSQL__URL", "http://db", "VIEWTAIL_MYSQL__URL: is not an address of the form mysql://"),
    env("REDIS__URL", "localhost:6379", "it must begin with redis:// or rediss:// or unix://"),
    env("REDIS__URL", "redis://r/first", "the number of the database, e.g. /0"),
    env("ELASTICSEARCH__URL", "localhost:9200", "it must begin with http:// or https://"),
    env("SOURCE__SERVER_ID", "0", "VIEWTAIL_SOURCE__SERVER_ID is '0': must be 1 or more"),
    env("SOURCE__SERVER_ID", "many", "must be a whole number"),
    env("SOURCE__HEARTBEAT_S", "soon", "VIEWTAIL_SOURCE__HEARTBEAT_S is 'soon': must be a number"),
    env("SOURCE__HEARTBEAT_S", "0", "must be 0.1 or more"),
    env("SOURCE__DATABASE", "", "must have 1 to 64 characters"),
    env("SOURCE__TLS_VERIFY", "perhaps", "must be true or false"),
    env("SOURCE__TLS_CA", "/no/such", "tls_ca: the file '/no/such' cannot be read"),
    env("SOURCE__TLS_KEY", "/dev/null", "tls_key needs tls_cert"),
    env("SOURCE__PASSWORD_FILE", "/no/such", "password_file: the file '/no/such' cannot be read"),
    env("SOURCE__PASSWORD_FILE", "/dev/null", "must hold the secret on one line"),
    Case(
        environ={"VIEWTAIL_REDIS__PASSWORD": "a", "VIEWTAIL_REDIS__PASSWORD_FILE": "/dev/null"},
        said="VIEWTAIL_REDIS__PASSWORD, VIEWTAIL_REDIS__PASSWORD_FILE: give either password or password_file",
    ),
    Case(
        environ={"VIEWTAIL_ELASTICSEARCH__API_KEY": "a", "VIEWTAIL_ELASTICSEARCH__USER": "me"},
        said="give either an API key or user and password",
    ),
    env("METRICS__PORT", "http", "VIEWTAIL_METRICS__PORT is 'http': must be a whole number"),
    env("METRICS__PORT", "99999", "must be 65535 or less"),
    env("RUN__BATCH_ROWS", "0", "VIEWTAIL_RUN__BATCH_ROWS is '0': must be 1 or more"),
    env("RUN__BATCH_BYTES", "1", "must be 4096 or more"),
    env("LOGS__LEVEL", "loud", "must be one of 'debug', 'info', 'warning' or 'error'"),
    env("LOGS__FORMAT", "xml", "must be one of 'auto', 'json' or 'text'"),
    env("CONFIG", "/no/such.toml", "VIEWTAIL_CONFIG=/no/such.toml: there is no such file"),
    toml("[source]\nulr = 'x'", "viewtail.toml: source.ulr is not a setting; did you mean url?"),
    toml("[soruce]\nurl = 'x'", "viewtail.toml: soruce is not a setting; did you mean source?"),
    toml("[xyzzy]", "viewtail.toml: xyzzy is not a setting; there are views, source"),
    toml("[logs]\nxyzzy = 1", "logs.xyzzy is not a setting; the settings there are format, level"),
    toml("source = 'mysql://db'", "source is a group of settings: write [source]"),
    toml("[source", "viewtail.toml: is not TOML"),
    toml("[source]\nurl = 3", "viewtail.toml: source.url: must be a text"),
    toml("[run]\nbatch_rows = 1.5", "viewtail.toml: run.batch_rows is 1.5: must be a whole number"),
    toml("views = ['a']", "viewtail.toml: views: must be a text"),
]

DECLARATIONS = [
    Case(said="there is no module views"),
    Case(views="views = [", said="views.py:4: '[' was never closed"),
    Case(views="views = []", said="views is empty"),
    Case(views="view = []", said="there is no 'views' in it; did you mean view?"),
    Case(views="views = IndexTable('i', entity, value='age')", said="must be a list of views"),
    Case(views="views = [entity]", said="views[0] is a value of type Entity, not a view"),
    Case(views="views = [1 / 0]", said="views.py:4: ZeroDivisionError"),
    Case(views="views = [Tropic('t', entity)]", said="views.py:4: NameError: name 'Tropic' is not defined"),
    views("IndexTable('i', Entity('user'), value='age')", "the table is written 'schema.table'"),
    views("IndexTable('i', 'shop.user', value='age')", "the second argument must be an Entity, not str"),
    views("IndexTable('', entity, value='age')", "the name must be a non-empty string"),
    views("IndexTable('i', entity, value=[])", "value names at least one column"),
    views("IndexTable('i', entity, value=['age', 'age'])", "age is named twice"),
    views("IndexTable('i', entity, value=3)", "column names are non-empty strings, not 3"),
    views("IndexTable('i', entity)", "views.py:4: IndexTable('i'): value names at least one column"),
    views("RedisHash('h', entity, fields=[])", "fields names at least one column"),
    views("RedisHash('h', entity, fields=['age'], where='age > 1')", "where must be a function of the row"),
    views("RedisHash('h', entity, fields=['age'], key=3)", "key is a template over the key columns"),
    views("RedisJson('j', entity)", "give either fields=[...] or document=FUNCTION"),
    views("RedisJson('j', entity, document='x')", "document must be a function of the row"),
    views(
        "SearchIndex('s', entity, fields={'age': 3})",
        "the mapping is a type name ('text') or a dict, not int",
    ),
    views("SearchIndex('s', entity, fields=['age'], document=dict)", "fields must be a dict of field to type"),
    views("IndexTable('i', Entity('a.b', append_only=True), value='age')", "append_only needs version='COLUMN'"),
    views("IndexTable('i', Entity('a.b', columns_by='c'), value='age')", "newest says which of them count: give both"),
    views("IndexTable('i', Entity('a.b', columns_by='c', newest='d'), value='age')", "columns_by needs key="),
    views("IndexTable('i', Entity('a.b', only={'c': 'x'}), value='age')", "only needs append_only=True"),
    views(
        "IndexTable('i', Entity('a.b', version='v', append_only=True, only={'c': None}), value='age')",
        "a text or an integer, not None",
    ),
    views("IndexTable('i', Entity('a.b', version='v', append_only=True, only={}), value='age')", "only is a dict of"),
    Case(
        views="views = [IndexTable('i', entity, value='age'), IndexTable('i', entity, value='email')]",
        said="two views are called mysql:i; give one of them another name",
    ),
]

WITH_TABLES = [
    views(f"IndexTable('i', Entity('{SCHEMA}.usr'), value='age')", f"table {SCHEMA}.usr does not exist"),
    views(f"IndexTable('i', Entity('{SCHEMA}.seen'), value='id')", "is no base table but a view"),
    views(f"IndexTable('i', Entity('{SCHEMA}.keyless'), value='a')", f"{SCHEMA}.keyless has no primary key"),
    views("IndexTable('i', entity, value='emial')", "bad_input.user has no column emial; did you mean email?"),
    views(f"IndexTable('i', Entity('{SCHEMA}.user', key='email'), value='age')", "email of bad_input.user may be NULL"),
    views(f"IndexTable('i', Entity('{SCHEMA}.user', key='age'), value='email')", "key (age) is no primary key"),
    views(f"IndexTable('i', Entity('{SCHEMA}.user', key='weight'), value='age')", "weight of bad_input.user is FLOAT"),
    views(f"IndexTable('i', Entity('{SCHEMA}.user', version='revision'), value='age')", "bad_input.user may be NULL"),
    views(f"IndexTable('i', Entity('{SCHEMA}.user', version='about'), value='age')", "it must be an integer"),
    views("IndexTable('i', entity, value='about')", "TEXT, which an index cannot hold whole"),
    views("IndexTable('i', entity, value='settings')", "JSON, which an index cannot hold whole"),
    views("IndexTable('i', entity, value='version')", "under which an index table keeps its versions"),
    views("IndexTable('i', entity, value=['login', 'email'])", "InnoDB allows 3072"),
    views("IndexTable('pipeline', entity, value='age')", "viewtail needs the table name pipeline itself"),
    views("RedisHash('h', entity, fields=['old'])", "is ENUM('a','b'), which viewtail cannot read"),
    views("RedisHash('h', entity, fields=['age'], key='user:{idd}')", "{idd} is not one of the key columns {id}"),
    views("RedisHash('h', entity, fields=['age'], key='user')", "must name each of {id} once"),
    views("SearchIndex('s', entity, fields={'email': 'long'})", "VARCHAR(255) and cannot be an Elasticsearch long"),
    views("SearchIndex('Users', entity, fields=['email'])", "must be lower case; call it 'users'"),
    views(f"SearchIndex('s', Entity('{SCHEMA}.user', key='login'), fields=['age'])", "_id at most 512"),
]  # fmt: skip

FOR_ARGUMENTS = "views = [IndexTable('i', entity, value=['age', 'email']), RedisHash('h', entity, fields=['age'])]"
ARGUMENTS = [
    arguments("nosuch", "No such command 'nosuch'"),
    arguments("run --nosuch", "No such option: --nosuch"),
    arguments("--config /no/such.toml status", "--config /no/such.toml: there is no such file"),
    arguments("get h", "Missing argument 'KEY'. See: viewtail get --help"),
    arguments("find", "Missing argument 'VIEW'"),
    arguments("find i 1 --limit 0", "'--limit': Input should be greater than or equal to 1"),
    arguments("verify --sample 0", "Invalid value for '--sample'"),
    arguments("verify --sample 200", "Invalid value for '--sample'"),
    arguments("verify --sample nan", "Invalid value for '--sample'"),
    arguments("verify --max-rows-per-second nan", "Invalid value for '--max-rows-per-second'"),
    arguments("find i 1 --limit many", "Invalid value for '--limit'"),
    arguments("search h", "Missing argument 'QUERY'"),
    arguments("get j 1", "no view is called 'j'; there are mysql:i, redis:h"),
    arguments("get hh 1", "no view is called 'hh'; did you mean h?"),
    arguments("get h x", "the key 'x' does not fit column id (bigint unsigned): expected a whole number"),
    arguments("get h 1:2", "the key '1:2' has 2 parts, but it is written ID (1)"),
    arguments("find i x", "value 'x' does not fit column age (int): expected a whole number"),
    arguments("find i 1 a@b 3", "is indexed by age, email: give 1 to 2 values, not 3"),
    arguments("find h 1", "view redis:h has no index to find by"),
    arguments("search h word", "view redis:h cannot be searched"),
    arguments("replay", "name the views to replay"),
    arguments("replay --new-history h", "it is for every view"),
    arguments("init --source nonsense", "--source is not an address of the form mysql://"),
    arguments("init", "would be overwritten, so nothing was written", code=1),
]


@pytest.fixture(scope="module")
def database(mysql_server: Server) -> Iterator[Server]:
    """Tables that views of wrong declarations are over."""
    connection = pymysql.connect(host=mysql_server.host, port=mysql_server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in TABLES.split(";\n"):
            cursor.execute(statement)
        yield mysql_server
        cursor.execute("SHOW DATABASES LIKE 'bad\\_input\\_%'")
        assert cursor.fetchall() == (), "a wrong input made something on a server"
        cursor.execute(f"DROP DATABASE {SCHEMA}")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory, and no settings."""
    for name in [name for name in os.environ if name.startswith("VIEWTAIL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "views", raising=False)
    yield
    sys.modules.pop("views", None)


def write(case: Case) -> None:
    if case.toml is not None:
        Path("viewtail.toml").write_text(case.toml)
    if case.views is not None:
        names = "Entity, IndexTable, RedisHash, RedisJson, SearchIndex, Topic"
        head = f"from viewtail import {names}\n\nentity = Entity('{SCHEMA}.user')\n"
        Path("views.py").write_text(head + case.views)
        importlib.invalidate_caches()


def ends(case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the case in this process and look at all it said."""
    write(case)
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        main(case.arguments)
    said = capsys.readouterr()
    assert end.value.code == case.code, said
    assert case.said in " ".join(said.err.split()), said.err
    assert "Traceback" not in said.out + said.err
    assert "a fault in viewtail" not in said.err


def names(cases: Sequence[Case]) -> list[str]:
    return [case.said for case in cases]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", SETTINGS, ids=names(SETTINGS))
def test_a_wrong_setting_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends(case, monkeypatch, capsys)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", DECLARATIONS, ids=names(DECLARATIONS))
def test_a_wrong_declaration_is_refused(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", GOOD_URL)
    ends(case, monkeypatch, capsys)


@pytest.mark.one_in(2)
@pytest.mark.mysql
@pytest.mark.parametrize("case", WITH_TABLES, ids=names(WITH_TABLES))
def test_a_declaration_that_does_not_fit_its_table_is_refused(
    case: Case, database: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _all_stores(database, monkeypatch)
    ends(case, monkeypatch, capsys)


@pytest.mark.one_in(2)
@pytest.mark.mysql
@pytest.mark.parametrize("case", ARGUMENTS, ids=names(ARGUMENTS))
def test_a_wrong_argument_is_refused(
    case: Case, database: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _all_stores(database, monkeypatch)
    write(Case(views=FOR_ARGUMENTS, said=""))
    ends(case, monkeypatch, capsys)


def _all_stores(database: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", database.url)
    monkeypatch.setenv("VIEWTAIL_MYSQL__URL", f"{database.url}/bad_input_store")
    monkeypatch.setenv("VIEWTAIL_REDIS__URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("VIEWTAIL_ELASTICSEARCH__URL", "http://127.0.0.1:1")


EMPTY = [
    ("--config",),
    ("init", "--schema"),
    ("replay", "h", "--since"),
    ("replay", "h", "--where"),
    ("replay", "h", "--keys-from"),
    ("replay", "h", "--from"),
    ("replay", "h", "--to"),
    ("replay", "h", "--into"),
    ("rebuild", "h", "--keep"),
    ("wait", "h", "--position"),
    ("wait", "h", "--gtid"),
    ("pause", "--pipeline"),
    ("pause", "h", "--reason"),
    ("forget", "user", "1", "--by"),
    ("contract", "check", "a.sql", "--database"),
    ("serve", "--host"),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("arguments", EMPTY, ids=" ".join)
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_option_is_not_taken_for_one_that_was_left_out(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*arguments, text, *(["status"] if arguments == ("--config",) else [])])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert f"Invalid value for '{arguments[-1]}': it is empty" in said


def test_the_key_of_an_entity_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["replay", "h", "--key", ""])
    assert end.value.code == 2 and "there is no module views" in capsys.readouterr().err, "which is looked for next"


def test_nothing_at_all_prints_the_help_and_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "Usage: viewtail [OPTIONS] COMMAND" in capsys.readouterr().out


def test_there_are_more_than_sixty_of_them() -> None:
    assert len(SETTINGS) + len(DECLARATIONS) + len(WITH_TABLES) + len(ARGUMENTS) >= 60


def test_a_view_of_a_store_without_address_is_refused_with_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", GOOD_URL)
    said = "view redis:h needs Redis: the address of Redis is not set; set VIEWTAIL_REDIS__URL=redis://HOST:6379/0"
    ends(Case(views=FOR_ARGUMENTS, said=said), monkeypatch, capsys)


@pytest.mark.parametrize(
    "line", ["schema t", "replay kafka:t", "replay t --since 03:00 --into of_t"], ids=["schema", "replay", "since"]
)
def test_a_command_for_a_topic_says_that_it_wants_the_tailers_settings(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIEWTAIL_MYSQL__URL", GOOD_URL)
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", "kafka://127.0.0.1:1")
    declared = "views = [Topic('t', entity), IndexTable('i', entity, value='age')]"
    said = "view kafka:t is published by the tailer, and these are a projector's settings"
    ends(Case(arguments=tuple(line.split()), views=declared, said=said), monkeypatch, capsys)


def test_everything_wrong_is_told_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VIEWTAIL_SOURCE__ULR", "x")
    monkeypatch.setenv("VIEWTAIL_METRICS__PORT", "x")
    write(Case(toml="[redis]\nurl = 'x'\n[nothing]", said=""))
    with pytest.raises(SystemExit):
        main(["status"])
    assert len(capsys.readouterr().err.splitlines()) == 4


# --- The real command ---


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")}
    return subprocess.run(
        [sys.executable, "-m", "viewtail.main", *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


REAL = [
    SETTINGS[0],
    SETTINGS[9],
    SETTINGS[29],
    SETTINGS[40],
    SETTINGS[45],
    *DECLARATIONS[:5],
    ARGUMENTS[1],
    ARGUMENTS[4],
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", REAL, ids=names(REAL))
def test_the_real_command_says_the_same(case: Case) -> None:
    write(case)
    done = command(*case.arguments, **{"VIEWTAIL_SOURCE__URL": GOOD_URL, **case.environ})
    assert done.returncode == case.code
    assert case.said in " ".join(done.stderr.split())
    assert done.stderr.startswith("viewtail: error: ")
    assert "Traceback" not in done.stdout + done.stderr


# --- The canary ---


def test_no_output_of_a_wrong_setting_holds_a_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [
        ("SOURCE__URL", f"mysql://me:{CANARY}#1@db"),
        ("SOURCE__URL", f"mysql://me:{CANARY}/1@db"),
        ("SOURCE__URL", f"mysql:/me:{CANARY}@db"),
        ("SOURCE__URL", f"mysql://me:{CANARY}@db:x"),
        ("MYSQL__URL", f"redis://me:{CANARY}@db"),
        ("REDIS__URL", f"redis://:{CANARY}@db/x"),
        ("ELASTICSEARCH__URL", f"ftp://me:{CANARY}@db"),
        ("SOURCE__PASWORD", CANARY),
        ("SOURCE", f"mysql://me:{CANARY}@db"),
    ]
    for name, value in wrong:
        with monkeypatch.context() as patch:
            patch.setenv(f"VIEWTAIL_{name}", value)
            with pytest.raises(SystemExit) as end:
                main(["status"])
        said = capsys.readouterr()
        assert end.value.code == 2
        assert CANARY not in said.out + said.err


@pytest.mark.mysql
@pytest.mark.parametrize("format_", ["json", "text"])
def test_no_output_and_no_log_holds_a_password_when_servers_refuse_it(
    database: Server, tmp_path: Path, format_: str
) -> None:
    write(Case(views=FOR_ARGUMENTS, said=""))
    environ = {
        "VIEWTAIL_SOURCE__URL": f"mysql://stranger:{CANARY}@{database.host}:{database.port}",
        "VIEWTAIL_REDIS__URL": f"redis://me:{CANARY}@127.0.0.1:1",
        "VIEWTAIL_ELASTICSEARCH__URL": f"http://me:{CANARY}@127.0.0.1:1",
        "VIEWTAIL_LOGS__FORMAT": format_,
        "VIEWTAIL_LOGS__LEVEL": "debug",
    }
    for arguments_ in (
        ["check"],
        ["check", "--json"],
        ["status"],
        ["run"],
        ["get", "h", "1"],
        ["init", "--force"],
    ):
        done = command(*arguments_, **environ)
        assert done.returncode == 1, done.stderr
        assert CANARY not in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
    right = environ | {"VIEWTAIL_SOURCE__URL": database.url}
    for arguments_ in (["check"], ["get", "h", "1"]):
        done = command(*arguments_, **right)
        assert done.returncode == 1, done.stderr
        assert CANARY not in done.stdout + done.stderr
