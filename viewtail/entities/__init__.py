"""Small libraries for entities that viewtail keeps views of: event-sourced ones, with idempotent commands."""

from typing import TYPE_CHECKING

from viewtail.late_names import late

if TYPE_CHECKING:
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

__getattr__ = late(
    __name__,
    {
        "Answer": "viewtail.entities.commands",
        "Command": "viewtail.entities.commands",
        "CommandWorker": "viewtail.entities.worker",
        "EventSourced": "viewtail.entities.event_sourced",
        "HandlerFailedError": "viewtail.entities.commands",
        "HandlerHungError": "viewtail.entities.commands",
        "InvalidRequestError": "viewtail.entities.declared_requests",
        "Refusal": "viewtail.entities.commands",
        "RefusedError": "viewtail.entities.commands",
        "State": "viewtail.entities.event_sourced",
        "UsedCommandIdError": "viewtail.entities.commands",
        "WorkerBusyError": "viewtail.entities.commands",
        "WorkerEndedError": "viewtail.entities.commands",
    },
)
