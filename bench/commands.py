"""Commands to event-sourced entities: how many a second a worker commits, durably, and how long a caller waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.commanding import TABLE
from bench.lines import Limit, Line, Told
from bench.setting import Setting, Sizes, say, told

CALLERS = 256  # of one entity
MANY = 10_000  # entities
CALLERS_OF_MANY = 1_000
_MOST_MS = 100.0
_LEAST_RATE = 10_000
_FIRST = "('e{number}', 1, 'first', 'deposit', '{{}}', '{{}}', '{{\"owner\": \"somebody\", \"balance\": 0}}')"


@dataclass(eq=False)
class Commands:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    _processor_us: list[float] = field(default_factory=list)

    def measure(self) -> None:
        self._require_durable()
        self.setting.run("DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench", "DO 1")
        self._asked("create", 1)
        one = Line(f"commands to one entity from {CALLERS} callers", "commands/s", "one a transaction", 20)
        p99 = Limit("the same, p99", "ms", "one a transaction", _MOST_MS)
        many = Line(f"commands to {MANY:,} entities", "commands/s", "bare INSERT", 0.5)
        self.lines += [one, p99, many]
        for number in range(self.rounds):
            say(f"commands, round {number + 1} of {self.rounds}")
            works = [lambda: self._one(one, p99), lambda: self._many(many)]
            for work in works if number % 2 else reversed(works):
                work()
        rate = sorted(one.ours)[len(one.ours) // 2]
        met = "yes" if rate >= _LEAST_RATE else "NO"
        self.told.append(("commands a second to one entity", f"{rate:,.0f}", f"≥ {_LEAST_RATE:,}", met))
        middle = sorted(self._processor_us)[len(self._processor_us) // 2]
        self.told.append(("processor time of such a command, with its caller's", f"{middle:.0f} µs", "", ""))

    def _require_durable(self) -> None:
        found = self.setting.run("SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin")
        if found != (1, 1, 1):
            raise RuntimeError(f"the server is not durable: flush_log_at_trx_commit, sync_binlog, log_bin are {found}")

    def _one(self, rate: Line, p99: Line) -> None:
        theirs, ours = self._by_turns(
            1, lambda seconds: ("one", 1, seconds), lambda seconds: ("worker", 1, CALLERS, seconds)
        )
        rate.add(ours["rate"], theirs["rate"])
        p99.add(ours["p99_ms"], theirs["p99_ms"])
        self._processor_us.append(ours["processor_us"])

    def _many(self, rate: Line) -> None:
        theirs, ours = self._by_turns(
            MANY,
            lambda seconds: ("insert", MANY, CALLERS_OF_MANY, seconds),
            lambda seconds: ("worker", MANY, CALLERS_OF_MANY, seconds),
        )
        rate.add(ours["rate"], theirs["rate"])

    def _by_turns(self, entities: int, *works: Callable[[float], tuple[str | float, ...]]) -> list[dict[str, float]]:
        seconds = self.sizes.commands_s / self.rounds
        return [self._asked(*work(seconds), entities=entities) for work in works]

    def _asked(self, what: str | float, *rest: float, entities: int = 0) -> dict[str, float]:
        """In a process of its own, on a table in which each entity has one event."""
        if entities:
            self._begin(entities)
        return told(self.setting.python("bench.commanding", str(what), *map(str, rest)))

    def _begin(self, entities: int) -> None:
        rows = ", ".join(_FIRST.format(number=number) for number in range(entities))
        columns = "(entity_id, version, command_id, command_name, request, response, state)"
        self.setting.run(f"TRUNCATE {TABLE}", f"INSERT INTO {TABLE} {columns} VALUES {rows}", "DO 1")
