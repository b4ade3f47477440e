"""Rights on a Kafka cluster, as the kafka-acls.sh commands that give them; no broker is asked."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from viewtail.servers.kafka import NO_GROUP, KafkaServer

NOBODY = "NAME"  # where the address names no user: brokers know it by its certificate, or not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Operations on resources of one kind. Who may Read or Write may Describe too."""

    operations: tuple[str, ...]  # as kafka-acls.sh calls them
    of: Literal["topic", "group", "transactional-id"]
    names: tuple[str, ...]
    pattern: Literal["literal", "prefixed"] = "literal"


TO_CONSUME = Right(operations=("Describe",), of="group", names=(NO_GROUP,))  # without being in a group


def commands(server: KafkaServer, what: str, rights: Iterable[Right]) -> Iterator[str]:
    """The commands that give the user of an address these rights, behind a comment that names the cluster."""
    client = server.client()
    user, brokers = client.get("sasl.username"), client["bootstrap.servers"]
    yield f"-- In a shell, on Kafka at {brokers}, {what} (add your administrator's --command-config):"
    if user is None:
        yield f"-- The address names no user: write the one that brokers know viewtail by for {NOBODY}."
    begin = ["kafka-acls.sh", "--bootstrap-server", brokers, "--add", "--allow-principal", f"User:{user or NOBODY}"]
    for right in rights:
        operations = [word for one in right.operations for word in ("--operation", one)]
        resources = [word for name in right.names for word in (f"--{right.of}", name)]
        pattern = [] if right.pattern == "literal" else ["--resource-pattern-type", right.pattern]
        yield shlex.join([*begin, *operations, *resources, *pattern])
