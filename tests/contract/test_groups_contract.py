"""Groups keep the contract of derived rows, on both servers: rows move between groups, groups empty and come back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal, localcontext
from itertools import chain
from typing import Any, ClassVar

import pytest

from projectors.derived import groups
from projectors.derived.reading import committed
from projectors.views import Entity, Group
from stack import Server
from tests.contract.test_derived_rows_contract import Rows, World
from tests.support.asking import ask
from viewtail import Count, Max, Min, Sum
from viewtail.changes.batches import Row
from viewtail.changes.writes import Key

TEXTS = (
    "'paid'",
    "'Paid'",
    "'PAID'",
    "'päid'",
    "'paid '",
    "''",
    "' '",
    "'open'",
    "'Öpen'",
    "'it''s'",
    "'100%'",
    "NULL",
)


class OfGroups(World):
    """Each row is aggregated in Python, too."""

    json_at = ()
    key_width: ClassVar[int]
    by: ClassVar[str]  # the SELECT of each row: its group, then what its values are made of

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        assert self.view.derived is not None
        self.key_width = len(self.view.key)

    def parsed(self, rows: Iterator[Row] | list[Row]) -> Rows:
        found: Rows = {}
        for row in rows:
            assert row[: self.key_width] not in found
            found[row[: self.key_width]] = row
        return found

    @staticmethod
    def document(row: Any) -> Any:
        return dict(row)

    def expected(self) -> Rows:
        rows: dict[Key, list[tuple[Any, ...]]] = {}
        for row in ask(self.server, self.by):
            key = row[: self.key_width]
            if None not in key:
                rows.setdefault(key, []).append(row[self.key_width :])
        return {key: (*key, *self.made_of(of_group)) for key, of_group in rows.items()}

    @staticmethod
    def made_of(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Count, sum, count and sum of the paid, least and largest of a group."""
        raise NotImplementedError


class OfStatuses(OfGroups):
    """By a number and a text that a collation without cases, accents and trailing spaces compares."""

    tables = (
        (
            "CREATE TABLE made.`order` (id BIGINT AUTO_INCREMENT PRIMARY KEY, shop_id INT NOT NULL, "
            "status VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci, amount DECIMAL(30,10), "
            "n BIGINT UNSIGNED, at DATETIME(3), note VARCHAR(20), KEY (shop_id, status))"
        ),
        (
            "INSERT INTO made.`order` (shop_id, status, amount, n) VALUES (1, 'paid', 0.1, 1), (1, 'Paid', 0.2, 1), "
            "(1, 'paid', 12345678901234567890.0000000001, 18446744073709551615), (2, 'paid', NULL, NULL), "
            "(3, NULL, 7, 7)"
        ),
    )
    entity: Entity = Group(
        "made.order",
        by=["shop_id", "status"],
        values={
            "orders": Count(),
            "amount": Sum("amount"),
            "large": Count(where="amount > 10 OR n = 18446744073709551615"),
            "sum of large": Sum("n", where="amount > 10 OR n = 18446744073709551615"),
            "first": Min("at"),
            "most": Max("n", where="NOT amount IS NULL"),
        },
    )
    changes = (
        ("UPDATE made.`order` SET amount = 5 WHERE id = 4", {(2, "paid")}),
        ("UPDATE made.`order` SET note = 'x'", set()),
        ("UPDATE made.`order` SET status = 'paid ' WHERE id = 2", {(1, "Paid"), (1, "paid ")}),
        ("UPDATE made.`order` SET status = 'PAID' WHERE id = 4", {(2, "paid"), (2, "PAID")}),
        ("UPDATE made.`order` SET status = 'open' WHERE id = 5", {(3, "open")}),
        ("UPDATE made.`order` SET status = NULL WHERE id = 5", {(3, "open")}),
        ("DELETE FROM made.`order` WHERE shop_id = 1", {(1, "paid"), (1, "paid ")}),
        ("INSERT INTO made.`order` (shop_id, status) VALUES (1, 'paid'), (9, '')", {(1, "paid"), (9, "")}),
        ("UPDATE made.`order` SET shop_id = 4 WHERE shop_id = 9", {(9, ""), (4, "")}),
    )
    absent = (1, "pAId")
    mark = "INSERT INTO made.`order` (shop_id, n) VALUES (0, {})"
    by = "SELECT shop_id, status, amount, n, CAST(at AS CHAR) FROM made.`order`"

    @staticmethod
    def made_of(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        amounts = [amount for amount, _, _ in rows if amount is not None]
        large = [n for amount, n, _ in rows if (amount or 0) > 10 or n == 18446744073709551615]
        numbers = [n for n in large if n is not None]
        times = [at for _, _, at in rows if at is not None]
        most = [n for amount, n, _ in rows if amount is not None and n is not None]
        return (
            len(rows),
            exact_sum(amounts),
            len(large),
            exact_sum(numbers),
            min(times, default=None),
            max(most, default=None),
        )

    def random_change(self, chance: random.Random) -> str:
        shop, text = chance.randrange(4), chance.choice(TEXTS)
        amount = chance.choice(("NULL", "0.0000000001", "-3", "99999999999999999999.9999999999", "10.5"))
        n, at = chance.choice(("NULL", "1", "18446744073709551615")), f"'2024-01-0{chance.randint(1, 9)} 10:00:00.5'"
        some = f"ORDER BY id LIMIT {chance.randint(1, 4)}"
        of_group = f"shop_id = {shop} AND status <=> {chance.choice(TEXTS)}"
        return chance.choice((
            f"INSERT INTO made.`order` (shop_id, status, amount, n, at) VALUES ({shop}, {text}, {amount}, {n}, {at})",
            f"INSERT INTO made.`order` (shop_id, status, amount, n) VALUES ({shop}, {text}, {amount}, {n})",
            f"UPDATE made.`order` SET status = {text} WHERE {of_group} {some}",
            f"UPDATE made.`order` SET shop_id = {shop} WHERE status <=> {text} {some}",
            f"UPDATE made.`order` SET amount = {amount}, n = {n} WHERE {of_group} {some}",
            f"DELETE FROM made.`order` WHERE {of_group} {some}",
            f"DELETE FROM made.`order` WHERE {of_group}",
        ))  # fmt: skip


class OfStates(OfGroups):
    """By a list of labels, which the server puts in order by their numbers, and a day; in bytes of another codec."""

    tables = (
        (
            "CREATE TABLE made.`order` (id BIGINT PRIMARY KEY, state ENUM('paid', 'open', 'Gelöscht', 'back') "
            "CHARACTER SET latin1, day DATE, place VARCHAR(9) CHARACTER SET latin1, weight DOUBLE, KEY (state, day))"
        ),
        (
            "INSERT INTO made.`order` VALUES (1, 'paid', '2024-01-01', 'Ö', 1.5), (2, 'back', '2024-01-01', 'o', 9), "
            "(3, 'open', '1000-01-01', 'x', 2), (4, 'Gelöscht', '2024-01-01', 'ö', -1), (5, NULL, NULL, 'x', 1)"
        ),
    )
    entity: Entity = Group(
        "made.order",
        by=["state", "place", "day"],
        values={"orders": Count(), "lightest": Min("weight", where="state <> 'back' AND place <> 'Ü'")},
    )
    changes = (
        (
            "UPDATE made.`order` SET state = 'open' WHERE id = 1",
            {("paid", "Ö", "2024-01-01"), ("open", "Ö", "2024-01-01")},
        ),
        (
            "UPDATE made.`order` SET place = 'ö' WHERE id = 1",
            {("open", "Ö", "2024-01-01"), ("open", "ö", "2024-01-01")},
        ),
        ("DELETE FROM made.`order` WHERE id = 3", {("open", "x", "1000-01-01")}),
        ("UPDATE made.`order` SET weight = 3 WHERE id = 4", {("Gelöscht", "ö", "2024-01-01")}),
    )
    absent = ("paid", "none", "2024-01-01")
    mark = "INSERT INTO made.`order` (id, weight) VALUES ({0}, {0})"
    by = "SELECT state, place, CAST(day AS CHAR), place, weight FROM made.`order`"

    @staticmethod
    def made_of(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        raise NotImplementedError

    def expected(self) -> Rows:
        statement = (
            "SELECT state, MIN(place), CAST(day AS CHAR), COUNT(*), MIN(IF(state <> 'back' AND HEX(place) NOT IN "
            "('DC', 'FC'), weight, NULL)) FROM made.`order` WHERE NOT (state IS NULL OR place IS NULL OR day IS NULL) "
            "GROUP BY state, HEX(place), day"
        )
        return {tuple(row[:3]): row for row in ask(self.server, statement)}

    def random_change(self, chance: random.Random) -> str:
        key, state = chance.randrange(30), chance.choice(("'paid'", "'open'", "'Gelöscht'", "'back'", "NULL"))
        day = chance.choice(("'2024-01-01'", "'2023-12-31'", "NULL"))
        place, weight = chance.choice(("'ö'", "'Ö'", "'o'", "'u'", "'ü'", "NULL")), chance.choice(("NULL", "0.1", "-5"))
        return chance.choice((
            f"REPLACE INTO made.`order` VALUES ({key}, {state}, {day}, {place}, {weight})",
            f"UPDATE made.`order` SET state = {state}, place = {place} WHERE id = {key}",
            f"UPDATE made.`order` SET state = {state} WHERE day = {day} ORDER BY id LIMIT 2",
            f"DELETE FROM made.`order` WHERE id = {key}",
        ))  # fmt: skip


class OfNumbers(OfGroups):
    """By one number, of a table without a primary key."""

    tables = (
        "CREATE TABLE made.visit (page BIGINT UNSIGNED, seconds INT, was_bot BIT(1), KEY (page))",
        "INSERT INTO made.visit VALUES (1, 5, 0), (1, 6, 1), (18446744073709551615, NULL, 0), (2, -1, NULL)",
    )
    entity: Entity = Group(
        "made.visit",
        by="page",
        values={
            "visits": Count(),
            "people": Count(where="was_bot = 0"),
            "seconds": Sum("seconds"),
            "most": Max("seconds"),
        },
    )
    changes = (
        ("UPDATE made.visit SET page = 2 WHERE seconds = 5", {(1,), (2,)}),
        ("DELETE FROM made.visit WHERE page = 1", {(1,)}),
        ("INSERT INTO made.visit VALUES (NULL, 5, 1)", set()),
        ("UPDATE made.visit SET was_bot = 1 WHERE page = 18446744073709551615", {(18446744073709551615,)}),
        ("INSERT INTO made.visit VALUES (1, 1, 1)", {(1,)}),
    )
    absent = (99,)
    mark = "INSERT INTO made.visit VALUES (NULL, {}, 0)"
    by = "SELECT page, was_bot, seconds FROM made.visit"

    @staticmethod
    def made_of(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        seconds = [number for _, number in rows if number is not None]
        people = [bot for bot, _ in rows if bot == b"\0"]
        return len(rows), len(people), exact_sum(seconds), max(seconds, default=None)

    def random_change(self, chance: random.Random) -> str:
        page, other = chance.choice((*range(9), "18446744073709551615", "NULL")), chance.randrange(9)
        seconds, some = chance.choice(("NULL", "-1", "5", "2147483647")), f"LIMIT {chance.randint(1, 3)}"
        return chance.choice((
            f"INSERT INTO made.visit VALUES ({page}, {seconds}, {chance.choice((0, 1, 'NULL'))})",
            f"UPDATE made.visit SET page = {page} WHERE page = {other} {some}",
            f"UPDATE made.visit SET seconds = {seconds} WHERE page = {other} {some}",
            f"DELETE FROM made.visit WHERE page <=> {page} {some}",
        ))  # fmt: skip


def exact_sum(values: list[Any]) -> Decimal | None:
    with localcontext(prec=100):
        return sum(map(Decimal, values), Decimal(0)) if values else None


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=[OfStatuses, OfStates, OfNumbers])
def made(request: pytest.FixtureRequest, server: Server) -> Iterator[OfGroups]:
    world: OfGroups = request.param(server)
    yield world
    world.reader.close()


def test_each_change_touches_the_groups_of_both_images_where_what_is_used_changed(made: OfGroups) -> None:
    for statement, keys in made.changes:
        ask(made.server, statement)
        found: set[Key] = set()
        for batch in made.batches():
            for touched in made.projections.of(batch).touched.values():
                assert not touched.dependents and batch.end is not None
                first = min(change.version for change in batch.changes)
                assert all(first <= version <= batch.end.version for version in touched.versions.values())
                found.update(touched.versions)
        assert found == keys, statement


@pytest.mark.parametrize(("rows_at_once", "rounds"), [(200_000, 12), (3, 4)])
def test_what_is_written_under_the_changes_versions_ends_as_group_by_says(
    made: OfGroups, rows_at_once: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is read late, so snapshots show more than its batches; every key that was there is known before."""
    monkeypatch.setattr(groups, "ROWS_AT_ONCE", rows_at_once)
    chance = random.Random(7)
    shown: Rows = dict(made.expected())
    emptied: set[Key] = set()
    came_back = 0
    for _ in range(rounds):
        for _ in range(chance.randint(1, 15)):
            ask(made.server, made.random_change(chance))
        for batch in made.batches():
            for touched in made.projections.of(batch).touched.values():
                for part in made.slices(touched, committed(batch)):
                    rows = made.parsed([*part.rows.values()])
                    assert rows.keys() <= part.versions.keys()
                    came_back += len(emptied & rows.keys())
                    emptied = (emptied | (part.versions.keys() - rows.keys())) - rows.keys()
                    for key in part.versions:
                        shown.pop(key, None)
                    shown.update(rows)
        assert shown == made.expected()
    assert came_back or rounds < 5


def test_chunks_have_every_group_once_also_where_they_end_between_texts_that_are_equal_to_the_collation(
    made: OfGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(8)
    for _ in range(120):
        ask(made.server, made.random_change(chance))
    expected = made.expected()
    assert len(expected) > 3
    for rows, rows_at_once in (
        (made.chunks(1), 1_000),
        (made.chunks(2), 1_000),
        (made.chunks(100), 1_000),
        (made.chunks(100), 1),
        (made.chunks(100), 5),
        (made.chunks(100, chunk_bytes=1), 1_000),
    ):
        monkeypatch.setattr(groups, "ROWS_AT_ONCE", rows_at_once)
        chunks, after = [], None
        while (chunk := rows.after(after, 0)) is not None:
            assert chunk.rows
            chunks.append(chunk.rows)
            after = chunk.last_key
        assert made.parsed(chain.from_iterable(chunks)) == expected
        keys = [*expected, made.absent]
        assert {
            key: row for key, row in made.parsed(rows.having(made.view.key, keys, 0)).items() if key in keys
        } == expected
        assert rows.absent(made.view.key, keys, 0) == {made.absent}
        rows.close()


def test_parts_of_the_groups_are_skipped_and_what_follows_is_whole(made: OfGroups) -> None:
    """As verify passes over parts: from the key behind some rows on there is the rest, and nothing of a former part."""
    chance = random.Random(9)
    for _ in range(60):
        ask(made.server, made.random_change(chance))
    rows = made.chunks(100)
    everything = rows.after(None, 0)
    assert everything is not None and everything.is_last
    for number in range(1, len(everything.rows)):
        key = rows.key_after(None, number, 0)
        if key is not None:
            rest = rows.after(key, 0)
            tail = [] if rest is None else rest.rows
            assert everything.rows[len(everything.rows) - len(tail) :] == tail
    rows.close()
