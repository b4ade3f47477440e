"""Asking a MySQL server what `viewtail check` wants to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pymysql

from changes.errors import ViewtailError
from changes.findings import Finding, fail
from servers.sessions import MySQLAddress, open_session, session_error


def findings(
    where: str,
    address: MySQLAddress,
    role: str,
    variable: str,
    ask: Callable[[pymysql.Connection[Any]], Iterator[Finding]],
) -> list[Finding]:
    """What `ask` finds on a session of its own; a server that does not answer is a finding.

    `variable` is the setting that says where it is.
    """
    found: list[Finding] = []
    try:
        with closing(open_session(replace(address, database=None), role=role)) as connection:
            found.extend(ask(connection))
    except ViewtailError as error:
        found.append(_not_asked(where, error, variable))
    except pymysql.err.MySQLError as error:
        found.append(_not_asked(where, session_error(error, address, role), variable))
    return found


def _not_asked(where: str, error: ViewtailError, variable: str) -> Finding:
    return fail(
        where,
        "reachable",
        str(error),
        "nothing can be read or written there",
        f"what the message says, or {variable}",
    )
