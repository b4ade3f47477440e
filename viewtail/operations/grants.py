"""The rights that viewtail needs, as the statements and commands that grant them and no more.

Made from settings and declarations alone: no server is asked, since nobody may be able to log in yet. The checks of
MySQL ask for the same rights, by the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

from projectors.catalog import tables_of
from projectors.views import View
from viewtail.operations.check import Checked


def statements(servers: Checked, views: Sequence[View]) -> list[str]:
    """For MySQL GRANT statements, for Kafka shell commands, each group behind a comment that names its server.

    The users must exist.
    """
    lines = list(servers.kind.grants(servers.source, tables_of(views)))
    for store, access in servers.stores:
        lines += store.grants(access, [view for view in views if view.store == store.name])
    return lines
