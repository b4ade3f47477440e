"""Calls the handlers of a batch of commands, each on the state that the one before left. No server is asked for it.

The caller gives the assumed states of the entities, and the commands that are known to be recorded already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson

from viewtail.changes.errors import ViewtailError
from viewtail.entities.commands import Answer, Command, Handler, HandlerFailedError, UsedCommandIdError, handled
from viewtail.entities.event_table import NOTHING, Event, Newest, Recorded

Outcome: TypeAlias = "Answer | ViewtailError"

MOST_BYTES = 8 << 20  # the maximum size of one event
BATCH_BYTES = 16 << 20  # of events: a transaction ends with the event that reaches it
NO_EVENTS: Newest = (0, NOTHING, 1)


@dataclass(eq=False, slots=True)
class Batch:
    """Commands, and what their handlers made of them.

    Args:
        first: the place of the first command.
        entities: of the commands.
        assumed: the newest event of each that has one, before any handler was called.
        recorded: by entity and command id, what is known to have been handled before; and then what this batch does.
        is_looked_up: all that was handled before is known.
        is_remembered: some of what is assumed was not read for this batch.
    """

    commands: Sequence[Command]
    first: int
    entities: set[str]
    assumed: Mapping[str, Newest]
    recorded: dict[tuple[str, str], Recorded | Event]
    is_looked_up: bool
    is_remembered: bool
    states: dict[str, Newest] = field(init=False)  # the newest events that it leaves
    outcomes: list[Outcome] = field(default_factory=list, init=False)  # in order, of the commands whose turn came
    events: list[Event] = field(default_factory=list, init=False)  # to be written
    newest: dict[str, int] = field(default_factory=dict, init=False)  # versions, of the entities that got an event
    in_vain: list[Command] = field(default_factory=list, init=False)  # write nothing, may have been handled before
    took_s: float = field(default=0.0, init=False)  # by handlers, and what was done between them

    def __post_init__(self) -> None:
        self.states = {**self.assumed}

    def call(
        self, handlers: Mapping[str, Handler], look: Callable[[int], None], between: Callable[[], None] = lambda: None
    ) -> None:
        """Call the handlers of all commands, or of the first ones until their events reach BATCH_BYTES.

        `look` is called before a handler with its command's place; it may raise the ViewtailError that is the outcome.
        `between` is called after each handler."""
        byte_count, began = 0, time.monotonic()
        for at, command in enumerate(self.commands, self.first):
            count = len(self.events)
            self.outcomes.append(self._answer(at, command, handlers, look))
            if len(self.events) > count:
                byte_count += self.events[-1].size
                if byte_count > BATCH_BYTES:
                    break
            between()
        self.took_s = time.monotonic() - began
        self.newest = {event.command.entity_id: event.version for event in self.events}
        if not self.is_looked_up and len(self.events) < len(self.outcomes):
            self.in_vain = [
                command
                for command, outcome in zip(self.commands, self.outcomes, strict=False)
                if not isinstance(outcome, Answer) and (command.entity_id, command.command_id) not in self.recorded
            ]

    @property
    def not_told_by_keys(self) -> set[str]:
        """The entities of which the table's unique keys tell nothing: without an event before, or without a new one."""
        return self.entities - (self.newest.keys() & self.assumed.keys())

    def _answer(
        self, at: int, command: Command, handlers: Mapping[str, Handler], look: Callable[[int], None]
    ) -> Outcome:
        known = self.recorded.get((command.entity_id, command.command_id))
        if known is not None:
            return _again(command, known)
        handler = handlers.get(command.name)
        if handler is None:
            return HandlerFailedError(f"nothing handles the command {command.name}; nothing was written")
        version, state, first = self.states.get(command.entity_id, NO_EVENTS)
        try:
            look(at)
            response, state = handled(handler, command, state)
        except ViewtailError as error:
            return error
        if len(response) + len(state) + len(command.request_text) > MOST_BYTES:
            return HandlerFailedError(
                f"what {command.name} was to write is larger than {MOST_BYTES >> 20} MiB; nothing was written"
            )
        version += 1
        event = Event(command, version, response, state)
        self.states[command.entity_id] = version, state, first
        self.recorded[command.entity_id, command.command_id] = event
        self.events.append(event)
        return Answer(response=orjson.loads(response), version=version, is_repeated=False)


def of_archived(commands: Sequence[Command], states: Mapping[str, Newest]) -> list[Command]:
    """The commands of entities that have archived events."""
    return [command for command in commands if states.get(command.entity_id, NO_EVENTS)[2] > 1]


def _again(command: Command, known: Recorded | Event) -> Outcome:
    """Return the first answer to the same command; an error where another command has its id."""
    request = orjson.dumps(orjson.loads(known.request), option=orjson.OPT_SORT_KEYS)
    if (known.name, request) != (command.name, command.request_text):
        what = "another command" if known.name != command.name else "another request"
        return UsedCommandIdError(
            f"command id {command.command_id} of entity {command.entity_id} is that of {what} ({known.name}, version "
            f"{known.version}): use an id of its own for each command"
        )
    return Answer(response=orjson.loads(known.response), version=known.version, is_repeated=True)
