"""Collects what the source and the stores say of their own requirements, and whether the views fit their tables.

Each server is asked by itself: one that does not answer is a finding, and the others are looked at all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pymysql

from changes.errors import DeclarationError, ViewtailError
from changes.findings import Finding, Level, fail, ok
from ingest.binlog import checks as source_checks
from ingest.canonical import describe
from projectors.binding import bind, functions_read
from projectors.bound_views import BoundView
from projectors.stores.index_tables import checks as mysql_checks
from projectors.views import View
from servers.sessions import MySQLAddress, open_session, session_error

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch
    from redis import Redis

    Connection = pymysql.Connection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Everything that is looked at."""

    source: MySQLAddress
    primary: MySQLAddress
    store: MySQLAddress
    watermark_database: str
    store_database: str
    redis: Callable[[], Redis] | None  # None: no view is there
    elasticsearch: Callable[[], Elasticsearch] | None


def check(servers: Servers, views: Sequence[View]) -> list[Finding]:
    """Every finding, in the order of source, stores, views."""
    tables = sorted({tuple_of(view.entity.table) for view in views})
    found = list(_source(servers, tables))
    found += _asked(
        "mysql",
        servers.store,
        "store",
        lambda connection: mysql_checks.checks(connection, servers.store, servers.store_database),
    )
    if servers.redis is not None:
        from projectors.stores.redis import checks as redis_checks

        with closing(servers.redis()) as redis:
            found += redis_checks.checks(redis)
    if servers.elasticsearch is not None:
        from projectors.stores.elasticsearch import checks as elasticsearch_checks

        with closing(servers.elasticsearch()) as elasticsearch:
            found += elasticsearch_checks.checks(elasticsearch)
    found += _views(servers.source, views)
    return list(dict.fromkeys(found))  # a server in two roles that does not answer is one finding


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether viewtail can run: warnings do not count."""
    return all(finding.level is not Level.FAIL for finding in findings)


def tuple_of(table: str) -> tuple[str, str]:
    """'shop.user' -> ('shop', 'user')"""
    schema, _, name = table.partition(".")
    return schema, name


def _source(servers: Servers, tables: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    def of_source(connection: Connection) -> Iterator[Finding]:
        yield ok("source", "reachable", servers.source)
        yield from source_checks.server_checks(connection)
        yield from source_checks.privilege_checks(connection, servers.source, tables)
        yield from source_checks.prepared_checks(connection)
        yield from source_checks.cascade_checks(connection, tables)

    yield from _asked("source", servers.source, "source", of_source)
    yield from _asked(
        "source",
        servers.primary,
        "source",
        lambda connection: source_checks.watermark_checks(
            connection, servers.primary, servers.watermark_database
        ),
    )


def _asked(
    where: str, address: MySQLAddress, role: str, ask: Callable[[Connection], Iterator[Finding]]
) -> list[Finding]:
    found: list[Finding] = []
    try:
        with closing(open_session(_without_database(address), role=role)) as connection:
            found.extend(ask(connection))
    except ViewtailError as error:
        found.append(_not_asked(where, error))
    except pymysql.err.MySQLError as error:
        found.append(_not_asked(where, session_error(error, address, role)))
    return found


def _without_database(address: MySQLAddress) -> MySQLAddress:
    return replace(address, database=None)


def _not_asked(where: str, error: ViewtailError) -> Finding:
    variable = "VIEWTAIL_SOURCE__URL" if where == "source" else "VIEWTAIL_MYSQL__URL, or VIEWTAIL_SOURCE__URL"
    return fail(
        where,
        "reachable",
        str(error),
        "nothing can be read or written there",
        f"what the message says, or {variable}",
    )


def _views(source: MySQLAddress, views: Sequence[View]) -> list[Finding]:
    try:
        with closing(open_session(source, role="source")) as connection:
            bound = bind(views, lambda schema, table: describe(connection, schema, table))
    except DeclarationError as error:
        return [
            fail(
                "views",
                line.partition(": ")[0],
                line.partition(": ")[2],
                "the view cannot work",
                "change views.py",
            )
            for line in str(error).splitlines()
        ]
    except ViewtailError:
        return []  # the source was not reachable, which is a finding already
    return [ok("views", f"view {view.id}", f"fits its table{_functions(view)}") for view in bound]


def _functions(bound: BoundView) -> str:
    """Which columns the functions of a view ask for."""
    read = functions_read(bound.view)
    if read.why_all:
        return f"; uses every column of it, for {read.why_all}"
    names = [
        f"{name} (which it has not)" * (bound.table.column(name) is None) or name for name in read.columns
    ]
    return f"; its functions use {', '.join(sorted(names))}" if names else ""
