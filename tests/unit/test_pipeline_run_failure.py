"""What a pipeline that could not be taken leaves open."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from projectors import pipeline_run
from viewtail.changes.errors import StoreUnavailableError
from viewtail.changes.pipelines import PipelineId


def test_a_pipeline_that_could_not_be_taken_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[str] = []

    def fails(*_: object) -> None:
        raise StoreUnavailableError("MySQL went away")

    def named(name: str) -> Any:
        return SimpleNamespace(
            close=lambda: given_up.append(name),
            abandon=lambda: given_up.append(name),
            take=lambda: SimpleNamespace(owner=None),
        )

    store = SimpleNamespace(with_offsets=lambda *_: (named("sink"), named("offsets")))
    monkeypatch.setattr(pipeline_run, "store_named", lambda _: store)
    monkeypatch.setattr(pipeline_run.OwnedCopies, "placed", lambda _: SimpleNamespace(views=[], copies={}))
    monkeypatch.setattr(pipeline_run.owners, "took", fails)
    catalog: Any = SimpleNamespace(
        history=lambda _: None,
        database="viewtail",
        views_of=lambda _: [],
        access=lambda _: None,
        session=lambda: named("session"),
    )
    lease: Any = None
    with pytest.raises(StoreUnavailableError, match="went away"):
        pipeline_run.open_run(catalog, PipelineId.of("mysql"), lease, threading.Event())
    assert given_up == ["offsets", "sink", "session"]
