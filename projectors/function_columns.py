"""Which columns of its row a user's function asks for: read from its source, and watched while it runs.

`row["x"]`, `row.get("x")` and `"x" in row` name a column. A helper that gets the row as a whole is read too. Whatever
else is done with the row (`dict(row)`, a name that is computed, another library's function) may need any column. Where
the source says less than the function does, `watched` makes sure that it gets an error and never a wrong answer.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from projectors.function_source import syntax_tree

_LOOKS_AROUND = frozenset({"eval", "exec", "locals", "vars", "_getframe"})  # reach the row without its name
_AS_A_WHOLE = (
    "__iter__", "__reversed__", "__len__", "__eq__", "__ne__", "__or__", "__ror__", "keys", "values", "items", "copy",
    "pop", "popitem", "setdefault",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What a function may ask its row for."""

    columns: frozenset[str]  # the names in its source; the table may lack some of them
    why_all: str = ""  # what in it may ask for any column; '': nothing does


class _AnyColumn(Exception):
    """The function does something with the row that may need any column."""


def columns_read(function: Callable[..., Any]) -> Reads:
    """The columns that a function of one argument, a row, may ask for."""
    try:
        return Reads(columns=frozenset(_of_function(function, 0, set())))
    except _AnyColumn as found:
        return Reads(columns=frozenset(), why_all=str(found))


def _of_function(function: Any, position: int | str, seen: set[tuple[Any, ...]]) -> Iterator[str]:
    """`position`: of the argument that is the row, or its name."""
    if not isinstance(function, types.FunctionType):
        raise _AnyColumn(f"{type(function).__name__} objects are not looked into")
    code = function.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    row = (
        position if isinstance(position, str) else "".join(named[: code.co_argcount][position : position + 1])
    )
    tree = syntax_tree(code)
    if tree is None or row not in named:
        raise _AnyColumn(f"the source of {function.__name__} does not tell")
    if (code, row) not in seen:
        seen.add((code, row))
        yield from _Reading(function, row, seen).columns(tree)


class _Reading:
    """One function, and the name under which it has the row."""

    def __init__(self, function: types.FunctionType, row: str, seen: set[tuple[Any, ...]]) -> None:
        self._function = function
        self._row = row
        self._seen = seen

    def columns(self, tree: ast.AST) -> Iterator[str]:
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == self._row:
                yield from self._use(node, parents)
            elif getattr(node, "id", getattr(node, "attr", "")) in _LOOKS_AROUND:
                self._any(node)

    def _use(self, row: ast.Name, parents: dict[ast.AST, ast.AST]) -> Iterator[str]:
        """One place where the row stands; another variable of its name counts as the row."""
        node = parents[row]
        match node:
            case ast.Subscript(value=value, slice=name, ctx=ast.Load()) if value is row:
                yield self._text(name, node)
            case ast.Attribute(attr="get"):
                call = parents[node]
                if not isinstance(call, ast.Call) or call.func is not node or not call.args:
                    self._any(node)
                yield self._text(call.args[0], node)
            case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()]) if name is not row:
                yield self._text(name, node)
            case ast.Call(func=ast.Name(id=helper), args=args) if row in args:
                at = args.index(row)
                if any(isinstance(arg, ast.Starred) for arg in args[:at]):
                    self._any(node)
                yield from self._helper(helper, at, node)
            case ast.keyword(arg=str(name)) if isinstance(call := parents[node], ast.Call):
                if not isinstance(call.func, ast.Name):
                    self._any(call)
                yield from self._helper(call.func.id, name, call)
            case _:
                self._any(node)

    def _helper(self, name: str, position: int | str, call: ast.AST) -> Iterator[str]:
        helper = self._global(name)
        if not isinstance(helper, types.FunctionType):
            self._any(call)
        yield from _of_function(helper, position, self._seen)

    def _text(self, name: ast.expr, node: ast.AST) -> str:
        """A column's name: written there, or a constant of the module."""
        text = name.value if isinstance(name, ast.Constant) else None
        if isinstance(name, ast.Name):
            text = self._global(name.id)
        if not isinstance(text, str):
            self._any(node)
        return text

    def _global(self, name: str) -> Any:
        """What the function finds under a name of its module; None for a variable of its own."""
        own = {one for code in _with_inner(self._function.__code__) for one in _variables(code)}
        return None if name in own else self._function.__globals__.get(name)

    def _any(self, node: ast.AST) -> NoReturn:
        raise _AnyColumn(f"{self._function.__name__} has: {ast.unparse(node)[:60]}")


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _variables(code: types.CodeType) -> tuple[str, ...]:
    return (*code.co_varnames, *code.co_cellvars, *code.co_freevars)


# --- While it runs ---


class UnforeseenColumn(Exception):
    """A function asked for a column that was not read for it. No KeyError: it must not be taken for an absent one."""


_get = dict.get


class WatchedRow(dict[str, Any]):
    """The columns that were read for a function; asking for any other that the table has raises and is noted."""

    __slots__ = ()

    absent: ClassVar[frozenset[str]]
    asked: ClassVar[list[str]]  # since it was cleared: a function may catch what is raised

    def __missing__(self, name: str) -> Any:
        if name in self.absent:
            self._refuse(name)
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self.absent:
            self._refuse(name)
        return _get(self, name, default)

    def __contains__(self, name: object) -> bool:
        if name in self.absent:
            self._refuse(str(name))
        return dict.__contains__(self, name)

    def _refuse(self, name: str) -> NoReturn:
        self.asked.append(name)
        raise UnforeseenColumn(name)


def _refuse_whole(row: WatchedRow, *_: Any) -> NoReturn:
    row._refuse(", ".join(sorted(row.absent)))


for _name in _AS_A_WHOLE:
    setattr(WatchedRow, _name, _refuse_whole)


def watched(absent: frozenset[str]) -> type[WatchedRow]:
    """A kind of row that lacks these columns of its table, with a note of its own of what was asked for."""
    return type("WatchedRow", (WatchedRow,), {"__slots__": (), "absent": absent, "asked": []})
