"""One command in one deployment after another, where the views are kept in several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from viewtail import signals
from viewtail.changes.errors import MisuseError, SourceUnavailableError, UnknownNameError
from viewtail.cli.ending import ended, say

if TYPE_CHECKING:
    from viewtail.settings import Settings
    from viewtail.shards import Target

Given = ParamSpec("Given")

_ANOTHER_MAY = (UnknownNameError, SourceUnavailableError)  # answer


def in_each(
    config: Path | None, command: Callable[Concatenate[Settings, Given], int], *given: Given.args, **named: Given.kwargs
) -> int:
    """Call it for each deployment that it is about; the worst exit code. A stop ends it for those that are left.

    What it names need not be known in each of them.
    """
    return _in_each(config, lambda load: command(load(), *given, **named), max)


def in_deployments(
    config: Path | None, command: Callable[Concatenate[Settings, Given], int], *given: Given.args, **named: Given.kwargs
) -> int:
    """`in_each` for what is one for all sources of a deployment: the first that can answer does.

    That is one which knows what the command names, and whose server is there.
    """
    return _in_each(config, lambda load: command(load(), *given, **named), max, is_once=True)


def in_any(
    config: Path | None, command: Callable[Concatenate[Settings, Given], int], *given: Given.args, **named: Given.kwargs
) -> int:
    """`in_each` for what need not be in each deployment: the exit code is 1 where all return NOTHING_FOUND."""
    return _in_each(config, lambda load: command(load(), *given, **named), lambda codes: abs(max(codes)))


def require_one_source(config: Path | None, option: str) -> None:
    """Raise MisuseError where a command with an option that is about one server's binlog would ask several."""
    from viewtail.declarations import SHARD_VARIABLE
    from viewtail.shards import targets

    found = targets(config)
    if len(found) > 1 and found[0].is_source:
        names = ", ".join(f"{target.shard}" for target in found)
        raise MisuseError(
            f"{option} is a place in the binlog of one server, and the views are of several: {names}. Choose one: "
            f"{SHARD_VARIABLE}={found[-1].shard} viewtail ..."
        )


def _in_each(
    config: Path | None,
    call: Callable[[Callable[[], Settings]], int],
    code_of: Callable[[Iterable[int]], int],
    *,
    is_once: bool = False,
) -> int:
    from viewtail.shards import targets

    found = targets(config)
    if found[0].shard is None:
        return code_of([call(found[0].load)])
    codes, untold = list[int](), dict[str, tuple[int, str]]()
    for target in found:
        is_all = target.is_source and is_once
        code, why = _in_one(target, call, is_titled=not is_all)
        if why:
            untold[f"{target.shard}"] = code, why
        else:
            codes.append(code)
        if signals.off_stop() or code == signals.EXIT_STOPPED:
            return signals.EXIT_STOPPED
        if codes and is_all:
            break
    return code_of(codes) if codes else _nobody_can(untold)


def _nobody_can(untold: Mapping[str, tuple[int, str]]) -> int:
    for shard, (_, why) in untold.items():
        say(f"{shard}: {why}")
    return min(code for code, _ in untold.values())


def _in_one(target: Target, call: Callable[[Callable[[], Settings]], int], *, is_titled: bool) -> tuple[int, str]:
    """The exit code of a call, and what it does not know, or why its server does not answer for all, if that is so."""
    if is_titled:
        print(f"-- {target.shard}: {target.what}", file=sys.stderr, flush=True)
    told = list[str]()
    code = ended(partial(call, target.load), told, (UnknownNameError,) if is_titled else _ANOTHER_MAY)
    if told and is_titled:
        print("   nothing of that name is here", file=sys.stderr, flush=True)
    return code, told[0] if told else ""
