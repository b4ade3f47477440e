"""Asking a MySQL server what `viewtail check` wants to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from viewtail.changes.errors import ViewtailError, once
from viewtail.changes.findings import Finding, fail
from viewtail.servers.sessions import Connection, MySQLAddress, asking


def findings(
    where: str, address: MySQLAddress, role: str, variable: str, ask: Callable[[Connection], Iterator[Finding]]
) -> list[Finding]:
    """Return the findings of `ask` on a session of its own; a server that does not answer is a finding.

    `variable` is the setting that says where it is.
    """
    found: list[Finding] = []
    try:
        with asking(replace(address, database=None), role=role) as connection:
            found.extend(ask(connection))
    except ViewtailError as error:
        mend = f"what the message says, or {variable}"
        found.append(fail(where, "reachable", once(error), "nothing can be read or written there", mend))
    return found
