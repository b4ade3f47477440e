"""Reads documents while they are written: none may show what is older than what it showed before.

Of the ledger half of an order world it is known which documents there ever were, so every state that a reader saw is
looked for behind the one before: content that goes back is not found, nor content that never was. In the other half
the rows in a document count: none may have a smaller `n` than it had, and an order that was gone may not come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.indices import Indices
from tests.support.order_world import (
    APART,
    LEDGER_CUSTOMERS,
    LEDGER_ORDERS,
    LEDGER_PRODUCTS,
    STATUSES,
    Ledger,
    OrderWorld,
    canonical,
    country_of,
    shown,
    titles_of,
)
from tests.support.watcher import Reader

_ORDERS = range(LEDGER_ORDERS)
_APART = range(APART, APART + 30)
_SOLD = [f"{i}:{status}" for i in range(LEDGER_PRODUCTS) for status in STATUSES]
_OF_VIEW: dict[str, Callable[[Any], Any]] = {
    "document": lambda document: document,
    "customer": lambda content: content,
    "sold": lambda content: content,
    "order_country": lambda document: None if country_of(document) == (None, None) else country_of(document),
    "order_title": lambda document: titles_of(document) or None,
}
Seen = Mapping[tuple[str, str, str], Any]  # store, view, and key as a ledger has it -> content, of Redis raw


@dataclass(slots=True)
class _Rows:
    """The largest `n` of each row that a document showed."""

    newest: dict[tuple[str, int], int] = field(default_factory=dict)
    is_gone: bool = False


class OrderWatcher(Reader):
    """Looks at content; what is shown as before is passed over."""

    EVERY_S = 0.01

    def __init__(self, world: OrderWorld) -> None:
        self._world = world
        self._shown: dict[tuple[str, str, str], Any] = {}
        self._states: dict[tuple[str, str, str], list[str]] = {}
        self._apart: dict[tuple[str, str, str], _Rows] = {}
        self._backward: list[str] = []
        self.reads = 0
        super().__init__(world)

    def _looks(self) -> Sequence[Callable[[], Seen]]:
        looks = [self._redis_keys, self._index_rows]
        return looks if self._world.elasticsearch is None else [*looks, self._documents]

    @property
    def changes(self) -> int:
        """How often a document was seen to be another one."""
        return sum(len(states) - 1 for states in self._states.values())

    def backward(self, ledger: Ledger) -> list[str]:
        """What a reader may not have seen."""
        return [*self._backward, *(text for key, seen in self._states.items() for text in _judged(key, seen, ledger))]

    def _looked(self, seen: Seen) -> None:
        self.reads += len(seen)
        for key, content in seen.items():
            if key not in self._shown or self._shown[key] != content:
                self._shown[key] = content
                self._saw(key, shown(content) if key[0] == "redis" else content)

    def _saw(self, key: tuple[str, str, str], content: Any) -> None:
        if key[1] == "document" and int(key[2].partition(" ")[2]) >= APART:
            self._backward += _fallen(key, self._apart.setdefault(key, _Rows()), content)
            return
        states = self._states.setdefault(key, [])
        text = canonical(content)
        if not states or states[-1] != text:
            states.append(text)

    def _redis_keys(self) -> Seen:
        orders = [*_ORDERS, *_APART]
        with self._redis.pipeline(transaction=False) as look:
            for i in orders:
                look.get(f"document:{i}")
            for i in range(LEDGER_CUSTOMERS):
                look.hgetall(f"customer:{i}")
            for key in _SOLD:
                look.hgetall(f"sold:{key}")
            answers: list[Any] = look.execute()
        seen = {("redis", "document", f"order {i}"): answers[at] for at, i in enumerate(orders)}
        hashes = [*(("customer", str(i)) for i in range(LEDGER_CUSTOMERS)), *(("sold", key) for key in _SOLD)]
        for (view, key), answer in zip(hashes, answers[len(orders) :], strict=True):
            seen["redis", view, f"{view} {key}"] = answer
        return seen

    def _index_rows(self) -> Seen:
        last = LEDGER_ORDERS - 1
        countries = {
            i: (country, None if total is None else f"{total:f}")
            for i, country, total in self._asked(
                f"SELECT id, country, total FROM viewtail.order_country WHERE id <= {last}"
            )
        }
        titles: dict[int, list[str]] = {}
        for i, title in self._asked(f"SELECT id, title FROM viewtail.order_title WHERE id <= {last}"):
            titles.setdefault(i, []).append(title)
        seen: dict[tuple[str, str, str], Any] = {}
        for i in _ORDERS:
            country = countries.get(i, (None, None))
            seen["mysql", "order_country", f"order {i}"] = None if country == (None, None) else country
            seen["mysql", "order_title", f"order {i}"] = sorted(titles[i]) if i in titles else None
        return seen

    def _documents(self) -> Seen:
        assert self._world.elasticsearch is not None
        docs = Indices(self._world.elasticsearch).stored("document", [str(i) for i in (*_ORDERS, *_APART)])
        return {
            ("elasticsearch", "document", f"order {doc['_id']}"): (
                doc["_source"] if doc.get("found") and not doc["_source"].get("viewtail_deleted") else None
            )
            for doc in docs
            if "error" not in doc
        }


def _judged(key: tuple[str, str, str], seen: Sequence[str], ledger: Ledger) -> Iterator[str]:
    """Each state that is not behind the one before it."""
    of_view = _OF_VIEW[key[1]]
    states = [
        canonical(None if state is None else of_view(json.loads(state))) for state in ledger.states.get(key[2], [None])
    ]
    at = 0
    for text in seen:
        if text in states[at:]:
            at = states.index(text, at)
        elif text in states:
            yield f"{' '.join(key)} went back to {text} from {states[at]}"
        else:
            yield f"{' '.join(key)} showed what never was: {text}"


def _fallen(key: tuple[str, str, str], rows: _Rows, content: Any) -> Iterator[str]:
    """Rows in a document that are older than it showed them before, or that are two in one document."""
    if content is None:
        rows.is_gone = rows.is_gone or bool(rows.newest)
        return
    if rows.is_gone:
        yield f"{' '.join(key)} came back"
    now: dict[tuple[str, int], int] = {}
    for kind, i, n in _rows_in("order", content):
        if now.setdefault((kind, i), n) != n:
            yield f"{' '.join(key)} has {kind} {i} in two states"
        if n < rows.newest.get((kind, i), 0):
            yield f"{' '.join(key)} went back to {n} of {kind} {i} from {rows.newest[kind, i]}"
    rows.newest |= now


def _rows_in(kind: str, row: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    yield kind, row["id"], row["n"]
    for name, value in row.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from _rows_in(name, each)
