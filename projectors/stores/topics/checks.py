"""Checks the Kafka broker and the existing topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from projectors.stores.topics.admin import PresentTopic, Topics, config_of, contradictions, mend
from projectors.stores.topics.views import Topic
from projectors.views import View
from viewtail.changes.counting import counted
from viewtail.changes.errors import ViewtailError, once
from viewtail.changes.findings import Finding, fail, ok

_WHERE = "kafka"


def checks(client: Mapping[str, Any], views: Sequence[View]) -> Iterator[Finding]:
    """Check that the broker answers, and that existing topics match their declarations."""
    declared = [view for view in views if isinstance(view, Topic)]
    try:
        topics = Topics(client)
        present = topics.present([topic.name for topic in declared])
        refused = topics.refusals([topic for topic in declared if topic.name not in present])
    except ViewtailError as error:
        mend = "start Kafka, or set VIEWTAIL_KAFKA__URL"
        yield fail(_WHERE, "reachable", once(error), "nothing can be published", mend)
        return
    yield ok(_WHERE, "reachable", "yes")
    for topic in declared:
        yield from _of_topic(topic, present.get(topic.name), refused.get(topic.name))


def _of_topic(topic: Topic, there: PresentTopic | None, refused: str | None) -> Iterator[Finding]:
    what = f"topic {topic.name}"
    if refused is not None:
        yield fail(_WHERE, what, refused, "viewtail cannot make it", "change the declaration, or what the user may do")
        return
    if there is None:
        yield ok(_WHERE, what, "not there yet; viewtail makes it")
        return
    differences = list(contradictions(topic, there))
    for seen in differences:
        yield fail(_WHERE, what, seen, "consumers rely on how a topic is kept", mend(topic, there, seen))
    if not differences:
        config = ", ".join(f"{name}={value}" for name, value in config_of(topic).items())
        yield ok(_WHERE, what, f"{counted(there.partitions, 'partitions')}, {config}")
