"""Small libraries for entities that viewtail keeps views of: event-sourced ones, with idempotent commands."""

from viewtail.entities.commands import (
    Answer,
    Command,
    HandlerFailedError,
    HandlerHungError,
    Refusal,
    RefusedError,
    UsedCommandIdError,
    WorkerBusyError,
    WorkerEndedError,
)
from viewtail.entities.declared_requests import InvalidRequestError
from viewtail.entities.event_sourced import EventSourced, State
from viewtail.entities.worker import CommandWorker

__all__ = [
    "Answer",
    "Command",
    "CommandWorker",
    "EventSourced",
    "HandlerFailedError",
    "HandlerHungError",
    "InvalidRequestError",
    "Refusal",
    "RefusedError",
    "State",
    "UsedCommandIdError",
    "WorkerBusyError",
    "WorkerEndedError",
]
