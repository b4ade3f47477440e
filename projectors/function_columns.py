"""Which columns of its row a user's function asks for: read from its source, and watched while it runs.

`row["x"]`, `row.get("x")` and `"x" in row` name a column; of related rows that the function gets from its row, too.
Whatever else is done with a row (`dict(row)`, a helper, a name that is computed) may need any column. A function that
asks for a column that was not read for it gets an error, never a wrong answer.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from projectors.function_flow import follow
from projectors.function_source import syntax_tree
from projectors.related import Many, One, Relations, Uses
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
    """The columns that a function of one argument, a row, may ask for; `related`: what it has from other tables."""
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

    def __init__(self, name: str, path: str = "") -> None:
        super().__init__(name, path)
        self.name = name
        self.path = path  # of the related rows that were asked, "lines.product"; "": the row itself

    def reason(self, table: str) -> str:
        """What is wrong, and what to do; `table` is the row's."""
        if self.path:
            return (
                f"column {self.name} of the related rows {self.path}, which was not read for it, since viewtail does "
                "not see in its source that it is asked for. Name their columns in related={...}: "
                f"columns=[{self.name!r}, ...]"
            )
        return (
            f"column {self.name} of {table}, which was not read for it, since its source does not name the column or "
            f"viewtail cannot read it. Write row[{self.name!r}] there"
        )


class _WatchedRow(dict[str, Any]):
    """The columns that were read for a function; one that asks for any other that there is is stopped."""

    __slots__ = ()

    absent: ClassVar[Container[object]]
    path: ClassVar[str] = ""

    def __missing__(self, name: str) -> Any:
        if name in self.absent:
            raise UnforeseenColumn(name, self.path)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self.absent:
            raise UnforeseenColumn(name, self.path)
        return dict.get(self, name, default)

    def __contains__(self, name: object) -> bool:
        if name in self.absent:
            raise UnforeseenColumn(str(name), self.path)
        return dict.__contains__(self, name)

    def __bool__(self) -> bool:
        return True  # a row, whether or not the function asks for a column of it


def row_type(view: BoundView) -> type[dict[str, Any]]:
    """Make the type of the rows that a view's functions get, without what `columns=[...]` leaves out."""
    absent = frozenset(column.name for column in view.table.columns).difference(view.needed)
    if not absent or view.view.columns:
        return dict
    return _watched(absent)


def _watched(absent: Container[object], path: str = "") -> type[dict[str, Any]]:
    return type("Row", (_WatchedRow,), {"__slots__": (), "absent": absent, "path": path})


@dataclass(frozen=True, slots=True)
class _AllBut:
    """Every name but some."""

    names: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name not in self.names


Watch: TypeAlias = Callable[[list[Any]], list[Any]]


def watches(related: Relations, uses: Uses, above: str = "") -> dict[str, Watch]:
    """By name, what makes watched rows of related rows that lack columns; those of other names lack none.

    It takes the values of several rows: each a row or None, or of a Many a list of rows.
    """
    made = {}
    for name, of in related:
        below = uses.get(name)
        if isinstance(of, One | Many) and below is not None and (watch := _watch(of, below, f"{above}{name}")):
            made[name] = watch
    return made


def _watch(of: One | Many, uses: Uses, path: str) -> Watch | None:
    # columns=[...] says which there are; but for those, only what is below may be left out
    left_out = frozenset(name for name, _ in of.related).difference(uses) if of.columns else _AllBut(frozenset(uses))
    kind = _watched(left_out, path) if left_out else dict
    below = tuple(watches(of.related, uses, f"{path}.").items())
    if kind is dict and not below:
        return None

    def watched(rows: list[Any]) -> list[Any]:
        present = [row for row in rows if row is not None] if below else []
        for name, watch in below:
            for row, value in zip(present, watch([row[name] for row in present]), strict=True):
                row[name] = value
        return [None if row is None else kind(row) for row in rows]

    return watched if isinstance(of, One) else lambda lists: [watched(rows) for rows in lists]
