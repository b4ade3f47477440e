"""One command in one deployment after another, where the views are kept in several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from viewtail import signals
from viewtail.changes.errors import UnknownNameError
from viewtail.cli.ending import ended, say

if TYPE_CHECKING:
    from viewtail.settings import Settings

Given = ParamSpec("Given")


def in_each(
    config: Path | None, command: Callable[Concatenate[Settings, Given], int], *given: Given.args, **named: Given.kwargs
) -> int:
    """Call it for each deployment that it is about; the worst exit code. A stop ends it for those that are left.

    What it names need not be known in each of them.
    """
    return _in_each(config, lambda load: command(load(), *given, **named), max)


def in_any(
    config: Path | None, command: Callable[Concatenate[Settings, Given], int], *given: Given.args, **named: Given.kwargs
) -> int:
    """`in_each` for what need not be in each deployment: the exit code is 1 where all return NOTHING_FOUND."""
    return _in_each(config, lambda load: command(load(), *given, **named), lambda codes: abs(max(codes)))


def _in_each(
    config: Path | None, call: Callable[[Callable[[], Settings]], int], code_of: Callable[[Iterable[int]], int]
) -> int:
    from viewtail.shards import targets

    found = targets(config)
    if found[0].shard is None:
        return code_of([call(found[0].load)])
    codes, unknown = list[int](), dict[str, str]()
    for target in found:
        print(f"-- {target.shard}: {target.what}", file=sys.stderr, flush=True)
        told = list[str]()
        code = ended(partial(call, target.load), told)
        if told:
            unknown[f"{target.shard}"] = told[0]
            print("   nothing of that name is here", file=sys.stderr, flush=True)
        else:
            codes.append(code)
        if signals.off_stop() or code == signals.EXIT_STOPPED:
            return signals.EXIT_STOPPED
    for shard, why in unknown.items() if not codes else ():
        say(f"{shard}: {why}")
    return code_of(codes) if codes else UnknownNameError.exit_code
