"""`viewtail forget`: its options, for a view and for an entity."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.each import in_deployments, in_each
from viewtail.cli.options import KEY, Json, PartOf, Yes

Forgotten = Annotated[
    str,
    typer.Argument(
        metavar="VIEW|ENTITY", help="A view; or, with KEY, a canonical table: SCHEMA.TABLE, or the table's name alone."
    ),
]
ForgottenKey = Annotated[str | None, typer.Argument(metavar="[KEY]", help=f"{KEY} Its row is gone already.")]
KeepData = Annotated[
    bool, typer.Option("--keep-data", help="Of a view: forget what viewtail knows, and leave its data where it is.")
]
WithTopic = Annotated[
    bool, typer.Option("--with-topic", help="Of a Topic view: delete the topic too. Its consumers lose it.")
]
By = Annotated[
    str | None,
    typer.Option(metavar="COLUMN,...", help="Of an entity: the columns of KEY, where views have several keys."),
]
PASSED_WITHIN_S = 60.0
PassedWithin = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        help=f"Of an entity: wait so long for the pipelines; {PASSED_WITHIN_S:.0f} by default.",
    ),
]


def forget(
    context: typer.Context,
    what: Forgotten,
    key: ForgottenKey = None,
    yes: Yes = False,
    keep_data: KeepData = False,
    with_topic: WithTopic = False,
    by: By = None,
    timeout: PassedWithin = None,
    part: PartOf = None,
    json: Json = False,
) -> int:
    """Drop a view that is no longer declared, or erase one entity everywhere.

    viewtail forget VIEW drops what the view left: its table, keys or index, its dead letters, and last what viewtail's
    own tables know of it. It says first what that is, and asks. Killed in between, the same command goes on. A topic
    stays, unless you say --with-topic. The command refuses a view that is declared, or that a running viewtail keeps.

    viewtail forget ENTITY KEY proves that nothing of an entity is left after its row is gone: delete the row in MySQL
    first. The command waits until the pipelines have passed the delete, looks in every view, and erases what is there
    all the same. It prints each place, what it found there, and what stays until when. It exits 1 when anything else
    stays.

    viewtail forget VIEW --part COLUMN=VALUE does the same for one tenant of a view whose entity is many tables, once
    the tenant's table is gone.
    """
    timeout_s = PASSED_WITHIN_S if timeout is None else timeout
    if part is not None:
        others = key, by, keep_data, with_topic
        return _of_part(context, what, part, others, timeout_s, as_json=json)
    if key is None:
        if by is not None or timeout is not None:
            raise typer.BadParameter("they are for: viewtail forget ENTITY KEY", param_hint="--by, --timeout")
        from viewtail.commands.forget import Wishes
        from viewtail.commands.forget import forget as command

        if keep_data and with_topic:
            raise typer.BadParameter("it contradicts --keep-data", param_hint="--with-topic")
        wishes = Wishes(keeps_data=keep_data, drops_topic=with_topic, is_sure=yes, as_json=json)
        return in_deployments(context.obj, command, what, wishes)
    if keep_data or with_topic:
        raise typer.BadParameter("they are for: viewtail forget VIEW", param_hint="--keep-data, --with-topic")
    from viewtail.commands.erase import erase

    return in_each(context.obj, erase, what, key, by=by, timeout_s=timeout_s, as_json=json)


def _of_part(
    context: typer.Context, view: str, part: str, others: tuple[object, ...], timeout_s: float, *, as_json: bool
) -> int:
    if any(others):
        raise typer.BadParameter("it is for: viewtail forget VIEW --part COLUMN=VALUE", param_hint="--part")
    from viewtail.commands.parts import forget_part

    return in_each(context.obj, forget_part, view, part, timeout_s=timeout_s, as_json=as_json)
