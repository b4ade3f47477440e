"""Servers of the user's: the demo has databases of its own there, and removes them at the end with all that it made."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pymysql
from pydantic import SecretStr

from projectors.catalog import Catalog
from projectors.stores.redis.owners import OWNERS, name_field
from viewtail.changes.errors import MisuseError, UnknownNameError, ViewtailError, once
from viewtail.changes.extras import how_to_install
from viewtail.composition import own_tables
from viewtail.demo.place import TITLES, Names, Place
from viewtail.demo.process import DemoError
from viewtail.demo.screen import line
from viewtail.demo.servers import port_near
from viewtail.operations import forget
from viewtail.servers.login import Server
from viewtail.servers.patience import COMMAND
from viewtail.servers.sessions import open_session
from viewtail.settings import PREFIX, Settings, load

NAMES = Names(rows="viewtail_demo", own="viewtail_demo_views", prefix="viewtail_demo_")
COUNTER = "changes"  # of the owners: their only field where there are none
# In one step: another deployment may claim keys at any time.
_FORGET_IF_EMPTY = """
if redis.call('HLEN', KEYS[1]) == redis.call('HEXISTS', KEYS[1], ARGV[1]) then redis.call('DEL', KEYS[1]) end
"""
MARK = "made_by_viewtail_demo"  # a table; a database without it is not the demo's
IDLE_S = 8 * 3600  # MySQL's own default
MODULE = "viewtail_demo_declared"  # the directory may have a views.py
CLIENTS = {"redis": "redis", "elasticsearch": "elasticsearch", "kafka": "confluent_kafka"}
_NO_DATABASE, _NO_TABLE = 1049, 1146
Database: TypeAlias = tuple[Callable[[Place], "pymysql.Connection[Any]"], str]  # opens a session there; its name
_DENIED = frozenset({1044, 1045, 1142, 1227, 1370})


def is_given(config: Path | None, environ: Mapping[str, str]) -> bool:
    """Whether settings name servers. A viewtail.toml that just lies there is somebody's who did not ask for a demo."""
    return config is not None or any(name in environ for name in (f"{PREFIX}CONFIG", f"{PREFIX}SOURCE__URL"))


def place(folder: Path, config: Path | None, without: frozenset[str]) -> Place:
    """On the servers that the settings name. Raises MisuseError where the demo cannot be played on them."""
    settings = load(config, os.environ)
    _require_one_source(settings)
    wanted = [store for store in CLIENTS if store not in without]
    lacking = {store: why for store in wanted if (why := _lacking(settings, store))}
    return Place(
        is_given=True,
        folder=folder,
        cwd=Path.cwd(),
        config=config and config.absolute(),
        environ={**os.environ, **_environ(settings, folder)},
        module=MODULE,
        names=NAMES,
        stores=("mysql", *(store for store in wanted if store not in lacking)),
        lacking=lacking,
    )


def _require_one_source(settings: Settings) -> None:
    if settings.source.url is None or settings.sources or not settings.source.is_one_of_several:
        raise MisuseError(
            "the demo reads the binlog of one MySQL or MariaDB server: name one, VIEWTAIL_SOURCE__URL=mysql://... "
            "Without settings it fetches servers of its own"
        )


def _lacking(settings: Settings, store: str) -> str:
    if getattr(settings, store).url is None:
        return f"no address is set; {PREFIX}{store.upper()}__URL names one"
    return how_to_install(CLIENTS[store])


def _environ(settings: Settings, folder: Path) -> dict[str, str]:
    """What viewtail is told beside the user's settings."""
    own, login = settings.mysql, dict[str, object]()
    if own.url is None:  # viewtail's own tables are on the source then, by its login
        login = {name: getattr(settings.source, name) for name in Server.model_fields}
    url = own.url or settings.source.url
    assert url is not None
    told = {
        "VIEWS": f"{MODULE}:views",
        "SOURCE__DATABASE": NAMES.own,
        "METRICS__PORT": str(port_near(settings.metrics.port)),
        "CONSOLE__PORT": str(port_near(settings.console.port)),
        "CLEANER__SHARE": "0",  # it might mend the damage before `verify --repair` shows it
        "NOTIFY__URL": "off",  # a worker that the demo kills is nobody's incident
        "MYSQL__URL": urlsplit(url.get_secret_value())._replace(path=f"/{NAMES.own}").geturl(),
        **{f"MYSQL__{name.upper()}": _text(value) for name, value in login.items() if value is not None},
    }
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {f"{PREFIX}{name}": value for name, value in told.items()} | {"PYTHONPATH": path}


def _text(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


@contextmanager
def databases(on: Place) -> Iterator[pymysql.Connection[Any]]:
    """The demo's databases, empty, and a session on the server of the rows; from servers of the user's all is removed
    at the end that the demo made.

    Raises DemoError where a database of such a name is somebody else's, another demo plays there, or a store could not
    be cleaned.
    """
    with closing(rows_session(on)) as rows, closing(own_session(on)) as own:
        # Watermarks are written on the server of the rows, beside viewtail's own tables if these are there.
        wanted = [(rows_session, on.names.rows), (rows_session, on.names.own), (own_session, on.names.own)]
        _play_alone(rows, on.names.rows)
        _play_alone(own, on.names.own)
        if found := [each for each in wanted if _is_ours(on, each)]:
            _remove(on, found)  # of a demo that was killed
        made: list[Database] = []
        try:
            for each in wanted:
                if not _is_ours(on, each):  # it is where one server has all
                    _make(on, each, made)
            yield rows
        finally:
            if on.is_given:
                _remove_in_the_end(on, made)


def _make(on: Place, database: Database, made: list[Database]) -> None:
    """Note it and make it: an interruption in the midst of that leaves nothing."""
    made.append(database)
    try:
        _ask(on, database, "CREATE DATABASE {name} CHARACTER SET utf8mb4")
    except Exception:  # there is none, or somebody made one just now
        made.remove(database)
        raise
    _ask(on, database, f"CREATE TABLE {{name}}.{MARK} (id INT PRIMARY KEY)")


def rows_session(on: Place) -> pymysql.Connection[Any]:
    """On the server where the rows are written; no database is selected."""
    return _lasting(open_session(replace(on.settings().primary_address(), database=None), role="source"))


def own_session(on: Place) -> pymysql.Connection[Any]:
    """On the server of index tables; no database is selected."""
    return _lasting(open_session(replace(on.settings().store_address(), database=None), role="store"))


def _lasting(session: pymysql.Connection[Any]) -> pymysql.Connection[Any]:
    """A server may end sessions that are idle for a minute, and a person reads for longer than that."""
    _execute(session, f"SET SESSION wait_timeout = {IDLE_S}")
    return session


def _play_alone(rows: pymysql.Connection[Any], name: str) -> None:
    with rows.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 0)", (f"viewtail demo: {name}",))
        if cursor.fetchone() != (1,):
            raise DemoError("another `viewtail demo` is played on this server; wait until it has ended")


def _is_ours(on: Place, database: Database) -> bool:
    """Whether the database is there. Raises DemoError where it is and has no mark of the demo's."""
    try:
        # MariaDB says of a table in no database only that there is no such table.
        _ask(on, database, "USE {name}", f"SELECT COUNT(*) FROM {{name}}.{MARK}")
    except pymysql.err.MySQLError as error:
        if error.args[0] == _NO_DATABASE:
            return False
        if error.args[0] == _NO_TABLE:
            raise DemoError(
                f"there is a database {database[1]} already, and `viewtail demo` did not make it: nothing was touched. "
                "Rename it, or play the demo on another server"
            ) from None
        raise
    return True


def _ask(on: Place, database: Database, *statements: str) -> None:
    """On a session of its own: a server may have ended one that was idle while a person read."""
    open_, name = database
    with closing(open_(on)) as session:
        for statement in statements:
            _execute(session, statement.format(name=name))


def _execute(session: pymysql.Connection[Any], statement: str) -> None:
    """Run and commit it. Raises DemoError where the account may not, and MySQLError for anything else."""
    try:
        with session.cursor() as cursor:
            cursor.execute(statement)
        session.commit()
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _DENIED:
            raise
        grants = "\n".join(
            rf"  GRANT ALL ON `{name}`.* TO ...;".replace("_", r"\_") for name in (NAMES.rows, NAMES.own)
        )
        raise DemoError(
            f"the account of the settings may not make the demo's databases. An administrator grants it:\n{grants}"
        ) from None


def _remove_in_the_end(on: Place, made: Sequence[Database]) -> None:
    """As `_remove`, whatever else went wrong: where a store keeps something, that is said beside it."""
    failed = sys.exception()
    try:
        _remove(on, made)
    except KeyboardInterrupt:  # signals are ignored from now on
        _remove(on, made)
        raise
    except DemoError as error:
        if failed is None:
            raise
        line(str(error), "yellow")


def _remove(on: Place, made: Sequence[Database]) -> None:
    """All that a demo made, and these databases: what is in the stores first, as viewtail's own tables say what it is.

    These tables stay while a store has something: nobody could find that again. Raises DemoError then. A database that
    is not among `made` is not dropped, whatever it is called: somebody else made it.
    """
    left = _forget_all(on) if on.names.own in {name for _, name in made} else {}
    for each in made:
        if not left or each[1] != on.names.own:
            _ask(on, each, "DROP DATABASE IF EXISTS {name}")
    if left:
        why = "\n".join(f"  {TITLES[store]}: {reason}" for store, reason in left.items())
        raise DemoError(
            f"what the demo made could not be removed everywhere:\n{why}\nIt stays there, and so does the database "
            f"{on.names.own}, whose tables say what it is. When the store answers, run `viewtail demo` again with the "
            "same settings: it removes what is left before it plays"
        )


def _forget_all(on: Place) -> dict[str, str]:
    """Drop what is in the stores, those that this demo leaves out too; returns why one may have something, by name."""
    settings, left = on.settings(), dict[str, str]()
    catalog = own_tables(settings, COMMAND)
    for store in TITLES:
        try:
            was_known = _forget(catalog, f"{store}:{on.names.view(store)}")
            if store == "redis" and (was_known or store in on.stores):
                _forget_in_redis(settings, on.names)
        except Exception as error:  # of any client; the other stores are cleaned all the same
            left[store] = once(error) if isinstance(error, ViewtailError) else f"{type(error).__name__}: {error}"
    return left


def _forget(catalog: Catalog, view: str) -> bool:
    """What `viewtail forget` does for a view that is declared no more; whether viewtail's tables knew it."""
    try:
        chosen = forget.choose(catalog, (), view)
    except UnknownNameError:
        return False  # the demo ended before it was made
    with closing(forget.leftover(catalog, chosen)) as leaving:
        leaving.look()
        forget.drop(catalog, chosen, leaving, lambda _: None)
    return True


def _forget_in_redis(settings: Settings, names: Names) -> None:
    """The witness of a deployment that nobody has any more, and what notes that it owned the view's keys."""
    with closing(settings.redis.client()) as client:  # type: ignore[attr-defined]  # a section of a store
        for key in client.scan_iter(match=f"viewtail:{names.own}:*"):
            client.delete(key)
        owned = [field for field in client.hkeys(OWNERS) if field.endswith(f":redis:{names.view('redis')}".encode())]
        client.hdel(OWNERS, name_field(names.own), *owned)
        client.eval(_FORGET_IF_EMPTY, 1, OWNERS, COUNTER)
