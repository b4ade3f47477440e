"""Makes sure that the names of viewtail's packages mean viewtail's, whatever lies beside a user's views.py.

A folder of the user's may come first on the module path (PYTHONPATH, the working directory) and hold a package called
`changes` or `servers`. Importing this module, which `viewtail` does before anything else, loads ours under these names.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

# In this order, each imports only those before it.
NAMES = ("changes", "servers", "offsets", "ingest", "projectors", "operations")
ROOT = Path(__file__).resolve().parent.parent

for _name in NAMES:
    _spec = None if _name in sys.modules else PathFinder.find_spec(_name, [str(ROOT)])
    if _spec is not None and _spec.loader is not None:
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])
