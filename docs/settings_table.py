"""Writes the table of settings into docs/operations.md, from the models in viewtail/settings.py.

python docs/settings_table.py            # rewrite it
python docs/settings_table.py --check    # exit 1 when it is not what the models say
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from generated import GeneratedPart

from viewtail.settings import Settings, known_names, variable

PART = GeneratedPart(
    page=Path(__file__).with_name("operations.md"), name="settings", command="python docs/settings_table.py"
)


def table() -> str:
    """The settings as a Markdown table, in the order of the models."""
    lines = ["| Variable | In viewtail.toml | Default | What it is |", "|---|---|---|---|"]
    for path in known_names():
        field = _field(path)
        lines.append(f"| `{variable(path)}` | {_place(path)} | {_default(field)} | {field.description} |")
    return "\n".join(lines)


def _field(path: tuple[str, ...]) -> Any:
    field = Settings.model_fields[path[0]]
    if len(path) == 1:
        return field
    group: Any = field.annotation
    return group.model_fields[path[1]]


def _place(path: tuple[str, ...]) -> str:
    return f"`{path[0]}`" if len(path) == 1 else f"`[{path[0]}]` `{path[1]}`"


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def rewritten(page: str) -> str:
    """The page with the table between its two marks brought up to date."""
    return PART.rewritten(page, table())


if __name__ == "__main__":
    sys.exit(PART.run(table()))
