"""The text of a user's function, for a view's fingerprint: it differs when what the function does may differ.

Made from the syntax tree, so that comments, formatting and moving the function do not count; what it refers to in the
user's own modules (helpers, constants), its defaults and its closure do. A change that is seen where there is none
costs a backfill; one that is missed would leave the view wrong, so in doubt it differs.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_Seen = dict[int, Any]  # objects already written out, by id; kept alive so that ids stay unique
_SIMPLE = (str, bytes, int, float, complex, bool, type(None))
_PARSING = threading.Lock()  # CPython counts the depth of all threads' trees in one place, and fails (3.11 to 3.13)
_FUNCTIONS = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)


def function_source(function: Callable[..., Any] | None) -> str:
    """Text that stands for the function and all it refers to; '' for None."""
    return "" if function is None else "\n".join(_text_of(function, {}))


def _text_of(thing: Any, seen: _Seen) -> Iterator[str]:
    if isinstance(thing, _SIMPLE):
        yield repr(thing)
        return
    if id(thing) in seen:
        yield f"again {list(seen).index(id(thing))}"
        return
    seen[id(thing)] = thing
    if isinstance(thing, functools.partial):
        yield from _each((thing.func, *thing.args, *thing.keywords.items()), seen)
    elif isinstance(thing, types.MethodType):
        yield from _each((thing.__func__, thing.__self__), seen)
    elif isinstance(thing, types.FunctionType):
        yield from _function(thing, seen)
    elif isinstance(thing, type):
        yield _name(thing) if _is_library(thing) else _class_source(thing)
    else:
        yield from _value(thing, seen)


def _each(things: Iterable[Any], seen: _Seen) -> Iterator[str]:
    for thing in things:
        yield from _text_of(thing, seen)


def _function(function: types.FunctionType, seen: _Seen) -> Iterator[str]:
    if _is_library(function):
        yield _name(function)
        return
    tree = syntax_tree(function.__code__)
    yield _bytecode(function.__code__) if tree is None else ast.unparse(tree)
    yield from _each(function.__defaults__ or (), seen)
    yield from _each(sorted((function.__kwdefaults__ or {}).items()), seen)
    yield from _closure(function, seen)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name
            yield from _text_of(function.__globals__[name], seen)
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        yield from _text_of(wrapped, seen)


def _closure(function: types.FunctionType, seen: _Seen) -> Iterator[str]:
    """The variables of outer functions that it uses, with what they hold."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name
        try:
            yield from _text_of(cell.cell_contents, seen)
        except ValueError:  # not set yet
            yield "unset"


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _value(thing: Any, seen: _Seen) -> Iterator[str]:
    if isinstance(thing, list | tuple):
        yield f"{type(thing).__name__} of {len(thing)}"
        yield from _each(thing, seen)
    elif isinstance(thing, dict):
        yield f"dict of {len(thing)}"
        for name, value in thing.items():
            yield repr(name)
            yield from _text_of(value, seen)
    elif isinstance(thing, set | frozenset):
        yield f"set {sorted(map(repr, thing))}"  # the order of a set differs between two runs
    elif isinstance(thing, types.ModuleType):
        yield thing.__name__
    else:
        yield _name(type(thing))
        if not _is_library(type(thing)):
            yield _class_source(type(thing))
            yield from _text_of(dict(getattr(thing, "__dict__", {})), seen)
        elif "__repr__" in vars(type(thing)) and not callable(thing):
            yield repr(thing)  # a compiled pattern, a Decimal, a date


def syntax_tree(code: types.CodeType) -> ast.AST | None:
    """The function's own source; None when it cannot be told for sure."""
    try:
        tree = _parsed("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and _is_of(node, code)]
    return nodes[0] if len(nodes) == 1 else None


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> ast.AST:
    with _PARSING:
        return ast.parse(text)


def _is_of(node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef, code: types.CodeType) -> bool:
    if not isinstance(node, ast.Lambda):
        first_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return (node.name, first_line) == (code.co_name, code.co_firstlineno)
    arguments = tuple(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))
    described = ("<lambda>", node.lineno, arguments)
    if described != (code.co_name, code.co_firstlineno, code.co_varnames[: code.co_argcount]):
        return False
    # Two lambdas of one line: all instructions of `code` come from this one's body.
    begin = (node.body.lineno, node.body.col_offset)
    end = (node.body.end_lineno, node.body.end_col_offset)
    places = _places(code)
    return bool(places) and begin <= min(places)[0] and max(last for _, last in places) <= end


def _places(code: types.CodeType) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Begin and end of the source of each instruction, where they are known."""
    known: Any = [place for place in code.co_positions() if None not in place and place[3]]
    return [((line, column), (end_line, end_column)) for line, end_line, column, end_column in known]


def _bytecode(code: types.CodeType) -> str:
    """Write down what the code does, where there is no source; another version of Python may do so in another way."""
    constants = [
        _bytecode(constant) if isinstance(constant, types.CodeType) else "".join(_text_of(constant, {}))
        for constant in code.co_consts
    ]
    return repr((code.co_code.hex(), constants, code.co_names, code.co_varnames))


def _class_source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return _name(kind)


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"


def _is_library(thing: Any) -> bool:
    """Return whether it comes from an installed package: only its name counts then."""
    module = sys.modules.get(getattr(thing, "__module__", "") or "")
    file = getattr(module, "__file__", None)
    return module is not None and (
        (file is None and module.__name__ != "__main__") or (file or "").startswith(_LIBRARIES)
    )
