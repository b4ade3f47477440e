"""What `bind` refuses, what it takes, and when a view's fingerprint changes."""

from __future__ import annotations

import functools
import importlib.util
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from projectors.binding import bind, declaration_hash
from projectors.function_source import function_source
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash, RedisJson, RedisSet, RedisSortedSet
from projectors.stores.topics.views import Topic
from projectors.views import BoundView, Entity, View
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table


def column(name: str, declared: str, kind: Kind, **more: Any) -> Column:
    return Column(name=name, declared=declared, kind=kind, **{"is_nullable": False, **more})


USER = Table(
    schema="shop",
    name="user",
    columns=(
        column("id", "bigint unsigned", Kind.INTEGER, is_unsigned=True),
        column("email", "varchar(100)", Kind.TEXT, charset="utf8mb4", length=100),
        column("username", "varchar(64)", Kind.TEXT, charset="utf8mb4", length=64, is_nullable=True),
        column("about", "text", Kind.TEXT, charset="utf8mb4", length=65535, is_nullable=True),
        column("settings", "json", Kind.JSON, is_nullable=True),
        column("home", "point", Kind.GEOMETRY, is_nullable=True),
        column("price", "decimal(10,2)", Kind.DECIMAL, precision=10, scale=2),
        column("weight", "float", Kind.FLOAT),
        column("age", "int", Kind.INTEGER),
        column("photo", "blob", Kind.BYTES, length=65535, is_nullable=True),
        column("token", "binary(16)", Kind.BYTES, length=16),
        column("created_at", "datetime(6)", Kind.DATETIME, scale=6),
        column("old", "varchar(10)", Kind.UNSUPPORTED, charset="newcode", length=10),
        column("kana", "varchar(10)", Kind.TEXT, charset="cp932", length=10),
        column("version", "int unsigned", Kind.INTEGER, is_unsigned=True),
        column("_version", "int", Kind.INTEGER),
        column("revision", "bigint", Kind.INTEGER, is_nullable=True),
        column("_hidden", "int", Kind.INTEGER),
        column("long_name", "varchar(700)", Kind.TEXT, charset="utf8mb4", length=700),
    ),
    primary_key=("id",),
    unique_keys=(("email",), ("token",), ("long_name",)),
)
KEYLESS = replace(USER, name="keyless", primary_key=(), unique_keys=())
EVENT = Table(
    schema="shop",
    name="event",
    columns=(
        column("number", "bigint", Kind.INTEGER),
        column("account", "int", Kind.INTEGER),
        column("state", "varchar(20)", Kind.TEXT, charset="utf8mb4", length=20),
    ),
    primary_key=("number",),
)
MEMBER = Table(
    schema="shop",
    name="member",
    columns=(column("team", "int", Kind.INTEGER), column("user", "int", Kind.INTEGER)),
    primary_key=("team", "user"),
)
COLOUR = Table(
    schema="shop",
    name="colour",
    columns=(
        column("label", "enum('b','a')", Kind.ENUM, charset="utf8mb4", labels=("b", "a")),
        column("n", "int", Kind.INTEGER),
    ),
    primary_key=("label", "n"),
)
WORD = Table(
    schema="shop",
    name="word",
    columns=(
        column("kana", "varchar(10)", Kind.TEXT, charset="sjis", length=10),
        column("n", "int", Kind.INTEGER),
        column("m", "int", Kind.INTEGER),
    ),
    primary_key=("kana",),
    unique_keys=(("n",),),
)
TABLES = {table.full_name: table for table in (USER, KEYLESS, EVENT, MEMBER, COLOUR, WORD)}


def describe(schema: str, name: str) -> Table:
    if f"{schema}.{name}" not in TABLES:
        raise DeclarationError(f"table {schema}.{name} does not exist")
    return TABLES[f"{schema}.{name}"]


def bound(*views: View) -> list[BoundView]:
    return bind(views, describe)


user = Entity("shop.user")
member = Entity("shop.member")


def of_cells(key: str) -> View:
    entity = Entity("shop.event", key=key, columns_by="account", newest="state", body="state", codec="json")
    return RedisJson("c", entity, document=dict)


def of_events(only: dict[str, str | int]) -> View:
    entity = Entity("shop.event", key="account", version="number", append_only=True, only=only)
    return IndexTable("e", entity, value="state")


CELLS = Entity("shop.event", key="number", columns_by="account", newest="state", body="state", codec="json")


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: IndexTable("i", user, value="email", push=True), "push=True needs an entity"),
        (lambda: RedisHash("i", Entity("shop.user", version="age"), fields=["email"], push=True), "append_only=True"),
        (lambda: RedisJson("i", CELLS, document=dict, push=True), "push=True needs an entity"),
        (lambda: RedisSet("i", user, key="x:{email}", push=True), "push=True needs an entity"),
        (lambda: RedisSortedSet("i", user, key="x:{email}", score="age", push=True), "push=True needs an entity"),
        (lambda: SearchIndex("i", user, fields=["email"], push=True), "push=True needs an entity"),
        (lambda: IndexTable("i", user, value="email", push="yes"), "push is True or False, not 'yes'"),  # type: ignore[arg-type]
    ],
)
def test_a_push_without_versions_of_the_rows_own_is_refused(declare: Callable[[], View], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare()


def test_a_topic_takes_no_push() -> None:
    with pytest.raises(TypeError, match="push"):
        Topic("t", user, push=True)  # type: ignore[call-arg]


REFUSED: list[tuple[Callable[[], list[View]], str]] = [
    (lambda: [IndexTable("i", Entity("shop.usr"), value="email")], "table shop.usr does not exist"),
    (lambda: [RedisHash("h", Entity("shop.colour"), fields=["n"])], "label of shop.colour is ENUM('b','a')"),
    (
        lambda: [
            IndexTable("i", Entity("shop.keyless", key="age", version="version", append_only=True), value="email")
        ],
        "rows that share a key cannot be read in pages",
    ),
    (lambda: [of_cells("number")], "newest: column state of shop.event is VARCHAR(20); it must be a NOT NULL integer"),
    (lambda: [of_cells("number")], "columns_by: column account of shop.event is INT; cells are named by a text"),
    (lambda: [of_cells("number")], "which cells it reads is not certain: name them"),
    (lambda: [of_cells("number")], "has no unique key (number, account, state)"),
    (lambda: [of_cells("numer")], "no column numer; did you mean number?"),
    (lambda: [of_events(only={"stat": "x"})], "no column stat; did you mean state?"),
    (lambda: [of_events(only={"state": 5})], "so it never has the value 5; write '5'"),
    (lambda: [of_events(only={"account": "5"})], "so it never has the value '5'"),
    (lambda: [of_events(only={"state": "x" * 21})], "which cannot hold"),
    (lambda: [of_events(only={"account": 5})], "account of shop.event is part of the key"),
    (lambda: [IndexTable("i", Entity("shop.keyless"), value="email")], "shop.keyless has no primary key"),
    (lambda: [IndexTable("i", user, value="emial")], "no column emial; did you mean email?"),
    (lambda: [RedisHash("h", user, fields=["usrname"])], "no column usrname; did you mean username?"),
    (lambda: [IndexTable("i", user, value="xyzzy")], "no column xyzzy; it has id, email, username"),
    (
        lambda: [IndexTable("i", Entity("shop.user", key="idd"), value="email")],
        "key column idd; did you mean id?",
    ),
    (lambda: [IndexTable("i", Entity("shop.user", key="age"), value="email")], "(age) is no primary key"),
    (lambda: [IndexTable("i", Entity("shop.user", key=["id", "age"]), value="email")], "append_only=True"),
    (
        lambda: [IndexTable("i", Entity("shop.user", key="weight"), value="email")],
        "weight of shop.user is FLOAT",
    ),
    (
        lambda: [IndexTable("i", Entity("shop.user", key="settings"), value="email")],
        "settings of shop.user is JSON",
    ),
    (lambda: [IndexTable("i", Entity("shop.user", key="home"), value="email")], "home of shop.user is POINT"),
    (
        lambda: [IndexTable("i", Entity("shop.user", key="username"), value="email")],
        "username of shop.user may be NULL",
    ),
    (
        lambda: [IndexTable("i", Entity("shop.user", key="old"), value="email")],
        "VARCHAR(10) in character set newcode",
    ),
    (
        lambda: [IndexTable("i", Entity("shop.user", key="kana"), value="email")],
        "kana of shop.user is in the character set cp932, where some characters have two codes",
    ),
    (lambda: [IndexTable("i", Entity("shop.word"), value="n")], "two codes"),
    (
        lambda: [IndexTable("i", Entity("shop.word", key="n"), value="m")],
        "column kana of shop.word is part of the key by which the table is read in pages",
    ),
    (lambda: [IndexTable("i", Entity("shop.user", version="email"), value="age")], "it must be an integer"),
    (
        lambda: [IndexTable("i", Entity("shop.user", version="created_at"), value="age")],
        "a clock cannot order",
    ),
    (
        lambda: [IndexTable("i", Entity("shop.user", version="revision"), value="age")],
        "revision of shop.user may be NULL",
    ),
    (lambda: [IndexTable("i", Entity("shop.user", version="id"), value="age")], "is part of the key"),
    (lambda: [IndexTable("i", Entity("shop.user", version="agee"), value="age")], "did you mean age?"),
    (
        lambda: [RedisHash("h", user, fields=["old"])],
        "VARCHAR(10) in character set newcode, which viewtail cannot read",
    ),
    (lambda: [IndexTable("i", user, value="about")], "TEXT, which an index cannot hold whole"),
    (lambda: [IndexTable("i", user, value="photo")], "BLOB, which an index cannot hold whole"),
    (lambda: [IndexTable("i", user, value="settings")], "JSON, which an index cannot hold whole"),
    (lambda: [IndexTable("i", user, value="home")], "POINT, which an index cannot hold whole"),
    (lambda: [IndexTable("i", user, value=["email", "id"])], "column id is a key column"),
    (
        lambda: [IndexTable("i", user, value="version")],
        "the name under which an index table keeps its versions",
    ),
    (lambda: [IndexTable("i" * 65, user, value="email")], "1 to 64 characters"),
    (lambda: [IndexTable("view", user, value="email")], "viewtail needs the table name view itself"),
    (lambda: [IndexTable("i", user, value=["long_name", "email"])], "InnoDB allows 3072"),
    (lambda: [RedisHash("h", user, fields=["_version"])], "_version has the name under which viewtail keeps"),
    (
        lambda: [RedisHash("h", user, fields=["age"], key="user:{idd}")],
        "{idd} is not one of the key columns {id}",
    ),
    (lambda: [RedisHash("h", user, fields=["age"], key="user:x")], "must name each of {id} once"),
    (lambda: [RedisHash("h", user, fields=["age"], key="user:{id")], "key template 'user:{id'"),
    (lambda: [RedisHash("h", user, fields=["age"], key="user:{id}}")], "key template 'user:{id}}'"),
    (lambda: [RedisHash("h", user, fields=["age"], key="{id}")], "must begin with text"),
    (lambda: [RedisJson("j", user, fields=["age"], key="user:{id:>8}")], "is not one of the key columns"),
    (
        lambda: [RedisHash("h", member, fields=["user"], key="m:{team}")],
        "must name each of {team}, {user} once",
    ),
    (lambda: [RedisHash("h", member, fields=["user"], key="m:{team}{user}")], "put a ':' between them"),
    (lambda: [RedisHash("h{}", user, fields=["age"])], "holds a brace"),
    (
        lambda: [RedisHash("h", user, fields=["age"]), RedisJson("h", user, fields=["age"])],
        "two views have this store",
    ),
    (
        lambda: [RedisHash("h", user, fields=["age"]), RedisJson("j", user, fields=["age"], key="h:{id}")],
        "one Redis key could belong to both",
    ),
    (lambda: [IndexTable("i", user, value="age"), IndexTable("i", user, value="email")], "another name"),
    (lambda: [SearchIndex("S", user, fields=["age"])], "must be lower case; call it 's'"),
    (lambda: [SearchIndex("a b", user, fields=["age"])], "cannot hold ' '"),
    (lambda: [SearchIndex("_s", user, fields=["age"])], "cannot begin with '_'"),
    (lambda: [SearchIndex("s" * 250, user, fields=["age"])], "at most 200 are allowed"),
    (lambda: [SearchIndex("s", user, fields=["_hidden"])], "names that begin with '_'"),
    (
        lambda: [SearchIndex("s", user, document=dict, fields={"viewtail_deleted": "boolean"})],
        "field viewtail_deleted",
    ),
    (
        lambda: [SearchIndex("s", user, fields={"email": "long"})],
        "VARCHAR(100) and cannot be an Elasticsearch long",
    ),
    (
        lambda: [SearchIndex("s", user, fields={"email": "date"})],
        "cannot be an Elasticsearch date; use text or keyword",
    ),
    (
        lambda: [SearchIndex("s", user, fields={"age": "boolean"})],
        "INT and cannot be an Elasticsearch boolean",
    ),
    (
        lambda: [SearchIndex("s", user, fields={"age": "short"})],
        "go from -2147483648 to 2147483647; use integer",
    ),
    (lambda: [SearchIndex("s", user, fields={"price": "long"})], "the digits after the point would be lost"),
    (
        lambda: [SearchIndex("s", user, fields={"created_at": "long"})],
        "cannot be an Elasticsearch long; use date",
    ),
    (lambda: [SearchIndex("s", user, fields={"email": "keywrd"})], "did you mean keyword?"),
    (
        lambda: [SearchIndex("s", user, fields={"email": {"analyzer": "english"}})],
        "the mapping names no type",
    ),
    (lambda: [SearchIndex("s", Entity("shop.user", key="long_name"), fields=["age"])], "at most 512"),
    (lambda: [RedisJson("j", user, document=dict, columns=["agee"])], "did you mean age?"),
    (
        lambda: [RedisJson("j", user, fields=["age"], columns=["id"])],
        "columns=[...] is for views with document=",
    ),
]


@pytest.mark.parametrize(("declare", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_declaration_that_cannot_work_is_refused(declare: Callable[[], list[View]], message: str) -> None:
    views = declare()
    with pytest.raises(DeclarationError) as refusal:
        bound(*views)
    assert message in str(refusal.value)
    assert any(f"view {view.id}:" in str(refusal.value) for view in views)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(DeclarationError) as refusal:
        bound(
            IndexTable("i", user, value="emial"),
            RedisHash("h", user, fields=["agee", "usrname"]),
            SearchIndex("s", Entity("shop.nowhere"), fields=["x"]),
        )
    assert len(str(refusal.value).splitlines()) == 4


def test_what_can_work_is_taken() -> None:
    views = bound(
        IndexTable("i", user, value=["email", "age"]),
        RedisHash("h", Entity("shop.user", key="token"), fields=["username"]),
        RedisJson("j", member, fields=["user"], key="m:{user}:{team}"),
        SearchIndex("s", user, fields={"email": "keyword", "age": "integer", "settings": "flattened"}),
        IndexTable("e", Entity("shop.event", key="account", version="number", append_only=True), value="state"),
        RedisHash("m", member, fields=["user"], key="member:{team}-{user}"),
    )
    assert [[one.name for one in view.key] for view in views][:3] == [["id"], ["token"], ["team", "user"]]
    assert [one.name for one in views[0].values] == ["email", "age"]
    assert views[4].needed == ("number", "account", "state")


def test_a_function_needs_the_columns_that_it_asks_for_and_every_readable_one_where_that_cannot_be_told() -> None:
    (view,) = bound(RedisJson("j", user, document=lambda row: {"a": row["age"], "o": row["old"]}))
    assert view.needed == ("id", "age")
    (whole,) = bound(RedisJson("j", user, document=lambda row: dict(row)))
    assert set(whole.needed) == {one.name for one in USER.columns} - {"old"}
    assert whole.values == ()
    (named,) = bound(RedisJson("j", user, document=lambda row: dict(row), columns=["age"]))
    assert named.needed == ("id", "age")
    (both,) = bound(RedisJson("j", user, document=lambda row: row["age"], where=lambda row: row["email"]))
    assert both.needed == ("id", "email", "age")
    (where,) = bound(IndexTable("i", user, value="age", where=lambda row: row["email"] > "m"))
    assert where.needed == ("id", "email", "age")


def test_a_view_of_another_table_description_error_passes_through() -> None:
    def gone(schema: str, name: str) -> Table:
        raise RuntimeError("the server is down")

    with pytest.raises(RuntimeError):
        bind([IndexTable("i", user, value="age")], gone)


# --- Fingerprints ---


def fingerprint(view: View) -> str:
    return bound(view)[0].fingerprint


@pytest.mark.parametrize(
    "other",
    [
        IndexTable("i", user, value="email"),
        IndexTable("i", user, value=["age", "email"]),
        IndexTable("i", Entity("shop.user", key="email"), value="age"),
        IndexTable("i", Entity("shop.user", version="version"), value="age"),
        IndexTable("i", user, value="age", where=lambda row: row["age"] > 1),
    ],
)
def test_another_declaration_has_another_fingerprint(other: View) -> None:
    assert fingerprint(IndexTable("i", user, value="age")) != fingerprint(other)


def test_the_same_declaration_has_the_same_fingerprint() -> None:
    assert fingerprint(IndexTable("i", Entity("shop.user"), value="age")) == fingerprint(
        IndexTable("i", Entity("shop.user", key="id"), value=("age",))
    )


def test_a_view_that_is_pushed_to_from_now_on_is_not_backfilled() -> None:
    log = Entity("shop.event", key="account", version="number", append_only=True)
    plain, pushed = IndexTable("i", log, value="state"), IndexTable("i", log, value="state", push=True)
    assert fingerprint(plain) == fingerprint(pushed)
    assert declaration_hash(plain) == declaration_hash(pushed)


def test_a_template_or_mapping_changes_the_fingerprint() -> None:
    assert fingerprint(RedisHash("h", user, fields=["age"])) != fingerprint(
        RedisHash("h", user, fields=["age"], key="other:{id}")
    )
    assert fingerprint(SearchIndex("s", user, fields={"age": "integer"})) != fingerprint(
        SearchIndex("s", user, fields={"age": "long"})
    )


def test_only_types_of_columns_that_are_used_change_the_fingerprint() -> None:
    def with_type(name: str, declared: str) -> str:
        columns = tuple(replace(one, declared=declared) if one.name == name else one for one in USER.columns)
        table = replace(USER, columns=columns)
        return bind([IndexTable("i", user, value="age")], lambda *_: table)[0].fingerprint

    assert with_type("age", "bigint") != with_type("age", "int")
    assert with_type("email", "varchar(99)") == with_type("age", "int")


def function(tmp_path: Path, text: str, name: str = "f") -> Callable[[Mapping[str, Any]], Any]:
    path = tmp_path / f"views{len(list(tmp_path.iterdir()))}.py"
    path.write_text(textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[Mapping[str, Any]], Any] = getattr(module, name)
    return found


SAME = [
    ("f = lambda row: row['a'] + 1", "# a comment\n\nf = lambda row: (row['a']\n    + 1)", "formatting"),
    ("def f(row):\n    return row['a']", "other = 1\ndef f(row):\n    # why\n    return row['a']", "a def"),
    ("views = [(lambda r: r['a']), (lambda r: r['b'])]\nf = views[0]",
     "views = [(lambda r: r['a']), (lambda r: r['c'])]\nf = views[0]", "a lambda beside it"),
    ("f = lambda row: {'x', 'y', 'z'}", "f = lambda row: {'x', 'y', 'z'}", "a set"),
]  # fmt: skip
DIFFERENT = [
    ("f = lambda row: row['a'] + 1", "f = lambda row: row['a'] + 2", "a constant"),
    ("f = lambda row: (lambda: row['a'])()", "f = lambda row: (lambda: row['b'])()", "an inner function"),
    ("def g(v):\n    return v\nf = lambda row: g(row['a'])",
     "def g(v):\n    return v + 1\nf = lambda row: g(row['a'])", "a helper"),
    ("LIMIT = 1\nf = lambda row: row['a'] > LIMIT", "LIMIT = 2\nf = lambda row: row['a'] > LIMIT", "a global constant"),
    ("NAMES = {'a': [1, 2]}\nf = lambda row: NAMES[row['a']]",
     "NAMES = {'a': [1, 3]}\nf = lambda row: NAMES[row['a']]", "a nested constant"),
    ("N = [1, 2]\nf = lambda row: N", "N = [1, 2, 1]\nf = lambda row: N", "a repeated constant"),
    ("f = lambda row, least=1: row['a'] > least", "f = lambda row, least=2: row['a'] > least", "a default"),
    ("def make(n):\n    return lambda row: row['a'] > n\nf = make(1)",
     "def make(n):\n    return lambda row: row['a'] > n\nf = make(2)", "a closure"),
    ("f = lambda row: row['a']\n", "f = (\n    lambda row: row['a'] or\n    row['b'])", "a second line"),
    ("import re\nP = re.compile('a')\nf = lambda row: P.match(row['a'])",
     "import re\nP = re.compile('b')\nf = lambda row: P.match(row['a'])", "a pattern"),
    ("def d(g):\n    return lambda row: g(row)\n@d\ndef f(row):\n    return 1",
     "def d(g):\n    return lambda row: g(row)\n@d\ndef f(row):\n    return 2", "a decorated function"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "what"), SAME, ids=[what for *_, what in SAME])
def test_what_does_not_change_a_function_keeps_its_fingerprint(tmp_path: Path, one: str, other: str, what: str) -> None:
    assert function_source(function(tmp_path, one)) == function_source(function(tmp_path, other))


@pytest.mark.parametrize(("one", "other", "what"), DIFFERENT, ids=[what for *_, what in DIFFERENT])
def test_what_changes_a_function_changes_its_fingerprint(tmp_path: Path, one: str, other: str, what: str) -> None:
    assert function_source(function(tmp_path, one)) != function_source(function(tmp_path, other))


def test_a_function_without_source_goes_by_its_code() -> None:
    space: dict[str, Any] = {}
    exec("a = lambda row: row['a']\nb = lambda row: row['b']\nc = lambda row: row['a']", space)
    assert function_source(space["a"]) == function_source(space["c"])
    assert function_source(space["a"]) != function_source(space["b"])


class Scaled:
    """A callable object of the user's."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"a": row["a"] * self.by}


def test_callable_objects_and_partials_go_by_their_state() -> None:
    assert function_source(Scaled(1)) == function_source(Scaled(1))
    assert function_source(Scaled(1)) != function_source(Scaled(2))
    assert function_source(functools.partial(max, 1)) != function_source(functools.partial(max, 2))
    assert function_source(functools.partial(max, Decimal(1))) != function_source(functools.partial(max, Decimal(2)))


def test_a_view_knows_its_table_by_the_name_that_its_declaration_has() -> None:
    """A server with lower_case_table_names spells it otherwise."""
    lower = replace(USER, name=USER.name.lower())
    (view,) = bind([IndexTable("by_mail", Entity("shop.USER"), value="email")], lambda *_: lower)
    assert view.described("shop", "USER") is lower
    with pytest.raises(DeclarationError, match="was not bound to"):
        view.described("shop", "member")
