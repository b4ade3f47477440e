"""Writes the settings into the schema of the Helm chart's values, from the models in viewtail/settings.py.

docs/settings_table.py calls it: whoever adds a setting has one command to run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from viewtail.settings import Settings, known_names

SCHEMA = Path(__file__).resolve().parent.parent / "deploy/helm/viewtail/values.schema.json"
_BY_THE_CHART = ("metrics",)  # the probes and the Service need its port
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum"}
_Schema = dict[str, Any]


def rewritten(schema: _Schema) -> _Schema:
    """The schema of the values with all settings, by group, and the names of those that a Secret may have."""
    groups: dict[str, _Schema] = {}
    single: dict[str, _Schema] = {}
    for path in known_names():
        if path[0] in _BY_THE_CHART or _is_only_secret(path):
            continue
        place = single if len(path) == 1 else groups.setdefault(path[0], {})
        place[path[-1]] = _of(path)
    closed = {name: _object(members) for name, members in groups.items()}
    source = {"type": "object", "additionalProperties": closed["source"]}
    secrets = [".".join(path) for path in known_names() if _is_secret(path)]
    of_sources = "|".join(name.removeprefix("source.") for name in secrets if name.startswith("source."))
    definitions = {
        "settings": _object({**single, **closed, "sources": source}),
        "secret": {"anyOf": [{"enum": secrets}, {"pattern": rf"^sources\.[a-z0-9_]+\.({of_sources})$"}]},
    }
    return {**schema, "$defs": {**schema["$defs"], **definitions}}


def run() -> int:
    """The script's exit code: 0 when the schema is right or was made so, 1 when --check found it out of date."""
    schema = json.loads(SCHEMA.read_text())
    wanted = rewritten(schema)
    if "--check" in sys.argv[1:]:
        if schema != wanted:
            print(f"{SCHEMA} is out of date; run: python docs/settings_table.py", file=sys.stderr)
        return int(schema != wanted)
    SCHEMA.write_text(json.dumps(wanted, indent=2) + "\n")
    return 0


def _object(members: dict[str, _Schema]) -> _Schema:
    return {"type": "object", "additionalProperties": False, "properties": members}


def _is_secret(path: tuple[str, ...]) -> bool:
    return "SecretStr" in str(_field(path).annotation)


def _is_only_secret(path: tuple[str, ...]) -> bool:
    """A server's address is one where a password is in it, and the chart refuses that; a webhook's always is."""
    return _is_secret(path) and (path == ("notify", "url") or not path[-1].endswith("url"))


def _of(path: tuple[str, ...]) -> _Schema:
    field = _field(path)
    kind = _kind(field.annotation)
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if get_origin(kind) is dict:
        return {"type": "object"}
    if get_origin(kind) is tuple:
        return {"type": ["array", "string"], "items": {"type": "string"}}
    if kind is bool:
        return {"type": "boolean"}
    if kind in (int, float):
        limits = {
            name: getattr(limit, key)
            for limit in field.metadata
            for key, name in _LIMITS.items()
            if hasattr(limit, key)
        }
        number = {"type": "integer" if kind is int else "number", **limits}
        return {"anyOf": [number, {"const": "off"}]} if path[-1] == "port" else number
    return {"type": "string", "minLength": 1}


def _kind(annotation: Any) -> Any:
    """Without `| None`."""
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (one for one in get_args(annotation) if one is not type(None))
    return annotation


def _field(path: tuple[str, ...]) -> Any:
    field = Settings.model_fields[path[0]]
    group: Any = field.annotation
    return field if len(path) == 1 else group.model_fields[path[1]]
