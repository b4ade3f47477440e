"""The request that a handler declares: the type hint of its second argument, as pydantic reads it.

    class Deposit(BaseModel):
        amount: int

    def deposit(state, request: Deposit): ...

A request that does not fit is refused, naming the fields, before the handler is called. Without a hint, or with one
that every JSON object fits (dict, Any), the handler gets the request as it came."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import orjson

from viewtail.changes.errors import MisuseError

_MOST_FIELDS = 20  # that a message names
_OPEN = (None, Any, object, dict, Mapping, dict[str, Any], Mapping[str, Any])


class InvalidRequestError(MisuseError):
    """The request is not what the command's handler declares. Nothing was written; the message names the fields."""


class Declared:
    """The request of one handler."""

    def __init__(self, hint: Any, handler: str) -> None:
        from pydantic import TypeAdapter, ValidationError  # only who declares something needs it
        from pydantic.errors import PydanticUserError

        self._invalid = ValidationError
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(hint)
            self._adapter.json_schema()
        except (PydanticUserError, NameError) as error:
            raise MisuseError(
                f"the handler {handler}: its request's type hint, {hint!r}, cannot be read as one of JSON "
                f"({str(error).partition(chr(10))[0]}). Use a pydantic model, a TypedDict, a dataclass or dict"
            ) from None

    def read(self, request: bytes, command: str) -> Any:
        """Parse a request in JSON to what the handler gets. Raises InvalidRequestError.

        Parsing is strict: text is no number, and a number is no text. Types that JSON lacks (dates, decimals) are text.
        """
        try:
            return self._adapter.validate_json(request, strict=True)
        except self._invalid as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
        named = [
            f"{'.'.join(map(str, problem['loc'])) or 'the request'}: {problem['msg']}"
            for problem in errors[:_MOST_FIELDS]
        ]
        more = f"; and {len(errors) - _MOST_FIELDS} more" if len(errors) > _MOST_FIELDS else ""
        raise InvalidRequestError(f"the request of {command} is not valid. {'; '.join(named)}{more}")

    def schema(self, ref_template: str) -> dict[str, Any]:
        """The request's JSON Schema; `ref_template` says where the schemas of its parts, its $defs, will be."""
        return self._adapter.json_schema(ref_template=ref_template)


def declared(handler: Callable[..., Any]) -> Declared | None:
    """The request that a handler declares; None if it takes any. Raises MisuseError for a hint that cannot be read."""
    try:
        return _remembered(handler)
    except TypeError:  # an object that has no hash
        return _declared(handler)


def _declared(handler: Callable[..., Any]) -> Declared | None:
    hint = _hint(handler)
    return (
        None if any(hint is open_hint or hint == open_hint for open_hint in _OPEN) else Declared(hint, _name(handler))
    )


_remembered = lru_cache(maxsize=4096)(_declared)


def read(handler: Callable[..., Any], request: bytes, command: str) -> Any:
    """The request as the handler gets it: an object of its own each time. Raises InvalidRequestError."""
    known = declared(handler)
    return orjson.loads(request) if known is None else known.read(request, command)


def _hint(handler: Callable[..., Any]) -> Any:
    try:
        arguments = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):  # of a function in C
        return None
    places = [
        argument
        for argument in arguments
        if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    ]
    if len(places) < 2 or places[1].annotation is inspect.Parameter.empty:
        return None
    hint = places[1].annotation
    if not isinstance(hint, str):
        return hint
    function = inspect.unwrap(handler.func if isinstance(handler, partial) else handler)
    function = function if inspect.isroutine(function) else type(function).__call__
    function = getattr(function, "__func__", function)
    names = {**vars(sys.modules.get(function.__module__, sys)), **getattr(function, "__globals__", {})}
    try:
        return eval(hint, names, inspect.getclosurevars(function).nonlocals)  # as typing.get_type_hints does
    except Exception as error:
        raise MisuseError(
            f"the handler {_name(handler)}: the type hint of its request, {hint!r}, cannot be found "
            f"({type(error).__name__}). Import it at the top of the module, outside `if TYPE_CHECKING`"
        ) from None


def _name(handler: Callable[..., Any]) -> str:
    return str(getattr(handler, "__qualname__", type(handler).__name__))
