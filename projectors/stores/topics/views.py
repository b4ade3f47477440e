"""The view class of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from projectors.views import Entity, RowFunction, View, column_names
from viewtail.changes.errors import DeclarationError

MOST_PARTITIONS = 100_000
POLICY = "cleanup.policy"
EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)


@dataclass(frozen=True, slots=True, init=False)
class Topic(View):
    """Every change of an entity as a message of a Kafka topic, keyed by entity; the name is the topic's.

    The form of the messages is Debezium's: see docs/consuming.md. A topic that is not there is created.

    Args:
        fields: the columns that messages show; by default all. The key's columns are always in the message key.
        partitions: of a topic that viewtail creates; by default as many as the broker's `num.partitions`.
        compact: Kafka keeps the newest message of each key for ever, so that the topic can be read in place of the
            table. Otherwise messages go after the retention time.
        config: the topic's own settings, as Kafka names them: {"min.insync.replicas": 2, "retention.ms": 86400000}.
        schemas: each message carries the schema of its key and value, as Kafka Connect's JsonConverter writes it.
        delivery: "exactly_once", or "at_least_once": readers that do not wait for commits (read_uncommitted) have a
            change at once, and after a crash some changes twice; commits are seconds apart.
        where: a row for which it is false is not in the topic.
        unmasked: columns that it needs as they are, although they are masked (docs/masks.md).
    """

    store: ClassVar[str] = "kafka"
    shows_table: ClassVar[bool] = True

    fields: tuple[str, ...]
    partitions: int | None
    is_compact: bool
    config: Mapping[str, str]
    has_schemas: bool
    delivery: str

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        fields: Sequence[str] = (),
        partitions: int | None = None,
        compact: bool = True,
        config: Mapping[str, str | int | float | bool] | None = None,
        schemas: bool = False,
        delivery: str = EXACTLY_ONCE,
        where: RowFunction | None = None,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        self._set(name, entity, where, unmasked=unmasked)
        label = f"Topic({name!r})"
        if partitions is not None and not (type(partitions) is int and 0 < partitions <= MOST_PARTITIONS):
            raise DeclarationError(f"{label}: partitions is a number from 1 to {MOST_PARTITIONS:,}, not {partitions!r}")
        for given, what in ((compact, "compact"), (schemas, "schemas")):
            if not isinstance(given, bool):
                raise DeclarationError(f"{label}: {what} is True or False, not {given!r}")
        config = _config(config or {}, compact, label)
        self._put(fields=column_names(fields, f"{label}: fields"), partitions=partitions, is_compact=compact)
        if delivery not in DELIVERIES:
            raise DeclarationError(f"{label}: delivery is {' or '.join(map(repr, DELIVERIES))}, not {delivery!r}")
        self._put(config=config, has_schemas=schemas, delivery=delivery)

    def named(self, name: str, partitions: int | None) -> Topic:
        """The same declaration for another topic."""
        twin = copy(self)
        twin._put(name=name, partitions=partitions)
        return twin

    @property
    def shown(self) -> tuple[str, ...]:
        return self.fields

    @property
    def particulars(self) -> dict[str, Any]:
        """The parts that determine the messages; the topic's own settings are left out."""
        return {"schemas": self.has_schemas}


def _config(given: Mapping[str, Any], is_compact: bool, label: str) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{label}: config is a dict of topic settings, e.g. {{'retention.ms': 86400000}}")
    config = {}
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise DeclarationError(f"{label}: config: {name!r}: a name and a text or number are expected")
        config[name] = str(value).lower() if isinstance(value, bool) else str(value)
    has_compaction = "compact" in config.get(POLICY, "compact" if is_compact else "delete").split(",")
    if has_compaction is not is_compact:
        raise DeclarationError(
            f"{label}: config has {POLICY}={config[POLICY]}, and compact={is_compact}; leave one out"
        )
    return config
