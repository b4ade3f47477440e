"""Names the members of a consumer group by their deployment and their process.

The broker shares partitions out among all members of a group. Those of two deployments in one group would each miss the
changes that the others read: the databases of both may be called the same, and so are their groups, then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from viewtail.servers.brokers import GroupMember

_IS = "@"  # in a client.id, before the name of the process
_DEPLOYMENT = re.compile(r"\.([0-9a-f]{8})$")  # at the end of what stands before that
_DIGITS = 8
MEND = "give one of the two deployments a group of its own: VIEWTAIL_SOURCE__GROUP=NAME"


def named(client: Mapping[str, Any], deployment: str, process: str) -> str:
    """The client.id of a member. `deployment`: its id, or ''."""
    of = f".{deployment[:_DIGITS]}" if deployment else ""
    return f"{client['client.id']}{of}{_IS}{process}"


def process_in(client_id: str) -> str | None:
    """The process whose member calls itself so; None for one of another program."""
    return client_id.partition(_IS)[2] or None


def deployment_in(client_id: str) -> str:
    """The beginning of the id of its deployment; '' for another program."""
    match = _DEPLOYMENT.search(client_id.partition(_IS)[0]) if _IS in client_id else None
    return match[1] if match is not None else ""


def is_of_another(deployment: str, member: GroupMember) -> bool:
    """Return whether a member says of itself that it is not of that deployment."""
    of_member = deployment_in(member.client)
    return bool(deployment and of_member) and of_member != deployment[:_DIGITS]


def is_before(client_id: str, other: GroupMember) -> bool:
    """Say which of two deployments that came at once has the group: both members say the same."""
    return deployment_in(client_id) < deployment_in(other.client)


def shared_with(group: str, others: Iterable[str]) -> str:
    """Why this deployment does not become a member of a group, and what to do. `others`: how the others are called."""
    return (
        f"the consumer group {group} has members of another deployment ({', '.join(sorted(others))}). Kafka would "
        f"share the partitions out among both, and each would miss the changes that the other one reads: {MEND}"
    )
