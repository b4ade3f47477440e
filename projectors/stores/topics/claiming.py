"""Claims the name that a sink of topics publishes under, and its topics, as it prepares. See owners.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from projectors.stores.owners import NOBODY, Claimant
from projectors.stores.owners import refusal as decided
from projectors.stores.topics import owners
from projectors.stores.topics.admin import PresentTopic, Topics
from projectors.stores.topics.owners import TopicClaim
from projectors.stores.topics.positions import seen_published
from projectors.stores.topics.reading import TopicReader
from projectors.stores.topics.rules import transactional_id
from projectors.views import BoundView
from viewtail.changes.published import Published, record_key

Publish: TypeAlias = Callable[[Sequence[TopicClaim]], None]


@dataclass(frozen=True, slots=True)
class TopicClaims:
    """The claims of one pipeline. For NOBODY every topic is its own, and nothing is claimed."""

    client: Mapping[str, Any]
    views: Mapping[str, BoundView]  # by id
    claimant: Claimant

    def name(self, database: str, pipeline: str, positions: str) -> tuple[str, bytes]:
        """The transactional id and the key of the position: by the database, unless another deployment has those."""
        plain = transactional_id(database, pipeline), record_key(database, pipeline)
        if self.claimant is NOBODY:
            return plain
        short = self.claimant.id[:8]
        own_key = record_key(database, f"{pipeline}.{short}")
        if self.is_of_another(seen_published(self.client, positions, plain[1])) or (
            seen_published(self.client, positions, own_key) is not None
        ):
            return f"{plain[0]}.{short}", own_key
        return plain

    def is_of_another(self, published: Published | None) -> bool:
        """Return whether another deployment wrote that record of a position."""
        if self.claimant is NOBODY or published is None:
            return False
        if published.owner:
            return published.owner != self.claimant.id
        return not any(map(self.claimant.had, self.views))  # no owner is noted there

    def there(self, topics: Topics) -> Collection[str]:
        """The topics that are there; none for NOBODY."""
        return () if self.claimant is NOBODY else topics.partitions().keys()

    def sorted_out(
        self, topics: Mapping[str, PresentTopic], before: Collection[str]
    ) -> tuple[dict[str, str], dict[str, PresentTopic]]:
        """The views that do not get their topics, with the reasons; and by view, the topics that nobody has yet.

        `before` are the topics that were there before this sink made missing ones."""
        refused: dict[str, str] = {}
        free: dict[str, PresentTopic] = {}
        if self.claimant is NOBODY:
            return refused, free
        claims = owners.read(self.client, {self.views[view].view.name for view in topics})
        for view, topic in topics.items():
            bound = self.views[view]
            of_topic = owners.of_topic(claims, bound.view.name, topic.id)
            why = refusal(self.client, self.claimant, bound, of_topic, lambda name: name in before)
            if why is not None:
                refused[view] = why
            elif all(claim.is_released for claim in of_topic):
                free[view] = topic
        return refused, free

    def claim(self, free: Mapping[str, PresentTopic], writer: str, publish: Publish) -> dict[str, str]:
        """Claim topics that nobody has; by view, why this one does not get those that another claimed first."""
        if not free:
            return {}
        mine = [
            TopicClaim(
                topic=self.views[view].view.name, topic_id=topic.id, owner=self.claimant.owner(view), writer=writer
            )
            for view, topic in free.items()
        ]
        publish(mine)
        refused, _ = self.sorted_out(free, ())
        publish([replace(claim, is_released=True) for claim in mine if claim.owner.view in refused])
        return refused


def refusal(
    client: Mapping[str, Any],
    claimant: Claimant,
    view: BoundView,
    claims: Sequence[TopicClaim],
    was_there: Callable[[str], bool],
) -> str | None:
    """The reason why a view does not get its topic, which has these claims, and what to do; None if it does."""
    name = view.view.name
    return decided(
        view.id,
        f"the topic {name}",
        owners.MEND,
        claimant=claimant,
        owners=owners.kept_by(claims),
        is_released=bool(claims),
        holds=lambda: was_there(name) and TopicReader(client, view).is_published(),
    )
