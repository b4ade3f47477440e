"""Follows a function's row, and the related rows that it gets from it, through the function's syntax tree.

An expression has the rows that it may be, by where they come from. A name has all that is ever assigned to it, in
whatever order. Rows that go where nothing is known of what becomes of them (another function, what is returned) are
lost from sight: then any of their columns may be asked for. So too much may be found, and never too little.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from projectors.related import Many, One, Relations, Uses

_LOOK_AROUND = frozenset({"eval", "exec", "locals", "vars", "f_locals", "__closure__"})  # reach a row without its name
_DEEPEST = 8  # lists in lists: where a name is a list of itself, they would have no end
_TEXT = 60  # characters of the source that are shown


class Place:
    """Where rows come from: the function's row, or related rows of one name below it; and what is asked of them."""

    def __init__(self, related: Relations) -> None:
        self.related = dict(related)
        self.names: dict[str, Place | None] = {}  # that are asked for; None: whose values are no rows
        self.lost_in = ""  # the source that may ask for any name

    @property
    def uses(self) -> Uses | None:
        """All that is asked of its rows; None: it may be anything."""
        if self.lost_in:
            return None
        return {name: None if place is None else place.uses for name, place in self.names.items()}


Rows: TypeAlias = frozenset[tuple[Place, int]]  # each may be a row of that place (0), a list of them (1), of lists (2)
_NONE: Rows = frozenset()


def follow(tree: ast.AST, name: str, related: Relations, is_builtin: Callable[[str], bool]) -> Place:
    """What a function, a lambda or a definition, asks of its row.

    Args:
        name: of the row in it.
        related: what the row has from other tables.
        is_builtin: whether a name is the one of Python's builtins in that function.
    """
    row = Place(related)
    for node in ast.walk(tree):
        if getattr(node, "id", getattr(node, "attr", "")) in _LOOK_AROUND:
            row.lost_in = ast.unparse(node)
    flow = _Flow(row, is_builtin)
    before = -1
    while before != flow.found:  # what is assigned further down may have been asked for further up
        before = flow.found
        flow.begin(tree, name)
    return row


class _Flow(ast.NodeVisitor):
    """Visits nodes; the answer is the rows that the node may be, none for statements."""

    def __init__(self, row: Place, is_builtin: Callable[[str], bool]) -> None:
        self.found = 0  # grows with all that is found
        self._row = row
        self._is_builtin = is_builtin
        self._names: dict[str, Rows] = {}  # of the function and those defined in it, which are not told apart
        self._scopes: dict[ast.AST, dict[str, Rows]] = {}  # of lambdas and comprehensions: the names that are theirs
        self._inside: list[dict[str, Rows]] = []  # of the node, from the outermost
        self._outer: set[str] = set()  # names that others see

    def begin(self, tree: ast.AST, name: str) -> None:
        row = frozenset({(self._row, 0)})
        if isinstance(tree, ast.Lambda):
            self._lose(self._called(tree, row), tree)
        else:
            self._assign(self._names, name, row)
            self.generic_visit(tree)

    def visit(self, node: ast.AST) -> Rows:
        rows: Rows = super().visit(node)
        return rows

    # --- What is found ---

    def _lose(self, rows: Rows, within: ast.AST) -> Rows:
        for place, _ in rows:
            if not place.lost_in:
                place.lost_in = ast.unparse(within)[:_TEXT]
                self.found += 1
        return _NONE

    def _named(self, rows: Rows, name: str) -> Rows:
        """What rows have under a name. A list has no names: asking it for one raises."""
        return _all(self._value(place, name) for place, lists in rows if not lists)

    def _value(self, place: Place, name: str) -> Rows:
        related = place.related.get(name)
        if name not in place.names:
            self.found += 1
            place.names[name] = Place(related.related) if isinstance(related, One | Many) else None
        below = place.names[name]
        return _NONE if below is None else frozenset({(below, int(isinstance(related, Many)))})

    def _lists(self, rows: Rows, within: ast.AST) -> Rows:
        """Those that are lists; what is done is done with a row's names otherwise."""
        self._lose(frozenset(row for row in rows if not row[1]), within)
        return frozenset(row for row in rows if row[1])

    def _items(self, rows: Rows, within: ast.AST) -> Rows:
        return frozenset((place, lists - 1) for place, lists in self._lists(rows, within))

    def _listed(self, rows: Rows, within: ast.AST) -> Rows:
        """What a list of them is."""
        self._lose(frozenset(row for row in rows if row[1] >= _DEEPEST), within)
        return frozenset((place, lists + 1) for place, lists in rows if lists < _DEEPEST)

    # --- Names ---

    def _assign(self, names: dict[str, Rows], name: str, rows: Rows) -> None:
        before = names.get(name, _NONE)
        names[name] = before | rows
        self.found += len(names[name]) - len(before)

    def _bind(self, target: ast.AST, rows: Rows) -> None:
        match target:
            case ast.Name(id=name) if name not in self._outer:
                self._assign(self._names_with(name), name, rows)
            case ast.Starred(value=rest):
                self._bind(rest, self._listed(rows, target))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                items = self._items(rows, target)
                for each in targets:
                    self._bind(each, items)
            case _:
                self.visit(target)
                self._lose(rows, target)

    def _names_with(self, name: str) -> dict[str, Rows]:
        return next((names for names in reversed(self._inside) if name in names), self._names)

    def visit_Name(self, node: ast.Name) -> Rows:
        return self._names_with(node.id).get(node.id, _NONE) if isinstance(node.ctx, ast.Load) else _NONE

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> Rows:
        self.found += len({*node.names} - self._outer)
        self._outer.update(node.names)
        return _NONE

    visit_Nonlocal = visit_Global

    def visit_ClassDef(self, node: ast.ClassDef) -> Rows:
        for name in ast.walk(node):
            if isinstance(name, ast.Name):
                self._lose(self._names_with(name.id).get(name.id, _NONE), name)
        return _NONE

    # --- Statements ---

    def generic_visit(self, node: ast.AST) -> Rows:
        """Of whatever is not understood: it may do anything with the rows that are in it."""
        for child in ast.iter_child_nodes(node):
            self._lose(self.visit(child), node)
        return _NONE

    def visit_Expr(self, node: ast.Expr) -> Rows:
        self.visit(node.value)
        return _NONE

    def visit_Assign(self, node: ast.Assign) -> Rows:
        for target, value in chain.from_iterable(_pairs(target, node.value) for target in node.targets):
            self._bind(target, self.visit(value))
        return _NONE

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Rows:
        if node.value is not None:
            self._bind(node.target, self.visit(node.value))
        return _NONE

    def visit_AugAssign(self, node: ast.AugAssign) -> Rows:
        self._lose(self.visit(node.value), node)
        if isinstance(node.target, ast.Name):
            return self._lose(self._names_with(node.target.id).get(node.target.id, _NONE), node)
        self.visit(node.target)
        return _NONE

    def visit_If(self, node: ast.If | ast.While) -> Rows:
        self.visit(node.test)  # whether there is a row, or are some
        return self._statements([*node.body, *node.orelse])

    visit_While = visit_If

    def visit_Assert(self, node: ast.Assert) -> Rows:
        self.visit(node.test)
        return _NONE if node.msg is None else self._lose(self.visit(node.msg), node)

    def visit_For(self, node: ast.For) -> Rows:
        for target, rows in self._iterated(node.target, node.iter):
            self._bind(target, rows)
        return self._statements([*node.body, *node.orelse])

    def _statements(self, statements: Sequence[ast.stmt]) -> Rows:
        for statement in statements:
            self.visit(statement)
        return _NONE

    def _iterated(self, target: ast.AST, of: ast.expr) -> list[tuple[ast.AST, Rows]]:
        """What is assigned by going through something."""
        match target, of:
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="enumerate" | "zip" as name), args=args) if (
                self._is(name) and not _is_starred([*targets, *args])
            ):
                self._lose(_all(self.visit(keyword.value) for keyword in of.keywords), of)
                if name == "zip" and len(targets) == len(args):
                    return list(chain.from_iterable(map(self._iterated, targets, args)))
                if name == "enumerate" and len(targets) == 2 and args:
                    self._lose(_all(map(self.visit, args[1:])), of)
                    return [(targets[0], _NONE), *self._iterated(targets[1], args[0])]
        return [(target, self._items(self.visit(of), of))]

    # --- Expressions ---

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Rows:
        rows = self.visit(node.value)
        self._bind(node.target, rows)
        return rows

    def visit_Subscript(self, node: ast.Subscript) -> Rows:
        rows = self.visit(node.value)
        self._lose(self.visit(node.slice), node)
        match node:
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                return self._lose(rows, node)
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                return self._named(rows, name)
            case ast.Subscript(slice=ast.Slice()):
                return self._lists(rows, node)
        return self._items(rows, node) | self._lists(rows, node)  # a variable may hold a slice

    def visit_List(self, node: ast.List | ast.Tuple) -> Rows:
        return _all(
            self._lists(self.visit(item.value), node)
            if isinstance(item, ast.Starred)
            else self._listed(self.visit(item), node)
            for item in node.elts
        )

    visit_Tuple = visit_List

    def visit_BoolOp(self, node: ast.BoolOp) -> Rows:
        *others, last = [self.visit(value) for value in node.values]
        # What AND passes on of those before the last is no row and has none: None, or an empty list.
        return last if isinstance(node.op, ast.And) else _all([*others, last])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Rows:
        rows = self.visit(node.operand)
        return _NONE if isinstance(node.op, ast.Not) else self._lose(rows, node)

    def visit_IfExp(self, node: ast.IfExp) -> Rows:
        self.visit(node.test)
        return self.visit(node.body) | self.visit(node.orelse)

    def visit_Compare(self, node: ast.Compare) -> Rows:
        left = node.left
        for operation, right in zip(node.ops, node.comparators, strict=True):
            self._compare(left, operation, right, node)
            left = right
        return _NONE

    def _compare(self, left: ast.expr, operation: ast.cmpop, right: ast.expr, within: ast.AST) -> None:
        rows = self.visit(left), self.visit(right)
        match left, operation, right:
            case _, ast.Is() | ast.IsNot(), _:
                return
            case _, ast.Eq() | ast.NotEq(), ast.Constant(value=None):
                return
            case ast.Constant(value=str(name)), ast.In() | ast.NotIn(), _:
                self._named(rows[1], name)
            case _:
                self._lose(_all(rows), within)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> Rows:
        return self._listed(self._comprehended(node, node.elt), node)

    visit_GeneratorExp = visit_ListComp

    def visit_SetComp(self, node: ast.SetComp) -> Rows:
        return self._lose(self._comprehended(node, node.elt), node)

    def visit_DictComp(self, node: ast.DictComp) -> Rows:
        return self._lose(self._comprehended(node, node.key, node.value), node)

    def _comprehended(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp, *values: ast.expr
    ) -> Rows:
        first, *others = node.generators
        pairs = self._iterated(first.target, first.iter)  # that is outside
        nodes = chain.from_iterable(ast.walk(generator.target) for generator in node.generators)
        self._enter(node, [name.id for name in nodes if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)])
        for generator in others:
            pairs += self._iterated(generator.target, generator.iter)
        for target, rows in pairs:
            self._bind(target, rows)
        for condition in chain.from_iterable(generator.ifs for generator in node.generators):
            self.visit(condition)
        rows = _all([self.visit(value) for value in values])
        self._inside.pop()
        return rows

    def _enter(self, node: ast.AST, names: Iterable[str]) -> dict[str, Rows]:
        scope = self._scopes.setdefault(node, dict.fromkeys(names, _NONE))
        self._inside.append(scope)
        return scope

    # --- Calls ---

    def visit_Lambda(self, node: ast.Lambda) -> Rows:
        return self._lose(self._called(node, _NONE), node)

    def _called(self, node: ast.Lambda, first: Rows) -> Rows:
        """What a lambda returns for these rows."""
        self.generic_visit(node.args)  # the defaults
        scope = self._enter(node, _parameters(node))
        if scope:
            self._assign(scope, next(iter(scope)), first)
        rows = self.visit(node.body)
        self._inside.pop()
        return rows

    def _applied(self, function: ast.expr, items: Rows) -> Rows:
        """What a function returns that gets these one by one."""
        if isinstance(function, ast.Lambda) and (function.args.posonlyargs or function.args.args):
            return self._called(function, items)
        self._lose(self.visit(function), function)
        return self._lose(items, function)

    def visit_Call(self, node: ast.Call) -> Rows:
        match node:
            case ast.Call(
                func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(value=str(name)), *default], keywords=[]
            ):
                return _all([self._named(self.visit(of), name), *map(self.visit, default)])
            case ast.Call(func=ast.Name(id=name), args=args) if name in _BUILTINS and self._is(name):
                builtin = _BUILTINS[name]
                keywords = {keyword.arg or "": keyword.value for keyword in node.keywords}
                if len(args) in builtin.args and builtin.keywords.issuperset(keywords) and not _is_starred(args):
                    return builtin.follow(self, node, args, keywords)
        return self.generic_visit(node)

    def _is(self, name: str) -> bool:
        return name not in self._outer and self._is_builtin(name)

    def call_len(self, node: ast.Call, args: _Args, _: _Keywords) -> Rows:
        self._lists(self.visit(args[0]), node)
        return _NONE

    def call_bool(self, node: ast.Call, args: _Args, _: _Keywords) -> Rows:
        self.visit(args[0])
        return self._lose(_all(map(self.visit, args[1:])), node)

    def call_list(self, node: ast.Call, args: _Args, _: _Keywords) -> Rows:
        return self._lists(self.visit(args[0]), node)

    def call_sorted(self, node: ast.Call, args: _Args, keywords: _Keywords) -> Rows:
        rows = self._lists(self.visit(args[0]), node)
        items = self._items(rows, node)
        self._lose(self._applied(keywords["key"], items) if "key" in keywords else items, node)
        if "reverse" in keywords:
            self.visit(keywords["reverse"])
        return rows

    def call_min(self, node: ast.Call, args: _Args, keywords: _Keywords) -> Rows:
        least = self._items(self.call_sorted(node, args, keywords), node)
        return least | self.visit(keywords["default"]) if "default" in keywords else least

    def call_next(self, node: ast.Call, args: _Args, _: _Keywords) -> Rows:
        return self._items(self.visit(args[0]), node) | _all(map(self.visit, args[1:]))

    def call_filter(self, node: ast.Call, args: _Args, _: _Keywords) -> Rows:
        rows = self._lists(self.visit(args[1]), node)
        if not isinstance(args[0], ast.Constant):  # None: those that are true
            self._applied(args[0], self._items(rows, node))
        return rows

    def call_map(self, node: ast.Call, args: _Args, _: _Keywords) -> Rows:
        return self._listed(self._applied(args[0], self._items(self.visit(args[1]), node)), node)


_Args: TypeAlias = list[ast.expr]
_Keywords: TypeAlias = Mapping[str, ast.expr]


@dataclass(frozen=True, slots=True)
class _Builtin:
    """A function of Python's that is understood."""

    follow: Callable[[_Flow, ast.Call, _Args, _Keywords], Rows]
    args: range = range(1, 2)  # how many
    keywords: frozenset[str] = frozenset()


_BUILTINS = {
    **dict.fromkeys(("len", "any", "all"), _Builtin(_Flow.call_len)),
    **dict.fromkeys(("bool", "isinstance"), _Builtin(_Flow.call_bool, range(1, 3))),
    **dict.fromkeys(("list", "tuple", "iter", "reversed"), _Builtin(_Flow.call_list)),
    "sorted": _Builtin(_Flow.call_sorted, keywords=frozenset({"key", "reverse"})),
    **dict.fromkeys(("min", "max"), _Builtin(_Flow.call_min, keywords=frozenset({"key", "default"}))),
    "next": _Builtin(_Flow.call_next, range(1, 3)),
    "filter": _Builtin(_Flow.call_filter, range(2, 3)),
    "map": _Builtin(_Flow.call_map, range(2, 3)),
}


def _all(rows: Iterable[Rows]) -> Rows:
    return frozenset(chain.from_iterable(rows))


def _is_starred(nodes: Iterable[ast.AST]) -> bool:
    return any(isinstance(node, ast.Starred) for node in nodes)


def _pairs(target: ast.AST, value: ast.expr) -> list[tuple[ast.AST, ast.expr]]:
    """What is assigned to what: `a, b = c, d` assigns twice."""
    match target, value:
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), (ast.Tuple(elts=values) | ast.List(elts=values))):
            if len(targets) == len(values) and not _is_starred([*targets, *values]):
                return list(zip(targets, values, strict=True))
    return [(target, value)]


def _parameters(node: ast.Lambda) -> list[str]:
    """Their names; the first is the one that gets the first argument."""
    args = node.args
    rest = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, *rest)]
