"""Makes the OpenAPI 3.1 document of the declared entities, from the names and docstrings of their handlers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from viewtail.entities import EventSourced
from viewtail.entities.commands import MOST_COMMAND_ID, MOST_ENTITY_ID, Handler
from viewtail.entities.declared_requests import declared
from viewtail.entities.serving import problems
from viewtail.entities.serving.problems import MEDIA_TYPE, Kind
from viewtail.entities.serving.requests import KEY_HEADER, KEY_PATTERN, MOST_DEPTH, MOST_VERSION

_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "Of the entity. Percent-encode what is not a letter, a digit or one of - . _ ~",
    "schema": {"type": "string", "minLength": 1, "maxLength": MOST_ENTITY_ID, "pattern": "^[^\\x00]+$"},
}
_KEY = {
    "name": KEY_HEADER,
    "in": "header",
    "required": True,
    "description": "Chosen by the sender, of its own for each command to an entity. A command that is sent again under "
    "its key takes effect once, and gets its first answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MOST_COMMAND_ID, "pattern": KEY_PATTERN},
}
_VERSION = {
    "name": "version",
    "in": "query",
    "description": "The state after the event of this version, instead of the newest.",
    "schema": {"type": "integer", "minimum": 1, "maximum": MOST_VERSION},
}
_VERSION_TEXT = {
    "type": "string",
    "pattern": "^[1-9][0-9]*$",
    "description": "Of the entity: 1 after its first event. A string, as JavaScript's numbers end at 2^53.",
}
_SCHEMAS = {
    "Answer": {
        "type": "object",
        "required": ["response", "version", "is_repeated"],
        "additionalProperties": False,
        "properties": {
            "response": {"description": "What the handler returned the first time."},
            "version": _VERSION_TEXT,
            "is_repeated": {"type": "boolean", "description": "The command was handled before, and not again now."},
        },
    },
    "State": {
        "type": "object",
        "required": ["state", "version"],
        "additionalProperties": False,
        "properties": {"state": {}, "version": _VERSION_TEXT},
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "additionalProperties": False,
        "properties": {
            "type": {"type": "string", "enum": [kind.uri for kind in problems.KINDS]},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
        },
    },
    "Probe": {"type": "object"},
    "Request": {
        "type": "object",
        "additionalProperties": {"$ref": "#/components/schemas/Value"},
        "description": f"What the handler gets; arrays and objects at most {MOST_DEPTH} deep in each other.",
    },
    "Value": {
        "anyOf": [
            {"type": ["null", "boolean", "string"]},
            {"type": "number", "description": "One that 64 bits hold: a whole number exactly, or a double."},
            {"type": "array", "items": {"$ref": "#/components/schemas/Value"}},
            {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Value"}},
        ]
    },
}
_OF_COMMANDS = (
    *(problems.BAD_REQUEST, problems.TOO_SLOW, problems.USED_ID, problems.TOO_LARGE, problems.MEDIA),
    *(problems.INVALID, problems.REFUSED, problems.HANDLER_FAILED, problems.STORE_REFUSED, problems.FAULT),
    *(problems.UNAVAILABLE, problems.HANDLER_HUNG),
)
_OF_STATES = (
    *(problems.BAD_REQUEST, problems.NOT_FOUND, problems.STORE_REFUSED, problems.FAULT, problems.UNAVAILABLE),
)
_PLACE = "#/components/schemas/"
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")


def document(entities: Sequence[EventSourced]) -> dict[str, Any]:
    """The OpenAPI document, as parsed JSON."""
    paths: dict[str, Any] = {}
    schemas = {**_SCHEMAS}
    for entity in entities:
        name = entity.table.name
        at = f"/{_literal(name)}/{{id}}"
        paths[at] = {"parameters": [_ID], "get": _state(name)}
        for command, handler in entity.handlers.items():
            paths[f"{at}/{_literal(command)}"] = {
                "parameters": [_ID],
                "post": _command(name, command, handler, schemas),
            }
    for probe, what in (("livez", "Whether the process answers."), ("readyz", "Whether its store answers, too.")):
        paths[f"/{probe}"] = {"get": _probe(probe, what)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Event-sourced entities, by viewtail", "version": version("viewtail")},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _literal(name: str) -> str:
    return quote(name, safe="")


def _state(name: str) -> dict[str, Any]:
    return {
        "tags": [name],
        "operationId": f"{name}:state",
        "summary": f"The state of a {name}.",
        "parameters": [_VERSION],
        "responses": {"200": _json("State", "The state, and its version."), **_problems(_OF_STATES)},
    }


def _command(name: str, command: str, handler: Handler, schemas: dict[str, Any]) -> dict[str, Any]:
    """Describe a command; the schemas of its request, and of the request's parts, join `schemas`."""
    text = inspect.getdoc(handler) if inspect.isroutine(handler) else None
    told = {"summary": text.partition("\n")[0], "description": text} if text else {"summary": command}
    return {
        "tags": [name],
        "operationId": f"{name}:{command}",
        **told,
        "parameters": [_KEY],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _PLACE + _request(name, command, handler, schemas)}}},
        },
        "responses": {
            "200": _json("Answer", "The command took effect, now or before."),
            **_problems(_OF_COMMANDS),
        },
    }


def _request(name: str, command: str, handler: Handler, schemas: dict[str, Any]) -> str:
    """Return the name of the request's schema."""
    known = declared(handler)
    if known is None:
        return "Request"
    place = _NO_NAME.sub("_", f"{name}.{command}")
    while place in schemas:  # of another command, which differs in what is no part of a schema's name
        place += "_"
    request_schema = known.schema(f"{_PLACE}{place}.{{model}}")
    schemas |= {f"{place}.{part}": schema for part, schema in request_schema.pop("$defs", {}).items()}
    schemas[place] = request_schema
    return place


def _probe(name: str, what: str) -> dict[str, Any]:
    responses = {"200": _json("Probe", "It is.")}
    if name == "readyz":
        responses["503"] = _json("Probe", "It is not.")
    return {"operationId": name, "summary": what, "responses": responses}


def _json(schema: str, description: str, media_type: str = "application/json") -> dict[str, Any]:
    return {
        "description": description,
        "content": {media_type: {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _problems(kinds: Sequence[Kind]) -> dict[str, Any]:
    by_status: dict[str, list[str]] = {}
    for kind in kinds:
        by_status.setdefault(str(kind.status), []).append(kind.title)
    responses = {status: _json("Problem", ". ".join(titles), MEDIA_TYPE) for status, titles in by_status.items()}
    unavailable = responses[str(problems.UNAVAILABLE.status)]
    unavailable["headers"] = {"Retry-After": {"description": "In seconds.", "schema": {"type": "integer"}}}
    return responses
