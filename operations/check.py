"""Collects what the source and the stores say of their own requirements, and whether the views fit their tables.

Each server is asked by itself: one that does not answer is a finding, and the others are looked at all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pymysql

from changes.errors import DeclarationError, ViewtailError
from changes.findings import Finding, Level, fail, ok
from ingest.binlog import checks as source_checks
from ingest.binlog.coordinates import BinlogPosition
from ingest.canonical import describe
from projectors.binding import bind
from projectors.stores import Store
from projectors.stores.access import Access
from projectors.stores.registry import STORES
from projectors.views import View
from servers.asking import findings
from servers.login import Server
from servers.sessions import MySQLAddress, open_session

Connection: TypeAlias = "pymysql.Connection[Any]"

_SOURCE_URL = "VIEWTAIL_SOURCE__URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Everything that is looked at."""

    source: MySQLAddress
    primary: MySQLAddress
    store: MySQLAddress  # of viewtail's own tables
    watermark_database: str
    store_database: str
    sections: Mapping[str, Server] = field(
        default_factory=dict
    )  # settings, by name, of the stores that have views

    def stores(self) -> Iterator[tuple[Store, Access]]:
        """Those that have views, and that of viewtail's own tables."""
        for store in STORES:
            if store.has_own_tables or store.name in self.sections:
                section = self.sections.get(store.name)
                yield (
                    store,
                    Access(
                        section=section,
                        own=self.store,
                        database=self.store_database,
                        read_position=BinlogPosition.from_text,
                    ),
                )


def check(servers: Servers, views: Sequence[View]) -> list[Finding]:
    """Every finding, in the order of source, stores, views."""
    found = list(_source(servers, sorted({tuple_of(view.entity.table) for view in views})))
    for store, access in servers.stores():
        found += store.checks(access)
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

    yield from findings("source", servers.source, "source", _SOURCE_URL, of_source)
    yield from findings(
        "source",
        servers.primary,
        "source",
        _SOURCE_URL,
        lambda connection: source_checks.watermark_checks(
            connection, servers.primary, servers.watermark_database
        ),
    )


def _views(source: MySQLAddress, views: Sequence[View]) -> list[Finding]:
    try:
        with closing(open_session(source, role="source")) as connection:
            bind(views, lambda schema, table: describe(connection, schema, table))
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
    return [ok("views", f"view {view.id}", "fits its table") for view in views]
