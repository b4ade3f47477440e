"""A number over the last minutes, drawn in a few characters."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_S = 180.0
_LEAST_TOP = 1.0  # the highest mark stands for the largest value, and for this at least


@dataclass(frozen=True, slots=True)
class History:
    """Values with their times, the oldest first; None where there was none to be had."""

    values: tuple[tuple[float, float | None], ...] = ()

    def with_one(self, now: float, value: float | None) -> History:
        """Return the history with one more value, and without those that are too old by then."""
        return History((*(kept for kept in self.values if now - kept[0] < KEPT_S), (now, value)))

    def _parts(self, width: int, now: float) -> list[float | None]:
        largest: dict[int, float | None] = {}
        for at, value in self.values:
            place = width - 1 - int((now - at) / KEPT_S * width)
            before = largest.get(place)
            largest[place] = value if before is None else max(before, before if value is None else value)
        parts: list[float | None] = []
        for place in range(width):  # where nobody looked it is as it was
            parts.append(largest.get(place, parts[-1] if parts else None))
        return parts

    def drawn(self, width: int, now: float, marks: str) -> str:
        """The largest of each part of the last KEPT_S, the newest at the right; a blank where nothing is known."""
        parts = self._parts(width, now)
        top = max((value for value in parts if value is not None), default=0.0)
        return "".join(" " if value is None else marks[_height(value, top, len(marks))] for value in parts)


def _height(value: float, top: float, count: int) -> int:
    return min(count - 1, int(value / max(top, _LEAST_TOP) * count))
