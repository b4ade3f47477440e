"""Functions as a user's module has them: their source is in a file."""

from __future__ import annotations

import linecache
import textwrap
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

_NUMBERS = count()


def function(text: str, name: str = "f") -> Callable[[Any], Any]:
    """The function of that name in a module with this text."""
    source = textwrap.dedent(text)
    file = f"<views of a test, {next(_NUMBERS)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module: dict[str, Any] = {"__name__": "views", "__builtins__": __builtins__}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(source, file, "exec"), module)
    made: Callable[[Any], Any] = module[name]
    return made
