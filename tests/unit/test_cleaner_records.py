"""Under which words the cleaner records what it wrote, and what of it counts as a repair."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from projectors.proving.comparison import Difference, Found, Settled
from projectors.stores import NOTHING_HELD
from viewtail.changes.writes import Key
from viewtail.operations import cleaner
from viewtail.operations.cleaner import Cleaner


class _AllDiffer:
    def suspects(self, view: Any, keys: Sequence[Key]) -> list[Key]:
        return list(keys)

    def close(self) -> None: ...


class _Looked(Cleaner):
    """All that it looks at is extra in the view."""

    def _beside(self, view: str) -> Any:
        beside = SimpleNamespace(
            comparison=lambda: SimpleNamespace(settle=lambda keys: Settled(found=[_found(key) for key in keys])),
            check=lambda: None,
            now=lambda: 7,
            session=None,
            view=SimpleNamespace(id=view),
            reprojection=SimpleNamespace(of_keys=lambda *_: None),
        )

        @contextmanager
        def opened() -> Iterator[Any]:
            yield beside

        return opened()

    def _first_looks(self) -> Any:
        return _AllDiffer()


def _found(key: Key) -> Found:
    return Found(
        key=key, name=str(key[0]), difference=Difference.EXTRA, version=5, why="it is there", is_unexplained=False,
        held=NOTHING_HELD,
    )  # fmt: skip


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What is recorded, by kind."""
    kept: dict[str, dict[str, Any]] = {}

    @contextmanager
    def counted_up(*arguments: Any) -> Iterator[dict[str, Any]]:
        _, _, kind, _, what, _ = arguments
        yield kept.setdefault(kind, {"what": what})

    monkeypatch.setattr(cleaner, "counted_up", counted_up)
    monkeypatch.setattr(cleaner, "forget_but_last", lambda *_: None)
    monkeypatch.setattr(cleaner, "lowered_by", lambda *_: [])
    monkeypatch.setattr(cleaner, "_looked_for", lambda *_: [[(1,), (2,)]])
    return kept


def made() -> _Looked:
    own: Any = SimpleNamespace(
        stop=threading.Event(),
        repaired_count=0,
        life=SimpleNamespace(gets_changes=lambda _: True, views={"mysql:v": None}),
    )
    catalog: Any = SimpleNamespace(database="own")
    return _Looked(catalog=catalog, own=own, share=1.0, rest_s=1.0, is_busy=lambda: False)


def test_what_a_cascade_did_is_recorded_as_that_and_is_no_repair(records: dict[str, dict[str, Any]]) -> None:
    one = made()
    looks: Any = SimpleNamespace(is_any_gone=False, is_any_changed=False)
    one._heal("mysql:v", looks, one._throttle(one.is_busy))
    assert list(records) == ["cascade"]
    assert records["cascade"]["what"] == "what cascades did without a change in the stream, in an hour"
    assert (records["cascade"]["entities"], records["cascade"]["differing"]) == (2, {"extra": 2})
    assert one.own.repaired_count == 0


def test_what_was_wrong_a_moment_after_it_changed_is_a_repair(records: dict[str, dict[str, Any]]) -> None:
    one = made()
    one._look_at({"mysql:v": [(1,)]}, one._first_looks(), one._throttle(one.is_busy))
    assert list(records) == ["mend"] and records["mend"]["what"] == "what changed a moment ago, in an hour"
    assert (records["mend"]["entities"], one.own.repaired_count) == (1, 1)
