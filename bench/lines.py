"""Lines of the table: what was measured beside what, and whether the goal is met."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

TURNS = 3  # of reference and ours in one round
Told = tuple[str, str, str, str]  # what, how much, goal, whether it is met


@dataclass(slots=True)
class Line:
    """One line of the table; each round adds a pair. The goal is one of the ratio."""

    work: str
    unit: str  # '.../s': more is better; 'ms' and 'MiB': less is
    reference: str
    goal: float
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def add(self, ours: float, theirs: float) -> None:
        self.ours.append(ours)
        self.theirs.append(theirs)

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def is_met(self) -> bool:
        ratio = statistics.median(self.ratios)
        return ratio >= self.goal if self._is_rate else ratio <= self.goal

    @property
    def _is_rate(self) -> bool:
        return self.unit.endswith("/s")

    @property
    def goal_cell(self) -> str:
        return f"{'≥' if self._is_rate else '≤'} {self.goal:g}"

    def cells(self) -> list[str]:
        ratios = self.ratios
        digits = 0 if self.unit != "ms" else 2
        spread = "" if len(ratios) < 2 else f" ({min(ratios):.2f} to {max(ratios):.2f})"
        return [
            self.work,
            f"{statistics.median(self.ours):,.{digits}f} {self.unit}",
            f"{self.reference}: {statistics.median(self.theirs):,.{digits}f}",
            f"{statistics.median(ratios):.2f}{spread}",
            self.goal_cell,
            "yes" if self.is_met else "NO",
        ]


@dataclass(slots=True)
class Limit(Line):
    """A line whose goal is the most that ours itself may be; the reference stands beside it."""

    @property
    def is_met(self) -> bool:
        return statistics.median(self.ours) <= self.goal

    @property
    def goal_cell(self) -> str:
        return f"≤ {self.goal:g} {self.unit}"


@dataclass(slots=True)
class AtLeast(Line):
    """A line whose goal is the least that ours itself may be; the reference stands beside it."""

    @property
    def is_met(self) -> bool:
        return statistics.median(self.ours) >= self.goal

    @property
    def goal_cell(self) -> str:
        return f"≥ {self.goal:,g} {self.unit}"


def rates_by_turns(*works: Callable[[], float]) -> list[float]:
    """One round: each work a few times in alternation, since the machine's speed changes within seconds.

    A work gives a rate; its rate of the round is of all rows over all the time.
    """
    rates = [[work() for work in works] for _ in range(TURNS)]
    return [statistics.harmonic_mean(turns) for turns in zip(*rates, strict=True)]


def by_turns(line: Line, theirs: Callable[[], float], ours: Callable[[], float]) -> None:
    """One round of a line whose reference is one work."""
    their_rate, our_rate = rates_by_turns(theirs, ours)
    line.add(our_rate, their_rate)


def median(what: str, unit: str, values: list[float], goal: float) -> Told:
    """A line of its own, with the largest; the goal is one of that."""
    met = "yes" if max(values) <= goal else "NO"
    return what, f"{statistics.median(values):.1f} {unit} (at most {max(values):.1f})", f"≤ {goal:g} {unit}", met


def table(cells: list[list[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells[0], ["---"] * len(cells[0]), *cells[1:]])
