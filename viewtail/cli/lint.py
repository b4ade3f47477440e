"""`viewtail lint`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from viewtail.cli.each import in_each
from viewtail.cli.options import Json

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE.sql ...]", help="Migrations, in the order of their runs; - is the standard input."),
]
Dump = Annotated[
    Path | None,
    typer.Option("--schema", metavar="DUMP.sql", help="The tables as a dump has them, instead of the server's."),
]
Database = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The database; by default the source's address's, and those of the views."),
]
Select = Annotated[
    list[str] | None,
    typer.Option(metavar="CODE", help="Only these rules, by their codes or what they begin with: VT1. Repeat it."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="CODE", help="Not these rules; VT104:shop.order: not for that table. Repeat it."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings, too.")]
Output = Annotated[
    Literal["text", "json", "sarif", "github"], typer.Option("--format", help="How to print what is found.")
]


def lint(
    context: typer.Context,
    files: Files = None,
    schema: Dump = None,
    database: Database = None,
    select: Select = None,
    ignore: Ignore = None,
    strict: Strict = False,
    format: Output = "text",
    json: Json = False,
) -> int:
    """Hold a schema, or migrations, against the guideline for MySQL tables.

    Without FILE.sql it looks at the schema: that of the source, or a dump. With it, at what the migrations do to that
    schema. The rules are listed in docs/lint.md. `-- viewtail: ignore VT101` silences the line that it is on, or the
    statement below it. The command changes nothing. It exits 1 when it finds an error (with --strict, a warning), and 2
    when there is a statement that it cannot read.
    """
    from viewtail.commands.lint import Asked
    from viewtail.commands.lint import lint as command

    asked = Asked(
        files=tuple(files or ()),
        dump=schema,
        database=database,
        select=tuple(select or ()),
        ignore=tuple(ignore or ()),
        is_strict=strict,
        form="json" if json else format,
    )
    return in_each(context.obj, command, asked)
