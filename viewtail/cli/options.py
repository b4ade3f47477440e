"""Options and arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from viewtail.cli.completing import view_names

KEY = "The entity's key. Join several columns by ':'; write bytes in hexadecimal, with or without 0x."
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ViewName = Annotated[
    str,
    typer.Argument(
        metavar="VIEW",
        help="A view's name, or STORE:NAME where two stores have one of that name.",
        autocompletion=view_names,
    ),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help=KEY)]
Limit = Annotated[int, typer.Option(metavar="N", help="Return at most N rows.", min=1, max=10_000)]
All = Annotated[bool, typer.Option("--all", help="Every view.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing: say what would be written.")]
PartOf = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="COLUMN=VALUE", help="All entities of one tenant, where many tables are one entity."
    ),
]
MaxRows = Annotated[
    float, typer.Option(metavar="N", help="Read at most N rows a second; 0: no limit.", min=0, max=1_000_000_000)
]
MaxThreads = Annotated[
    int, typer.Option(metavar="N", help="Wait while the source runs more statements than that at once.", min=1)
]
