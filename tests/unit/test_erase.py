"""What `viewtail forget ENTITY KEY` says of what it did not look at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from viewtail.operations import erase

TABLE = {"entity": "shop.user"}


def test_a_copy_of_a_declared_view_with_another_key_is_not_told_to_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = {name: [TABLE] for name in ("mysql:by_id", "mysql:by_name", "mysql:by_name~2", "mysql:old", "mysql:old~3")}
    monkeypatch.setattr(erase, "known_places", lambda *_: places)
    catalog: Any = SimpleNamespace(session=lambda: SimpleNamespace(close=lambda: None), database="viewtail")
    view: Any = SimpleNamespace(
        id="mysql:by_id", table=SimpleNamespace(full_name="shop.user"), view=SimpleNamespace(store="mysql")
    )
    looked = erase._beyond(catalog, [view], {"mysql:by_id", "mysql:by_name"})
    assert {(one.view, one.run) for one in looked} == {
        ("mysql:old", "viewtail forget mysql:old"), ("mysql:old~3", "viewtail forget mysql:old"),
    }  # fmt: skip
