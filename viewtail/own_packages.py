"""Makes sure that `offsets`, `ingest` and `projectors` are viewtail's, whatever lies beside a user's views.py.

A folder of the user's may come first on the module path (PYTHONPATH, the working directory) and hold a package of one
of these names. Importing this module, which `viewtail` does before anything else, has Python find ours; a program that
imported one of its own before is told so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = ("offsets", "ingest", "projectors")
ROOT = Path(__file__).resolve().parent.parent


class _Ours(PathFinder):
    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return super().find_spec(fullname, [str(ROOT)], target) if path is None and fullname in NAMES else None


def command(module: str, *arguments: str) -> list[str]:
    """The argv of a process that runs one of our modules: -P, or the working directory, a user's, would come first."""
    return [sys.executable, "-P", "-m", module, *arguments]


def _refuse_others() -> None:
    for name in NAMES:
        found = getattr(sys.modules.get(name), "__file__", None)
        if name in sys.modules and (found is None or ROOT not in Path(found).resolve().parents):
            where = "a module" if found is None else found
            raise ImportError(
                f"viewtail has a package called {name} itself, and this process has imported another one: {where}. A "
                f"process can have one of that name: rename yours, e.g. to my_{name}"
            )


_refuse_others()
sys.meta_path.insert(0, _Ours)
