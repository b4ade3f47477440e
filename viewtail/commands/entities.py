"""`viewtail entities`: the tables of the declared event-sourced entities, and their commands from a Kafka topic."""

from __future__ import annotations

import threading
from pathlib import Path

import structlog

from projectors.stores.registry import store_named
from viewtail import logs, settings
from viewtail.changes.errors import SettingsError
from viewtail.entities.serving import declared
from viewtail.signals import end_at_once, on_stop


def create(config: Path | None, *, is_printed: bool) -> int:
    """Make the tables, or print the SQL that would; returns the exit code."""
    for entity in declared.entities(settings.load(config)):
        if is_printed:
            print(f"{entity.ddl()};")
            continue
        is_new = entity.create()
        print(f"{entity.table.name}: {'created' if is_new else 'is there already'}")
    return 0


def consume(config: Path | None) -> int:
    """Handle the commands of the topic until stopped; returns the exit code."""
    from viewtail.entities.serving.topic import CommandsTopic

    loaded = settings.load(config)
    logs.configure(loaded.logs)
    entities = declared.entities(loaded)
    own = loaded.serve
    if own.commands_topic is None or own.replies_topic is None:
        raise SettingsError(
            "the topics are not set: VIEWTAIL_SERVE__COMMANDS_TOPIC and VIEWTAIL_SERVE__REPLIES_TOPIC, or "
            "commands_topic and replies_topic under [serve]"
        )
    client = loaded.access(store_named("kafka")).section.client()
    end_at_once()
    for entity in entities:
        entity.check()
    stop = threading.Event()
    on_stop(stop.set)
    topic = CommandsTopic(
        entities, client, commands=own.commands_topic, replies=own.replies_topic, group=own.commands_group
    )
    structlog.get_logger("viewtail.serve").info("consuming commands", topic=own.commands_topic)
    topic.run(stop)
    return 0
