"""Commands that read a view, or wait for it: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.each import in_any, in_deployments, in_each, require_one_source
from viewtail.cli.options import KEY, Json, Key, Limit, ViewName


def get(context: typer.Context, view: ViewName, key: Key, json: Json = False) -> int:
    """Read one entity from a view by its key; shows the version too.

    Exits 1 when the view has no such record.
    """
    from viewtail.commands.reading import get as command

    return in_any(context.obj, command, view, key, as_json=json)


_VALUES = (
    "Values of the value columns, in order. The last ones may be left out. Of a column of bytes a value is its text, "
    "or 0x and hexadecimal digits."
)
Values = Annotated[list[str], typer.Argument(metavar="VALUE...", help=_VALUES)]


def find(context: typer.Context, view: ViewName, value: Values, limit: Limit = 100, json: Json = False) -> int:
    """Find the canonical rows of entities by an indexed value, or of a Redis set by the values that name it.

    Reads the keys from the index table or the set, fetches the rows from the source, and keeps those that have the
    value now. So a late index never returns a row that does not match. Exits 1 when no row matches.
    """
    from viewtail.commands.reading import find as command

    return in_any(context.obj, command, view, value, limit=limit, as_json=json)


Query = Annotated[
    str,
    typer.Argument(metavar="QUERY", help='Words, "phrases", prefix*, -without, this | that. Every word must occur.'),
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="NAME", help="Search only this field (NAME or NAME^BOOST); repeatable."),
]
Page = Annotated[int, typer.Option(metavar="N", help="Page number, from 1.")]
Size = Annotated[int, typer.Option(metavar="N", help="Hits on a page.")]


def search(
    context: typer.Context,
    view: ViewName,
    query: Query,
    field: Fields = None,
    page: Page = 1,
    size: Size = 10,
    json: Json = False,
) -> int:
    """Search a SearchIndex view with a simple query string, best hits first.

    A search finds a change once the index has refreshed, after about a second.
    """
    from viewtail.commands.reading import search as command

    return in_deployments(context.obj, command, view, query, fields=field, page=page, size=size, as_json=json)


OfKey = Annotated[bool, typer.Option("--key", help="Print that of a message's key, instead of its value.")]


def schema(context: typer.Context, view: ViewName, key: OfKey = False) -> int:
    """Print the JSON Schema of a topic's messages, for those who consume them.

    It is that of the table as it is now; the command asks the source for it, and no broker. A tombstone, which is a
    message without a value, is no part of it.
    """
    from viewtail.commands.schema import schema as command

    return in_deployments(context.obj, command, view, of_key=key)


WaitedKey = Annotated[str | None, typer.Argument(metavar="[KEY]", help=KEY)]
WaitedVersion = Annotated[int | None, typer.Option("--version", metavar="N", help="Until KEY has this version.")]
WaitedPosition = Annotated[
    str | None, typer.Option("--position", metavar="FILE:POSITION", help="Until this place in the source's binlog.")
]
WaitedGtid = Annotated[str | None, typer.Option("--gtid", metavar="GTID", help="Until this transaction of the source.")]
Within = Annotated[float, typer.Option(metavar="SECONDS", help="At most so long.", min=0)]


def wait(
    context: typer.Context,
    view: ViewName,
    key: WaitedKey = None,
    version: WaitedVersion = None,
    position: WaitedPosition = None,
    gtid: WaitedGtid = None,
    within: Within = 10.0,
) -> int:
    """Wait until a view has everything that is committed by now, or up to a version, position or GTID.

    For scripts that read what they wrote. In Python: viewtail.wait_for(...). A view that is being backfilled is waited
    for. Exits 1 when the time is over, when the view is halted or paused, or when KEY is parked. Without KEY, parked
    keys are counted on stderr, and do not change the exit code.
    """
    from viewtail.commands.waiting import wait as command
    from viewtail.operations.waiting import Wanted

    wanted = Wanted(version=version, position=position, gtid=gtid)
    if position is not None or gtid is not None:
        require_one_source(context.obj, "--gtid" if position is None else "--position")
    return in_each(context.obj, command, view, key, wanted, within_s=within)
