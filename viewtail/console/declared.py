"""The lines of views.py that declare a view, for people to read. The file is read, never run."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path

from projectors.views import View

MOST_LINES = 80


@dataclass(frozen=True, slots=True)
class Declaration:
    """The text of a declaration, and where it stands."""

    text: str
    file: str
    line: int


def of(view: View, name: str) -> Declaration | None:
    """Return the call that declares a view in the module of `MODULE:ATTRIBUTE`.

    None where no call there has the view's class and name as they are, as where a loop declares many.
    """
    try:
        found = importlib.util.find_spec(name.partition(":")[0])
        file = Path(found.origin) if found is not None and found.origin else None
        source = file.read_text() if file is not None else ""
        tree = ast.parse(source)
    except (ImportError, OSError, SyntaxError, ValueError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _declares(node, view)]
    if len(calls) != 1 or file is None:
        return None
    call = calls[0]
    lines = source.splitlines()[call.lineno - 1 : call.end_lineno][:MOST_LINES]
    return Declaration(inspect.cleandoc("\n".join(lines)).rstrip(","), file.name, call.lineno)


def _declares(call: ast.Call, view: View) -> bool:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "name")]
    return function == type(view).__name__ and any(
        isinstance(value, ast.Constant) and value.value == view.name for value in first
    )
