"""Reads as a user makes them, through the command line and from Python, each checked against the canonical rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from examples.demo.comparing import Stores

PARIS = 2988507
CITIES_TO_READ = frozenset({PARIS})
COMMANDS: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One read: what was asked, what came, and what is wrong with it, if anything."""

    view: str
    command: str
    answer: str
    wrong: str | None


def reads(stores: Stores, chosen: Mapping[str, str]) -> Iterator[Read]:
    yield from ()
