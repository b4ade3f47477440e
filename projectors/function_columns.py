"""Which columns of its row a user's function asks for: read from its source, and watched while it runs.

`row["x"]`, `row.get("x")` and `"x" in row` name a column; of related rows that the function gets from its row, too.
Whatever else is done with a row (`dict(row)`, a helper, a name that is computed) may need any column. A function that
asks for a column that was not read for it gets an error, never a wrong answer.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from projectors.function_flow import Uses, follow
from projectors.function_source import syntax_tree
from projectors.related import Many, One, Relations
from projectors.views import BoundView


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The columns that a function may ask its row for."""

    uses: Uses = field(default_factory=dict)  # the names in its source; the table may lack some of them
    why_all: str = ""  # what in it may ask for any column; '': nothing does

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self.uses)


def merged(uses: Iterable[Uses]) -> dict[str, Uses | None]:
    """All that several functions ask for."""
    together: dict[str, Uses | None] = {}
    for of_function in uses:
        for name, of_value in of_function.items():
            before = together.get(name, {})
            together[name] = None if before is None or of_value is None else merged((before, of_value))
    return together


def paths(uses: Uses, related: Relations) -> Iterator[str]:
    """The names that are asked for, as people write them: `total`, `customer.name`, `lines.*` for any."""
    rows = {name: of.related for name, of in related if isinstance(of, One | Many)}
    for name in sorted(uses):
        below = uses[name]
        if name not in rows:
            yield name
        elif below is None:
            yield f"{name}.*"
        else:
            yield from (f"{name}.{path}" for path in paths(below, rows[name])) if below else (name,)


def columns_read(function: Callable[..., Any], related: Relations = ()) -> Reads:
    """The columns that a function of one argument, a row, may ask for; `related`: what the row has from other tables."""
    if not isinstance(function, types.FunctionType):
        return Reads(why_all=f"viewtail does not look into {type(function).__name__} objects")
    code, name = function.__code__, function.__name__
    tree = syntax_tree(code)
    if tree is None or not code.co_argcount:
        return Reads(why_all=f"the source of {name} does not tell")
    defined = {*function.__globals__, *_variables(code)}
    row = follow(tree, code.co_varnames[0], related, is_builtin=lambda builtin: builtin not in defined)
    return Reads(why_all=f"{name} has: {row.lost_in}") if row.uses is None else Reads(uses=row.uses)


def _variables(code: types.CodeType) -> Iterator[str]:
    yield from (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _variables(constant)


class UnforeseenColumn(BaseException):
    """A function asked for a column that was not read for it. No Exception: the function is not to handle it."""


class _WatchedRow(dict[str, Any]):
    """The columns that were read for a function; one that asks for any other that the table has is stopped."""

    __slots__ = ()

    absent: ClassVar[frozenset[str]]

    def __missing__(self, name: str) -> Any:
        raise (UnforeseenColumn if name in self.absent else KeyError)(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self.absent:
            raise UnforeseenColumn(name)
        return dict.get(self, name, default)

    def __contains__(self, name: object) -> bool:
        if name in self.absent:
            raise UnforeseenColumn(name)
        return dict.__contains__(self, name)


def row_type(view: BoundView) -> type[dict[str, Any]]:
    """Make the type of the rows that a view's functions get, without what `columns=[...]` leaves out."""
    absent = frozenset(column.name for column in view.table.columns).difference(view.needed)
    if not absent or view.view.columns:
        return dict
    return type("Row", (_WatchedRow,), {"__slots__": (), "absent": absent})
