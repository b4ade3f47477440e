"""Writes the table of settings into docs/reference.md, from the models in viewtail/settings.py, and the same settings
into the schema of the Helm chart.

python docs/settings_table.py            # rewrite it
python docs/settings_table.py --check    # exit 1 when it is not what the models say
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import chart_settings
from generated import GeneratedPart

from viewtail.settings import Settings, known_names, variable

PART = GeneratedPart(
    page=Path(__file__).with_name("reference.md"), name="settings", command="python docs/settings_table.py"
)

_HEAD = ["| Variable | In viewtail.toml | Default | What it is |", "|---|---|---|---|"]
_SERVERS = 5  # groups that name a server: what all of them have is listed once


def table() -> str:
    """The settings as Markdown tables, in the order of the models: those of every server once, and then all others."""
    shared = _shared()
    by_option: dict[str, tuple[str, ...]] = {}
    for path in shared:
        by_option.setdefault(path[1], path)
    groups = ", ".join(f"`[{group}]`" for group in dict.fromkeys(path[0] for path in shared))
    lines = [f"Each of {groups} has these, GROUP being its name in capitals:", "", *_HEAD]
    for option, path in by_option.items():
        lines.append(_line(f"VIEWTAIL_GROUP__{option.upper()}", f"`{option}`", path))
    lines += ["", "All others:", "", *_HEAD]
    lines += [_line(variable(path), _place(path), path) for path in known_names() if path not in shared]
    return "\n".join(lines)


def _shared() -> list[tuple[str, ...]]:
    """The settings of groups that every group of a server has, with one meaning and default."""
    groups: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
    for path in known_names():
        if len(path) > 1:
            field = _field(path)
            groups.setdefault((path[1], str(field.description), _default(field)), []).append(path)
    return [path for paths in groups.values() if len(paths) >= _SERVERS for path in paths]


def _line(name: str, place: str, path: tuple[str, ...]) -> str:
    field = _field(path)
    return f"| `{name}` | {place} | {_default(field)} | {field.description} |"


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
    if isinstance(value, tuple) and value:
        return f"`{','.join(value)}`"
    return f"`{value}`"


def rewritten(page: str) -> str:
    """The page with the table between its two marks brought up to date."""
    return PART.rewritten(page, table())


if __name__ == "__main__":
    sys.exit(max(PART.run(table()), chart_settings.run()))
