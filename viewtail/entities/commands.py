"""Commands, the answers of handlers, and the errors that callers get.

A handler is a plain function of the entity's state and the request. It returns the response and the new state, or
raises `Refusal`, which writes nothing. All four are JSON: the next handler, and every caller of the same command, get
what was written, so an answer is the same the first time and ever after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from viewtail.changes.errors import MisuseError, TemporaryError, ViewtailError
from viewtail.entities import declared_requests
from viewtail.entities.declared_requests import InvalidRequestError
from viewtail.entities.stored_texts import NotJsonError, as_json, is_key

Handler: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]

MOST_ENTITY_ID = 128  # characters of an entity's id: Elasticsearch takes 512 bytes
MOST_COMMAND_ID = 190  # of a command's id: both are in one key of at most 3072 bytes
MOST_NAME = 64


class Refusal(Exception):
    """Raised by a handler: a business rule forbids the command. Nothing is written; its text is the caller's reason."""


class RefusedError(ViewtailError):
    """The command was refused by a rule, and wrote nothing. Sent again, it is judged by the state of that time."""


class UsedCommandIdError(MisuseError):
    """The entity has another command under this id."""


class HandlerFailedError(ViewtailError):
    """The handler raised, hung, or answered what is no JSON. Nothing was written."""


class HandlerHungError(HandlerFailedError):
    """The handler did not return in time. Nothing was written, and nothing will be."""


class WorkerBusyError(TemporaryError):
    """So many commands wait already that this one was not taken. Nothing was written for it."""


class WorkerEndedError(ViewtailError):
    """The worker was closed before the command was handled. Nothing was written for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A request to one entity. Sent again under its id it is not executed again, and gets its first answer.

    Args:
        entity_id: 1 to 128 characters.
        command_id: 1 to 190 characters, chosen by who sends it; unique within the entity.
        name: of the handler.
        request: JSON.
    """

    entity_id: str
    command_id: str
    name: str
    request: Any = None
    request_text: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # In a line each: a worker's callers make ten thousand a second.
        if not is_key(self.entity_id, MOST_ENTITY_ID):
            raise _no_key("entity_id", MOST_ENTITY_ID)
        if not is_key(self.command_id, MOST_COMMAND_ID):
            raise _no_key("command_id", MOST_COMMAND_ID)
        if not is_key(self.name, MOST_NAME):
            raise _no_key("name", MOST_NAME)
        try:
            text = as_json(self.request)
        except NotJsonError as error:
            raise MisuseError(f"the request of command {self.name} is no JSON: {error}") from None
        object.__setattr__(self, "request_text", text)


def _no_key(what: str, most: int) -> MisuseError:
    return MisuseError(f"a command's {what} is text of 1 to {most} characters, without NUL or lone surrogates")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The first response to a command, and the version that its entity had then.

    Args:
        version: of the entity: 1 for its first event.
        is_repeated: it was handled before, and not again now.
    """

    response: Any
    version: int
    is_repeated: bool


def handled(handler: Handler, command: Command, state: bytes) -> tuple[bytes, bytes]:
    """Return the response and the new state of one command, as JSON.

    Raises RefusedError, HandlerFailedError, or InvalidRequestError for a request that is not as the handler declares.
    """
    try:
        # Each gets objects of its own: what a handler changes before it fails is nobody else's.
        answer = handler(orjson.loads(state), declared_requests.read(handler, command.request_text, command.name))
    except InvalidRequestError:
        raise
    except Refusal as refusal:
        raise RefusedError(str(refusal) or f"{command.name} is refused") from None
    except BaseException as error:  # SystemExit too: the thread is not the handler's
        raise _failed(command, f"raised {type(error).__name__}") from error
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise _failed(command, f"returned {type(answer).__name__}, not a tuple of response and state")
    what = "response"
    try:
        response, what = as_json(answer[0]), "state"
        return response, as_json(answer[1])
    except NotJsonError as error:
        raise _failed(command, f"returned a {what} that is no JSON: {error}") from None


def _failed(command: Command, how: str) -> HandlerFailedError:
    return HandlerFailedError(f"the handler of {command.name} {how}; nothing was written")
