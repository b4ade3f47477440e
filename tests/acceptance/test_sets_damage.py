"""Lists and sets in the operators' hands: planted damage is found and mended, and each command knows such views."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from projectors.failpoints import REWRITE_STEPS, RUN_STEPS
from stack import Server
from tests.acceptance.test_sets import SCHEMA, STORE, VIEWS, World, made
from tests.support.running import wait_for

MISSING, EXTRA, STALE, WRONG = "missing", "extra", "stale", "wrong"
ABOVE = f"{1 << 62:019d}"  # a version above every watermark
OLDER = f"{8:019d}"  # than that of a document of revision 5
HERE, THERE = "company:20:users", "company:21:users"
NEWEST = "company:20:newest"

# A view, the keys with the difference that verify must name, and the statements that damage its tables.
IN_LISTS: list[tuple[str, dict[str, str], list[str]]] = [
    ("user_tag", {"1001": WRONG}, ["DELETE FROM user_tag WHERE id = 1001 AND tags = 'a'"]),
    ("user_tag", {"1002": WRONG}, ["INSERT INTO user_tag (id, tags) VALUES (1002, 'x')"]),
    ("user_tag", {"9001": EXTRA}, ["INSERT INTO user_tag (id, tags) VALUES (9001, 'x')"]),
    ("user_tag", {"1003": WRONG}, ["UPDATE user_tag SET tags = 'old' WHERE id = 1003 AND tags = 'a'"]),
    ("user_tag", {"1004": WRONG}, ["UPDATE user_tag SET tags = 'A' WHERE id = 1004 AND tags = 'a'"]),
    ("user_tag", {"1005": WRONG}, ["DELETE FROM user_tag__version WHERE id = 1005"]),
    ("user_tag", {"1006": MISSING}, ["DELETE FROM user_tag WHERE id = 1006"]),
    ("user_tag", {"1007": MISSING}, [f"DELETE FROM user_tag{of} WHERE id = 1007" for of in ("", "__version")]),
    (
        "user_tag",
        {"1008": MISSING},
        [
            "DELETE FROM user_tag WHERE id = 1008",
            f"UPDATE user_tag__version SET tags = NULL, version = {ABOVE} WHERE id = 1008",
        ],
    ),
    (
        "user_tag",
        {"1009": WRONG},
        [
            "DELETE FROM user_tag WHERE id = 1009 AND tags = 'a'",
            f"UPDATE user_tag__version SET tags = '[\"b\"]', version = {ABOVE} WHERE id = 1009",
        ],
    ),
    ("user_tag", {"1010": WRONG}, [f"UPDATE user_tag__version SET tags = '?', version = {ABOVE} WHERE id = 1010"]),
    (
        "user_tag",
        {"1011": MISSING, "1012": WRONG},
        ["UPDATE user_tag SET id = 1012, tags = CONCAT('x', tags) WHERE id = 1011"],
    ),
    (
        "user_tag",
        {"1039": EXTRA},
        [
            "INSERT INTO user_tag (id, tags) VALUES (1039, 'a')",
            "UPDATE user_tag__version SET tags = '[\"a\"]' WHERE id = 1039",
        ],
    ),
    (
        "user_tag",
        {"1040": EXTRA},
        ["INSERT INTO user_tag (id, tags) VALUES (1040, 'a')", "DELETE FROM user_tag__version WHERE id = 1040"],
    ),
    ("active_user_tag", {"1030": EXTRA}, ["INSERT INTO active_user_tag (id, tags) VALUES (1030, 'a')"]),
    (
        "document_number",
        {"x1": STALE},
        [
            "DELETE FROM document_number WHERE id = 'x1' AND numbers = 1",
            f"UPDATE document_number__version SET numbers = '[2]', version = {OLDER} WHERE id = 'x1'",
        ],
    ),
    ("document_number", {"x2": WRONG}, ["DELETE FROM document_number__version WHERE id = 'x2'"]),
    ("document_number", {"x3": WRONG}, [f"UPDATE document_number__version SET version = {ABOVE} WHERE id = 'x3'"]),
    ("user_tag", {"1101": WRONG}, ["UPDATE user_tag SET tags = 'a ' WHERE id = 1101 AND tags = 'a'"]),
    ("user_tag", {"1102": WRONG}, ["UPDATE user_tag SET tags = '' WHERE id = 1102 AND tags = 'a'"]),
    (  # a value more in both tables, at its version
        "user_tag",
        {"1103": WRONG},
        [
            "INSERT INTO user_tag (id, tags) VALUES (1103, 'x')",
            'UPDATE user_tag__version SET tags = \'["a", "b", "x"]\' WHERE id = 1103',
        ],
    ),
    (  # and one less
        "user_tag",
        {"1104": WRONG},
        [
            "DELETE FROM user_tag WHERE id = 1104 AND tags = 'a'",
            "UPDATE user_tag__version SET tags = '[\"b\"]' WHERE id = 1104",
        ],
    ),
    (  # a tombstone in its place, at its version
        "user_tag",
        {"1105": MISSING},
        ["DELETE FROM user_tag WHERE id = 1105", "UPDATE user_tag__version SET tags = NULL WHERE id = 1105"],
    ),
    (  # an older list, which no history tells of
        "user_tag",
        {"1106": WRONG},
        [
            "UPDATE user_tag SET tags = 'old' WHERE id = 1106 AND tags = 'a'",
            'UPDATE user_tag__version SET tags = \'["b", "old"]\', version = version - 1 WHERE id = 1106',
        ],
    ),
    (
        "user_tag",
        {"1107": WRONG},
        [
            "UPDATE user_tag SET tags = 'old' WHERE id = 1107 AND tags = 'a'",
            'UPDATE user_tag__version SET tags = \'["b", "old"]\', version = 0 WHERE id = 1107',
        ],
    ),
    (  # the largest version
        "user_tag",
        {"1108": WRONG},
        [
            "DELETE FROM user_tag WHERE id = 1108 AND tags = 'a'",
            "UPDATE user_tag__version SET tags = '[\"b\"]', version = 18446744073709551615 WHERE id = 1108",
        ],
    ),
    ("user_tag", {"1109": WRONG}, ["UPDATE user_tag__version SET tags = '{\"a\": 1}' WHERE id = 1109"]),
    ("user_tag", {"1110": WRONG}, ["UPDATE user_tag__version SET tags = '[1, 2]' WHERE id = 1110"]),
    ("user_tag", {"1111": WRONG}, ["UPDATE user_tag__version SET tags = NULL WHERE id = 1111"]),
    ("user_tag", {"1112": WRONG}, ["UPDATE user_tag__version SET tags = '[]' WHERE id = 1112"]),
    ("user_tag", {"1113": WRONG}, ["UPDATE user_tag__version SET tags = '[\"x\"]' WHERE id = 1113"]),
    (  # a value of another one
        "user_tag",
        {"1114": WRONG, "1115": WRONG},
        ["UPDATE user_tag SET id = 1115, tags = 'A' WHERE id = 1114 AND tags = 'a'"],
    ),
    (  # of nobody in both tables, as newer than all
        "user_tag",
        {"9101": EXTRA},
        [
            "INSERT INTO user_tag (id, tags) VALUES (9101, 'x')",
            f"INSERT INTO user_tag__version (id, tags, version) VALUES (9101, '[\"x\"]', {ABOVE})",
        ],
    ),
    (  # what the condition leaves out, in both tables
        "active_user_tag",
        {"1129": EXTRA},
        [
            "INSERT INTO active_user_tag (id, tags) VALUES (1129, 'a')",
            "REPLACE INTO active_user_tag__version (id, tags, version) VALUES (1129, '[\"a\"]', 5)",
        ],
    ),
    ("document_number", {"x5": WRONG}, ["UPDATE document_number SET numbers = 3 WHERE id = 'x5' AND numbers = 1"]),
    (  # other values at its version
        "document_number",
        {"x6": WRONG},
        [
            "UPDATE document_number SET numbers = 3 WHERE id = 'x6' AND numbers = 1",
            "UPDATE document_number__version SET numbers = '[2, 3]' WHERE id = 'x6'",
        ],
    ),
    (  # a tombstone above the row
        "document_number",
        {"x7": MISSING},
        [
            "DELETE FROM document_number WHERE id = 'x7'",
            "UPDATE document_number__version SET numbers = NULL, version = 11 WHERE id = 'x7'",
        ],
    ),
    (  # its key in another case
        "document_number",
        {"x8": MISSING, "X8": EXTRA},
        [f"UPDATE document_number{of} SET id = 'X8' WHERE id = 'x8'" for of in ("", "__version")],
    ),
    (
        "document_number",
        {"y1": EXTRA},
        [
            "INSERT INTO document_number (id, numbers) VALUES ('y1', 1)",
            "INSERT INTO document_number__version (id, numbers, version) VALUES ('y1', '[1]', 4)",
        ],
    ),
]
# The same, with commands of Redis.
IN_SETS: list[tuple[str, dict[str, str], list[tuple[str, ...]]]] = [
    ("company_users", {"1001": MISSING}, [("SREM", HERE, "1001")]),
    ("company_users", {"9001": EXTRA}, [("SADD", HERE, "9001")]),
    ("company_users", {"1002": WRONG}, [("SADD", THERE, "1002")]),
    ("company_users", {"1003": MISSING}, [("SMOVE", HERE, THERE, "1003")]),
    (
        "company_users",
        {"1004": WRONG},
        [("SMOVE", HERE, THERE, "1004"), ("HSET", "company_users:1004", "set", THERE)],
    ),
    ("company_users", {"1005": MISSING}, [("DEL", "company_users:1005")]),
    ("company_users", {"1006": WRONG}, [("HDEL", "company_users:1006", "_version")]),
    ("company_users", {"1007": WRONG}, [("HSET", "company_users:1007", "_version", ABOVE)]),
    (
        "company_users",
        {"1008": MISSING},
        [("SREM", HERE, "1008"), ("DEL", "company_users:1008"), ("SET", "{company_users:1008}:t", ABOVE)],
    ),
    ("company_users", {"1009": WRONG}, [("SET", "{company_users:1009}:t", OLDER)]),
    ("company_users", {"1010": MISSING}, [("DEL", "company_users:1010"), ("SET", "company_users:1010", "a text")]),
    ("company_users", {"1039": EXTRA}, [("SADD", HERE, "1039")]),
    (
        "company_users",
        {"1040": EXTRA},
        [
            ("DEL", "{company_users:1040}:t"),
            ("SADD", HERE, "1040"),
            ("HSET", "company_users:1040", "_version", OLDER, "set", HERE, "member", "1040"),
        ],
    ),
    ("role_users", {"1030": EXTRA}, [("SADD", "of:staff:20", "1030")]),
    ("newest", {"1001": WRONG}, [("ZADD", NEWEST, "5", "1001")]),
    ("newest", {"1002": MISSING}, [("ZREM", NEWEST, "1002")]),
    ("newest", {"1003": WRONG}, [("ZADD", "company:21:newest", "5", "1003")]),
    ("newest", {"9001": EXTRA}, [("ZADD", NEWEST, "5", "9001")]),
    (
        "in_folder",
        {"x1": STALE},
        [
            ("SMOVE", "folder:in", "folder:done", "x1"),
            ("HSET", "in_folder:x1", "set", "folder:done", "_version", OLDER),
        ],
    ),
    (
        "in_folder",
        {"x2": WRONG},
        [
            ("SMOVE", "folder:in", "folder:done", "x2"),
            ("HSET", "in_folder:x2", "set", "folder:done", "_version", ABOVE),
        ],
    ),
    ("in_folder", {"x3": MISSING}, [("DEL", "in_folder:x3")]),
    ("company_users", {"1101": MISSING}, [("HDEL", "company_users:1101", "set")]),
    ("company_users", {"1102": MISSING}, [("HDEL", "company_users:1102", "member")]),
    ("company_users", {"1103": MISSING}, [("HSET", "company_users:1103", "member", "1")]),
    ("company_users", {"1104": MISSING}, [("HSET", "company_users:1104", "set", "company:77:users")]),
    ("company_users", {"1105": WRONG}, [("HSET", "company_users:1105", "_version", "12345")]),
    ("company_users", {"1106": WRONG}, [("HSET", "company_users:1106", "_version", "x" * 19)]),
    (
        "company_users",
        {"1107": WRONG},
        [("SMOVE", HERE, THERE, "1107"), ("HSET", "company_users:1107", "set", THERE, "_version", "9" * 19)],
    ),
    (
        "company_users",
        {"1108": WRONG},
        [("SMOVE", HERE, THERE, "1108"), ("HSET", "company_users:1108", "set", THERE, "_version", "0" * 19)],
    ),
    ("company_users", {"1109": MISSING}, [("SREM", HERE, "1109"), ("DEL", "company_users:1109")]),
    (
        "company_users",
        {"1110": MISSING},
        [("SREM", HERE, "1110"), ("DEL", "company_users:1110"), ("SET", "{company_users:1110}:t", "gone")],
    ),
    ("company_users", {"1111": MISSING}, [("DEL", "company_users:1111"), ("RPUSH", "company_users:1111", "x")]),
    ("company_users", {"1112": WRONG}, [("SET", "{company_users:1112}:t", ABOVE)]),
    ("company_users", {"1113": WRONG}, [("SADD", "company:78:users", "1113"), ("SADD", THERE, "1113")]),
    (
        "company_users",
        {"9101": EXTRA},
        [
            ("SADD", HERE, "9101"),
            ("HSET", "company_users:9101", "_version", ABOVE, "set", HERE, "member", "9101"),
        ],
    ),
    ("role_users", {"1101": WRONG}, [("SADD", "of:admin:20", "1101")]),
    (
        "newest",
        {"1101": WRONG},
        [("ZINCRBY", NEWEST, "0.001", "1101")],
    ),
    ("newest", {"1102": WRONG}, [("ZADD", NEWEST, "inf", "1102")]),
    (
        "in_folder",
        {"x5": MISSING},
        [("SREM", "folder:in", "x5"), ("DEL", "in_folder:x5"), ("SET", "{in_folder:x5}:t", f"{11:019d}")],
    ),
    (
        "in_folder",
        {"y1": EXTRA},
        [("SADD", "folder:in", "y1"), ("HSET", "in_folder:y1", "set", "folder:in", "member", "y1", "_version", OLDER)],
    ),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, redis_server: Server) -> Iterator[World]:
    """Views that are filled and kept, with rows that nothing changes but the tests.

    1030 and 1129 have left; 1039 and 1040 are gone.
    """
    with made(tmp_path_factory.mktemp("sets"), mysql_server, redis_server) as found:
        found.ask(f"DELETE FROM {SCHEMA}.user WHERE id >= 40")
        for number in (*range(1001, 1041), *range(1101, 1131)):
            role = "left" if number in (1030, 1129) else "staff"
            found.ask(
                f"INSERT INTO {SCHEMA}.user VALUES ({number}, 20, '{role}', '[\"a\", \"b\"]', '2024-01-02 03:04:05')"
            )
        for number in range(1, 10):
            found.ask(f"INSERT INTO {SCHEMA}.document VALUES ('x{number}', 5, 'in', '[1, 2]')")
        found.run.start()
        wait_for("all views are filled", found.run.is_well)
        found.ask(f"DELETE FROM {SCHEMA}.user WHERE id IN (1039, 1040)")
        wait_for("the views are as the tables", found.is_equal)
        yield found


def command(world: World, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = world.run.command(*arguments)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    return done


def verify(world: World, *arguments: str, code: int) -> dict[str, Any]:
    """By view, what it says."""
    found = json.loads(command(world, "verify", "--json", *arguments, code=code).stdout)
    assert not found["failed"], found
    return {one["view"].partition(":")[2]: one for one in found["views"]}


@pytest.mark.parametrize("damages", [IN_LISTS, IN_SETS], ids=["lists", "sets"])
def test_there_are_30_kinds_of_damage_to_lists_and_to_sets(damages: list[Any]) -> None:
    assert len(damages) >= 30
    planted = Counter((view, key) for view, found, _ in damages for key in found)
    assert planted.most_common(1)[0][1] == 1, "each is in keys of its own"


def plant(world: World) -> dict[tuple[str, str], str]:
    """By view and key, what verify must name."""
    for _, _, statements in IN_LISTS:
        for statement in statements:
            for verb in ("FROM ", "INTO ", "UPDATE "):
                statement = statement.replace(verb, f"{verb}{STORE}.")
            world.ask(statement)
    for _, _, commands in IN_SETS:
        for one in commands:
            world.redis.execute_command(*one)
    return {(view, key): kind for view, found, _ in (*IN_LISTS, *IN_SETS) for key, kind in found.items()}


def test_planted_damage_in_lists_and_sets_is_found_and_mended(world: World) -> None:
    wanted = plant(world)
    found = verify(world, code=1)
    assert {(view, one["key"]): one["difference"] for view in found for one in found[view]["entities"]} == wanted
    assert not any(one["foreign"] or one["parked"] for one in found.values())
    mended = verify(world, "--repair", code=0)
    assert [one for view in mended.values() for one in view["entities"] if not one["is_repaired"]] == []
    assert world.is_equal()
    assert not any(one["entities"] for one in verify(world, code=0).values())
    # What was above all versions is not any more.
    world.ask(f"UPDATE {SCHEMA}.user SET company_id = 22, tags = '[\"c\"]' WHERE id < 1013 OR id > 1100")
    world.ask(f"UPDATE {SCHEMA}.document SET folder = 'out', numbers = '[3]', revision = 6 WHERE id LIKE 'x%%'")
    command(world, "wait", "in_folder", "x1", "--version", "6")  # of the version column
    command(world, "wait", "in_folder", "x1", "--version", "7", "--within", "0.1", code=1)
    wait_for("later changes come", world.is_equal)


SPOILT = ("user_tag", "company_users", "newest")


def spoil(world: World, *, is_above: bool) -> None:
    """1016 has other values, and is in other sets; as it should not be at its version, or at one above all."""
    for name in ("user_tag", "user_tag__version"):
        world.ask(f"DELETE FROM {STORE}.{name} WHERE id = 1016")
    version = int(ABOVE) if is_above else 5
    world.ask(f"INSERT INTO {STORE}.user_tag (id, tags) VALUES (1016, 'x'), (1016, 'y')")
    world.ask(f'INSERT INTO {STORE}.user_tag__version (id, tags, version) VALUES (1016, \'["x", "y"]\', {version})')
    world.redis.smove(world.redis.hget("company_users:1016", "set") or "", THERE, "1016")
    world.redis.zrem(world.redis.hget("newest:1016", "set") or "", "1016")
    world.redis.zadd("company:21:newest", {"1016": 5})
    for view, name in (("company_users", THERE), ("newest", "company:21:newest")):
        world.redis.hset(f"{view}:1016", mapping={"set": name, "_version": f"{version:019d}"})


def of_one_entity(world: World) -> list[Any]:
    """What readers find of 1016 in each view: its values, and the sets in which it is."""
    shown = world.shown()
    sets = {name: members for name, members in shown["sets"].items() if "1016" in members}
    return [
        {tag for tag, number in shown["user_tag"] if number == 1016},
        {name for name in sets if name.startswith("company:") and name.endswith(":users")},
        {name: members["1016"] for name, members in sets.items() if name.endswith(":newest")},
    ]


@pytest.mark.parametrize(
    ("command_line", "steps"),
    [
        (("verify", "--repair"), [*REWRITE_STEPS, *RUN_STEPS]),
        # It takes no version away, and saves nothing in so short a time.
        (
            ("replay", "--where", "id BETWEEN 1015 AND 1017"),
            ["after begin", "after rows", "after rewrite", "before end"],
        ),
    ],
    ids=["repair", "replay"],
)
def test_one_that_was_killed_shows_no_half_of_a_list_or_set_and_is_finished_by_the_same_command(
    world: World, command_line: tuple[str, ...], steps: list[str]
) -> None:
    what, *options = command_line
    right = of_one_entity(world)
    for step in steps:
        spoil(world, is_above="--repair" in options)
        spoilt = of_one_entity(world)
        assert all(one != other for one, other in zip(spoilt, right, strict=True))
        killed = [world.run.background(what, view, *options, VIEWTAIL_FAILPOINT=step) for view in SPOILT]
        for one in killed:
            one.communicate(timeout=60)
        assert [one.returncode for one in killed] == [-signal.SIGKILL] * len(SPOILT), step
        found = of_one_entity(world)
        assert all(one in either for one, *either in zip(found, right, spoilt, strict=True)), (step, found)
        again = [world.run.background(what, view, *options) for view in SPOILT]
        told = [one.communicate(timeout=60) for one in again]
        assert [one.returncode for one in again] == [0] * len(SPOILT), told
        assert of_one_entity(world) == right, step
    assert world.is_equal() and verify(world, code=0)


def test_a_member_that_is_no_key_is_named_and_stays(world: World) -> None:
    world.redis.sadd(HERE, "no key", "01013")
    found = verify(world, "company_users", "--repair", code=1)["company_users"]
    assert sorted(found["foreign"]) == [f"member {member!r} of {HERE!r}" for member in ("01013", "no key")]
    assert found["entities"] == [] and world.redis.srem(HERE, "no key", "01013") == 2


def test_a_rebuild_of_lists_and_sets_mends_what_their_entities_have_and_a_rollback_is_exact(world: World) -> None:
    world.redis.srem(HERE, "1013")
    world.redis.smove(HERE, THERE, "1014")
    world.redis.hset("company_users:1014", "set", THERE)
    world.redis.zadd(NEWEST, {"1013": 5})
    world.ask(f"DELETE FROM {STORE}.user_tag WHERE id = 1013 AND tags = 'a'")
    damaged, views = world.shown(), ("user_tag", "company_users", "newest")
    for view in views:
        command(world, "rebuild", view)
    assert world.is_equal()
    for view in views:
        command(world, "rebuild", view, "--rollback")
    assert world.shown() == damaged
    assert {"1013", "1014"} == {
        one["key"] for one in verify(world, "company_users", code=1)["company_users"]["entities"]
    }
    for view in views:
        command(world, "rebuild", view)
        command(world, "rebuild", view, "--abort", "--yes")
    assert world.is_equal() and verify(world, code=0)
    assert list(world.redis.scan_iter(match="{*}:1*", count=1000)) == []


def test_why_and_replay_know_lists_and_sets(world: World) -> None:
    for view in ("user_tag", "company_users", "newest"):
        assert "CURRENT" in command(world, "why", view, "1020").stdout
        assert "RIGHTLY ABSENT" in command(world, "why", view, "9002").stdout
    assert "KEPT OUT BY WHERE" in command(world, "why", "role_users", "1030").stdout
    # A set that the entity is not to be in is found by going through all of them, which one look does not.
    assert "Other sets are not searched" in command(world, "why", "newest", "1020").stdout
    assert "Other sets" not in command(world, "why", "user_tag", "1020").stdout
    ((since,),) = world.ask("SELECT DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%s')")
    world.ask(f"UPDATE {SCHEMA}.user SET joined_at = '2024-02-01' WHERE id IN (1020, 1021)")
    wait_for("the change came", world.is_equal)
    world.ask(f"DELETE FROM {STORE}.user_tag WHERE id IN (1020, 1021) AND tags = 'a'")
    world.redis.srem(HERE, "1020", "1021")
    world.redis.zadd(NEWEST, {"1020": 1, "1021": 1})
    for view in ("user_tag", "company_users", "newest"):
        assert "WRONG" in command(world, "why", view, "1020", code=1).stdout
        command(world, "replay", view, "--key", "1020")
        assert "CURRENT" in command(world, "why", view, "1020").stdout
    command(world, "pause", "user_tag")
    assert "viewtail resume mysql:user_tag" in command(world, "why", "user_tag", "1021", code=1).stdout
    command(world, "resume", "user_tag")
    wait_for("it is filled again", world.run.is_well)
    wait_for("a backfill mends it", lambda: world.shown()["user_tag"] == world.expected()["user_tag"])
    world.ask(f"DELETE FROM {STORE}.user_tag WHERE id IN (1020, 1021) AND tags = 'a'")
    command(world, "replay", "user_tag", "--yes")
    command(world, "replay", "company_users", "--where", "company_id = 20", "--yes")
    command(world, "replay", "newest", "--since", since, "--yes")
    wait_for("replay mends all of it", world.is_equal)
    assert world.run.is_well()


def test_an_erased_entity_leaves_lists_and_sets_and_a_set_where_somebody_put_it_is_named(world: World) -> None:
    world.ask(f"DELETE FROM {SCHEMA}.user WHERE id = 1022")
    wait_for("the delete came", world.is_equal)
    world.ask(f"INSERT INTO {STORE}.user_tag (id, tags) VALUES (1022, 'a')")
    world.redis.sadd(THERE, "1022")
    proof = json.loads(command(world, "forget", f"{SCHEMA}.user", "1022", "--json", code=1).stdout)
    assert [one["place"] for one in proof["looked"] if not one["is_clean"]] == [f"Redis set {THERE}"]
    assert [one["place"] for one in proof["looked"] if one["was_erased"]] == [f"table `{STORE}`.`user_tag`"]
    verify(world, "company_users", "--repair", code=0)
    proof = json.loads(command(world, "forget", f"{SCHEMA}.user", "1022", "--json").stdout)
    assert proof["is_erased"] and world.is_equal()


def test_the_cleaner_mends_lists_and_sets(world: World) -> None:
    assert world.run.stop() == 0
    world.run.start(VIEWTAIL_CLEANER__SHARE="0.5", VIEWTAIL_CLEANER__REST_S="1")
    wait_for("it runs again", world.run.is_well)
    world.ask(f"DELETE FROM {STORE}.user_tag WHERE id = 1023 AND tags = 'a'")
    world.ask(f"INSERT INTO {STORE}.user_tag (id, tags) VALUES (9003, 'x')")
    world.ask(f"DELETE FROM {STORE}.document_number__version WHERE id = 'x4'")
    world.redis.srem(HERE, "1023")
    world.redis.smove(HERE, THERE, "1024")
    world.redis.sadd(THERE, "1025", "9003")
    world.redis.zadd(NEWEST, {"1023": 1, "9003": 1})
    wait_for("a round mends all of it", world.is_equal)
    assert "the cleaner wrote entities again" in world.run.log


def declare(world: World, views: str, **environment: str) -> None:
    assert world.run.stop() == 0
    (world.run.folder / "views.py").write_text(views)
    world.run.start(**environment)
    wait_for("it runs again", world.run.is_well)


def test_another_declaration_of_lists_and_sets_is_built_beside(world: World) -> None:
    views = VIEWS.replace("company:{company_id}:users", "firm:{company_id}").replace("VARCHAR(20)", "VARCHAR(30)")
    views = views.replace('score="joined_at"', 'score="id"').replace('!= "left"', '== "left"')
    assert views.count("VARCHAR(30)") == 2
    (world.run.folder / "views.py").write_text(views)
    shown = {
        view: json.loads(command(world, "preview", view, "--json", "--sample", "1000").stdout)["differences"]
        for view in ("user_tag", "company_users", "newest", "role_users")
    }
    assert shown["user_tag"] == [], "its values are the same in a longer column"
    for one in shown["company_users"]:
        company = one["before"]["set"].split(":")[1]
        assert (one["before"]["set"], one["after"]["set"]) == (f"company:{company}:users", f"firm:{company}")
    assert all(one["after"]["score"] == float(one["key"]) for one in shown["newest"])
    assert {(one["before"] is None, one["after"] is None) for one in shown["role_users"]} == {
        (True, False),
        (False, True),
    }, "who left comes, and the others go"
    assert min(len(shown[view]) for view in ("company_users", "newest", "role_users")) > 50
    declare(world, views, VIEWTAIL_RUN__ON_CHANGE="beside")

    def is_changed() -> bool:
        rows = world.ask(f"SELECT id, company_id, role FROM {SCHEMA}.user WHERE company_id IS NOT NULL")
        members: dict[str, set[str]] = {}
        scores: dict[str, dict[str, float]] = {}
        for number, company, role in rows:
            members.setdefault(f"firm:{company}", set()).add(str(number))
            scores.setdefault(f"company:{company}:newest", {})[str(number)] = number
            if role == "left":
                members.setdefault(f"of:{role}:{company}", set()).add(str(number))
        shown = world.shown()
        sets = shown["sets"]
        assert [name for name in sets if name.startswith("company:") and name.endswith(":users")] == []
        assert {name: set(sets[name]) for name in sets if name.startswith(("firm:", "of:"))} == members
        assert {name: sets[name] for name in sets if name.endswith(":newest")} == scores
        assert shown["user_tag"] == world.expected()["user_tag"]
        return True

    wait_for("the views are as they are declared now", is_changed)
    left = f"SELECT COUNT(*) FROM {STORE}.rebuild WHERE stage <> 'ended'"
    wait_for("no other copy is left", lambda: [*world.ask(left)] == [(0,)], 60)
    ((count, swapped),) = world.ask(f"SELECT COUNT(*), COUNT(swapped_at) FROM {STORE}.rebuild")
    assert count == swapped > 0
    assert verify(world, code=0)
    ((type_,),) = world.ask(
        "SELECT COLUMN_TYPE FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = '{STORE}' AND TABLE_NAME = 'user_tag' AND COLUMN_NAME = 'tags'"
    )
    assert type_ == "varchar(30)"


def test_a_forgotten_list_or_set_goes_with_all_that_it_had(world: World) -> None:
    kept = [
        line
        for line in VIEWS.splitlines()
        if not any(f'"{one}"' in line for one in ("user_tag", "company_users", "newest"))
    ]
    declare(world, "\n".join(kept))
    for view in ("user_tag", "company_users", "newest"):
        command(world, "forget", view, "--yes")
    assert world.ask(f"SHOW TABLES FROM {STORE} LIKE 'user_tag%%'") == []
    forms = ("firm:*", "company:*", "company_users:*", "{company_users:*", "newest:*", "{newest:*")
    assert [name for form in forms for name in world.redis.scan_iter(match=form, count=1000)] == []
    assert {"active_user_tag", "active_user_tag__version"} <= {one for (one,) in world.ask(f"SHOW TABLES FROM {STORE}")}
    assert verify(world, code=0)
