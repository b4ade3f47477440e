"""Reads as a user makes them, by command line and from Python, each checked against the canonical rows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import viewtail
from examples.demo.comparing import Rows, Stores, select
from examples.demo.running import environment, output_of
from examples.geo.views import city_document, is_town
from viewtail.settings import load

PARIS = 2988507
CITIES_TO_READ = frozenset({PARIS})  # the writer leaves them be

FIND = "viewtail find city_by_country IS --limit 1000"
GET = f"viewtail get city {PARIS}"
SEARCH = "viewtail search cities Париж"
COMMANDS = (FIND, GET, SEARCH)
PYTHON = 'viewtail.find("city_by_timezone", "Atlantic/Reykjavik", limit=1000)'


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One read: what was asked, what came, and what is wrong with it, if anything."""

    view: str
    command: str
    answer: str
    wrong: str | None


def reads(stores: Stores, chosen: Mapping[str, str]) -> Iterator[Read]:
    """An index lookup from the command line and one from Python, one city from Redis, a full-text search."""
    yield _find(stores, chosen)
    yield _find_from_python(stores, chosen)
    yield _get(stores, chosen)
    if stores.elasticsearch is not None:
        yield _search(stores, chosen)


def _find(stores: Stores, chosen: Mapping[str, str]) -> Read:
    found = {str(row["id"]): row for row in _json(FIND, chosen)["rows"]}
    wanted = select(stores.mysql, "SELECT * FROM geo.city WHERE country = 'IS'", "id")
    some = ", ".join(row["name"] for row in list(found.values())[:5])
    return Read(
        view="mysql:city_by_country",
        command=FIND,
        answer=f"{len(found)} cities: {some}, ...",
        wrong=_differing(wanted, found, lambda row: (row["name"], row["country"], row["population"])),
    )


def _find_from_python(stores: Stores, chosen: Mapping[str, str]) -> Read:
    settings = load(None, environment(chosen))
    found = {
        str(row["id"]): row
        for row in viewtail.find(_declared("city_by_timezone"), "Atlantic/Reykjavik", settings=settings, limit=1000)
    }
    wanted = select(stores.mysql, "SELECT * FROM geo.city WHERE timezone = 'Atlantic/Reykjavik'", "id")
    return Read(
        view="mysql:city_by_timezone",
        command=f"python: {PYTHON}",
        answer=f"{len(found)} cities with {sum(row['population'] for row in found.values()):,} people",
        wrong=_differing(wanted, found, lambda row: (row["name"], row["timezone"], row["population"])),
    )


def _get(stores: Stores, chosen: Mapping[str, str]) -> Read:
    record = _json(GET, chosen)
    row = select(stores.mysql, f"SELECT * FROM geo.city WHERE id = {PARIS}", "id")[str(PARIS)]
    wanted = {name: str(row[name]) for name in ("name", "country", "population", "timezone")}
    found = record["content"]
    return Read(
        view="redis:city",
        command=GET,
        answer=f"{found} at version {record['version']}",
        wrong=None if found == wanted else f"the table says {wanted}",
    )


def _search(stores: Stores, chosen: Mapping[str, str]) -> Read:
    page = _json(SEARCH, chosen)
    found = {hit["key"]: hit["document"] for hit in page["hits"]}
    numbers = ", ".join(found) or "0"
    rows = select(stores.mysql, f"SELECT * FROM geo.city WHERE id IN ({numbers})", "id")
    wanted = {key: city_document(row) for key, row in rows.items() if is_town(row)}
    wrong = _differing(wanted, found, lambda document: document)
    if str(PARIS) not in found:
        wrong = "Paris was not found by its Russian name"
    return Read(
        view="elasticsearch:cities",
        command=SEARCH,
        answer=f"{page['total']} hits: " + ", ".join(f"{one['name']} ({one['country']})" for one in found.values()),
        wrong=wrong,
    )


def _declared(name: str) -> Any:
    from examples.geo.views import views

    return next(view for view in views if view.name == name)


def _json(command: str, chosen: Mapping[str, str]) -> Any:
    return json.loads(output_of([*shlex.split(command)[1:], "--json"], chosen))


def _differing(wanted: Rows, found: Rows, shown: Callable[[dict[str, Any]], Any]) -> str | None:
    keys = [key for key in wanted.keys() | found.keys() if key not in wanted or key not in found]
    keys += [key for key in wanted.keys() & found.keys() if shown(wanted[key]) != shown(found[key])]
    return f"{len(keys)} differ: {', '.join(sorted(keys)[:5])}" if keys else None
