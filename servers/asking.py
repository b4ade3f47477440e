"""Asking a MySQL server what `viewtail check` wants to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pymysql

from changes.errors import ViewtailError, once
from changes.findings import Finding, fail
from servers.sessions import Connection, MySQLAddress, open_session, session_error


def findings(
    where: str, address: MySQLAddress, role: str, variable: str, ask: Callable[[Connection], Iterator[Finding]]
) -> list[Finding]:
    """What `ask` finds on a session of its own; a server that does not answer is a finding.

    `variable` is the setting that says where it is.
    """
    found: list[Finding] = []
    try:
        with closing(open_session(replace(address, database=None), role=role)) as connection:
            found.extend(ask(connection))
    except (ViewtailError, pymysql.err.MySQLError) as error:
        seen = once(error if isinstance(error, ViewtailError) else session_error(error, address, role))
        mend = f"what the message says, or {variable}"
        found.append(fail(where, "reachable", seen, "nothing can be read or written there", mend))
    return found
