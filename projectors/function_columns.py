"""Which columns of its row a user's function asks for: read from its source, and watched while it runs.

`row["x"]`, `row.get("x")` and `"x" in row` name a column. Whatever else is done with the row (`dict(row)`, a helper, a
name that is computed) may need any column. A function that asks for a column that was not read for it gets an error,
never a wrong answer.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from projectors.function_source import syntax_tree
from projectors.views import BoundView

# Names that are asked for, each with the names that are asked of its value; None: any.
Uses: TypeAlias = Mapping[str, "Uses | None"]

_LOOKS_AROUND = frozenset({"eval", "exec", "locals", "vars"})  # reach the row without its name


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


def columns_read(function: Callable[..., Any]) -> Reads:
    """The columns that a function of one argument, a row, may ask for."""
    if not isinstance(function, types.FunctionType):
        return Reads(why_all=f"viewtail does not look into {type(function).__name__} objects")
    code, name = function.__code__, function.__name__
    tree = syntax_tree(code)
    if tree is None or not code.co_argcount:
        return Reads(why_all=f"the source of {name} does not tell")
    uses: dict[str, Uses | None] = {}
    for column, text in _uses(tree, code.co_varnames[0]):
        if column is None:
            return Reads(why_all=f"{name} has: {text[:60]}")
        uses[column] = None
    return Reads(uses=uses)


def _uses(tree: ast.AST, row: str) -> Iterator[tuple[str | None, str]]:
    """Each use of the row: the column that it names, None where it may be any; and its text."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node, parent in parents.items():
        if getattr(node, "id", getattr(node, "attr", "")) in _LOOKS_AROUND:
            yield None, ast.unparse(node)
        # A variable of the same name in an inner function counts as the row, too.
        elif isinstance(node, ast.Name) and node.id == row:
            yield _column(parent, parents.get(parent)), ast.unparse(parent)


def _column(use: ast.AST, around: ast.AST | None) -> str | None:
    """The column that one use of the row names; None where it may be any."""
    match use, around:
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=str(name)), ctx=ast.Load()), _:
            return name
        case ast.Attribute(attr="get"), ast.Call(func=get, args=[ast.Constant(value=str(name)), *_]) if get is use:
            return name
        case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()]), _:
            return name
    return None


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
