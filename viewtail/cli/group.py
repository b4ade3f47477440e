"""Commands that refuse an empty text for an option: in a script it is a variable without a value, not one left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
import typer.core
from typer.models import CommandFunctionType

_MAY_BE_EMPTY = "--key"  # that of a row may be


def _require_texts(command: Any, context: Any, arguments: Sequence[str]) -> None:
    if context.resilient_parsing:
        return  # a shell asks what may come next
    given, *_ = command.make_parser(context).parse_args(list(arguments))
    for one in command.params:
        values = given.get(one.name)
        texts = values if isinstance(values, list) else [values]
        is_text = one.param_type_name == "option" and _MAY_BE_EMPTY not in one.opts
        if is_text and any(isinstance(text, str) and not text.strip() for text in texts):
            raise typer.BadParameter("it is empty: give it a value, or leave it out", ctx=context, param=one)


class _Command(typer.core.TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _require_texts(self, ctx, args)
        return super().parse_args(ctx, args)


class Group(typer.core.TyperGroup):
    """A group of commands that refuses empty options of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _require_texts(self, ctx, args)
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """Commands each of which refuses an empty option."""

    def command(self, *names: Any, **given: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(*names, cls=_Command, **given)
