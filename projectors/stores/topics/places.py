"""The owners of topics, for callers that ask or decide about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException, Producer

from projectors.stores.owners import Claimant, PlaceOwner, Places
from projectors.stores.topics import owners
from projectors.stores.topics.admin import Topics
from projectors.stores.topics.claiming import refusal
from projectors.stores.topics.owners import TopicClaim
from projectors.views import BoundView
from viewtail.changes.errors import StoreError
from viewtail.changes.published import POSITIONS
from viewtail.servers.brokers import ASK_WITHIN_S, failed


class TopicPlaces(Places):
    """Reads and writes claims in the topic of positions; see owners.py. A take-over leaves the topic's messages."""

    def __init__(self, client: Mapping[str, Any], claimant: Claimant, writer: str) -> None:
        """`writer` is this deployment's transactional id, as far as it is known."""
        super().__init__(claimant)
        self._client, self._writer = client, writer

    def owners(self, view: BoundView) -> list[PlaceOwner]:
        return owners.kept_by(self._claims(view.view.name))

    def refusal(self, view: BoundView) -> str | None:
        return refusal(self._client, self._claimant, view, self._claims(view.view.name), self._is_there)

    def take_over(self, view: BoundView, taken: str) -> None:
        """Take the topic over and fence the former owner: its next publish fails, and it then checks the owner."""
        topics, name = Topics(self._client), view.view.name
        topics.make_positions(POSITIONS)
        present = topics.present([name]).get(name)
        if present is None:  # nobody owns it, and `run` creates it
            return
        kept = [claim for claim in self._claims(name) if not claim.is_released]
        former = [claim for claim in kept if not self._claimant.is_owner(claim.owner)]
        owner = self._claimant.owner(view.view.id, taken)
        mine = TopicClaim(topic=name, topic_id=present.id, owner=owner, writer=self._writer)
        self._write([mine, *(replace(claim, is_released=True) for claim in former)])
        for writer in dict.fromkeys(writer for claim in former for writer in claim.writers()):
            self._fence(writer)

    def clear(self, view: BoundView) -> None:
        """Do nothing: consumers have read the messages, and the backfill publishes what is true now."""

    def release(self, view: str) -> None:
        claims = self._claims(view.partition(":")[2])
        mine = [claim for claim in claims if self._claimant.is_owner(claim.owner)]
        self._write([replace(claim, is_released=True) for claim in mine])

    def _is_there(self, name: str) -> bool:
        return name in Topics(self._client).partitions()

    def _claims(self, name: str) -> list[TopicClaim]:
        present = Topics(self._client).present([name]).get(name)
        return [] if present is None else owners.claims_of(self._client, name, present.id)

    def _write(self, claims: list[TopicClaim]) -> None:
        if not claims:
            return
        refused: list[Any] = []
        producer = Producer({**self._client, "acks": "all", "enable.idempotence": True})
        for claim in claims:
            producer.produce(POSITIONS, claim.value, claim.key, 0, on_delivery=_noting(refused))
        left = producer.flush(ASK_WITHIN_S)
        if refused or left:
            raise (
                failed(KafkaException(refused[0]), "noting whose a topic is")
                if refused
                else StoreError("Kafka: noting whose a topic is failed: the broker does not answer. Try again")
            )

    def _fence(self, writer: str) -> None:
        try:
            producer = Producer({**self._client, "transactional.id": writer})
            producer.init_transactions(ASK_WITHIN_S)
        except KafkaException as error:
            raise StoreError(
                f"Kafka: the topic is this deployment's from now on, but the former owner could not be fenced "
                f"({error.args[0].name()}), and may publish until it is restarted. Stop it, or grant Write on the "
                f"transactional id {writer}; then repeat the command"
            ) from None


def _noting(refused: list[Any]) -> Callable[[Any, Any], None]:
    def told(error: Any, _: Any) -> None:
        if error is not None:
            refused.append(error)

    return told
