"""Which columns a user's function asks for, as its source tells, and what happens where the source tells less."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projectors.binding import bind
from projectors.function_columns import UnforeseenColumn, columns_read, row_type
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
from tests.support.user_functions import function
from viewtail.changes.tables import Column, Kind, Table

NAMED = [
    ("f = lambda row: row['a'] == 'publish'", "a"),
    ("f = lambda row: row.get('a') or row.get('b', row['c'])", "a b c"),
    ("f = lambda row: 'a' in row and 'b' not in row", "a b"),
    (
        "def f(r):\n    'Not row[\"z\"].'\n    n = r['a'] + 1\n    return {'x': n, 'y': f\"{r['b']!r:>9}\"}",
        "a b",
    ),
    ("f = lambda row: [x + row['b'] for x in row['a'] if x != row.get('c')]", "a b c"),
    ("f = lambda row: sorted(row['a'], key=lambda one: row['b'] - one)", "a b"),
    ("def f(row):\n    def inner():\n        return row['a']\n    return inner()", "a"),
    ("def f(row):\n    yield row['a']['deep']['deeper']", "a"),
    ("f = lambda row, /: row['a']", "a"),
    ("f = lambda row, least=1: row['a'] > least", "a"),
    ("f = lambda row: row and row['a']", "a"),
    ("def f(row):\n    r = row\n    return r['a']", "a"),
    ("def f(row):\n    row = dict(a=1)\n    return row['a']", "a"),
    ("def f(row):\n    for row in []:\n        pass\n    return row['a']", "a"),
    ("f = lambda row: isinstance(row, dict) and row is not None and row['a']", "a"),
    ("f = lambda row: True", ""),
    ("f, g = lambda row: row['a'], lambda row: row['b']", "a"),
]
ALL = [
    "STATE = 'a'\nf = lambda row: row[STATE]",
    "def g(one, r):\n    return r['b']\nf = lambda row: g(row['a'], row)",
    "def g(one, *, of):\n    return of['b']\nf = lambda row: g(row['a'], of=row)",
    "f = lambda row: dict(row)",
    "f = lambda row: {**row}",
    "f = lambda row: row",
    "f = lambda row: row == {}",
    "f = lambda row: [row[name] for name in ('a', 'b')]",
    "f = lambda row: {name: value for name, value in row.items()}",
    "f = lambda row: any(row)",
    "f = lambda row: row.get",
    "f = lambda row: row.get(*['a'])",
    "f = lambda row: row['a' + 'b']",
    "f = lambda row: row.get('a' + 'b')",
    "f = lambda row: row.pop('a')",
    "f = lambda row: row.setdefault('a', 1)",
    "f = lambda row: row in ['a']",
    "f = lambda row: {}[row]",
    "f = lambda row: '{a}'.format(**row)",
    "f = lambda row: '%(a)s' % row",
    "f = lambda row: (lambda r: r['a'])(row)",
    "f = lambda row: eval('row')['a']",
    "f = lambda row: locals()['row']['a']",
    "f = lambda row: len(row)",
    "def f(row):\n    r = row\n    return list(r)",
    "def f(row):\n    class C:\n        a = row\n    return C.a['a']",
    "def f(row):\n    return (lambda: 1).__closure__ and [x for x in ()] or (row for _ in 'a').gi_frame.f_locals",
    "f = lambda *rows: rows[0]['a']",
    "f = lambda row, r=[]: r.append(row)",
    "def f(row):\n    row['a'] = 1\n    return row['a']",
    "def f(row):\n    del row['a']",
    "def f(row):\n    match row:\n        case {'a': a}:\n            return a",
    "def f(row):\n    STATE = 'b'\n    return row[STATE]",
    "STATE = 'a'\ndef f(row):\n    return [row[STATE] for STATE in ('b', 'c')]",
    "import json\nf = lambda row: json.dumps(row)",
    "import copy\nfrom copy import copy as g\nf = lambda row: g(row)['a']",
    "def g(r):\n    return list(r)\nf = lambda row: g(row)",
    "def g(*rs):\n    return rs[0]['a']\nf = lambda row: g(row)",
    "def g(a, r):\n    return r['a']\nf = lambda row: g(*[1], row)",
    "class G:\n    def __init__(self, r):\n        self.r = r\nf = lambda row: G(row)",
    "class G:\n    def __call__(self, row):\n        return row['a']\nf = G()",
    "import functools\nf = functools.partial(lambda one, row: row['a'], 1)",
    "f = eval(\"lambda row: row['a']\")",
    "import functools\nd = lambda g: functools.wraps(g)(lambda *a: g(*a))\n@d\ndef f(row):\n    return row['a']",
]


@pytest.mark.parametrize(("text", "columns"), NAMED, ids=[text for text, _ in NAMED])
def test_the_columns_that_a_function_names_are_found(text: str, columns: str) -> None:
    found = columns_read(function(text))
    assert (found.why_all, found.columns) == ("", set(columns.split()))


@pytest.mark.parametrize("text", ALL, ids=ALL)
def test_a_function_that_may_ask_for_any_column_is_told_of(text: str) -> None:
    found = columns_read(function(text))
    assert found.why_all and not found.columns


def test_what_asks_for_any_column_is_shown() -> None:
    found = columns_read(function("def active(row):\n    return sum(row.values())\nf = active"))
    assert found.why_all == "active has: row.values"
    assert columns_read(function("f = lambda row: dict(row)")).why_all == "<lambda> has: dict(row)"


# Expressions over a row; each that is right by itself makes a larger one.
_COLUMNS = st.sampled_from("abcde")
_ASKED = st.one_of(
    st.builds("row[{!r}]".format, _COLUMNS),
    st.builds("row.get({!r})".format, _COLUMNS),
    st.builds("({!r} in row)".format, _COLUMNS),
    st.builds("row.get({!r}, {})".format, _COLUMNS, st.integers(0, 9)),
    st.sampled_from(
        ["len(row)", "list(row)", "{**row}", "helper(row)", "other(of=row)", "row.keys()", "1", "dict(row)"]
    ),
)
_EXPRESSIONS = st.recursive(
    _ASKED,
    lambda inner: st.one_of(
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{} for _ in [1, 2] if {}]".format, inner, inner),
        st.builds("(lambda: {})()".format, inner),
        st.builds("{{'k': {}}}['k']".format, inner),
        st.builds('f"{{{}}}"'.format, st.sampled_from(["row['a']", "row.get('b')", "list(row)"])),
    ),
    max_leaves=6,
)
_HELPERS = "def helper(r):\n    return r['d']\ndef other(*, of):\n    return of.get('e')\n"


class Asked(dict[str, Any]):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys("abcde", 1))
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Any:
        self.names.add("any")
        return super().__iter__()

    def keys(self) -> Any:
        self.names.add("any")
        return super().keys()

    def __len__(self) -> int:
        self.names.add("any")
        return super().__len__()


@given(_EXPRESSIONS)
def test_a_function_never_asks_for_more_than_was_found(text: str) -> None:
    asked = Asked()
    found_function = function(f"{_HELPERS}f = lambda row: {text}")
    found = columns_read(found_function)
    found_function(asked)
    assert found.why_all or asked.names <= found.columns


# --- While it runs ---

ASKING: list[Callable[[Any], Any]] = [
    lambda row: row["absent"],
    lambda row: row.get("absent"),
    lambda row: row.get("absent", 5),
    lambda row: "absent" in row,
    operator.itemgetter("absent"),
    "{absent}".format_map,
]


def row_of(*columns: str, table: str = "id here null absent") -> Any:
    """The row that a view's function gets; `columns`: as declared."""
    described = Table(
        schema="s",
        name="t",
        columns=tuple(
            Column(name=name, kind=Kind.INTEGER, declared="int", is_nullable=name == "null") for name in table.split()
        ),
        primary_key=("id",),
    )
    view = RedisJson("v", Entity("s.t"), document=lambda row: row["here"] or row["null"], columns=columns)
    (bound,) = bind([view], lambda *_: described)
    return row_type(bound)({"here": 1, "null": None})


@pytest.mark.parametrize("ask", ASKING, ids=range(len(ASKING)))
def test_a_column_that_was_not_read_is_never_taken_for_an_absent_one(ask: Callable[[Any], Any]) -> None:
    with pytest.raises(UnforeseenColumn, match="absent"):
        ask(row_of())


@pytest.mark.parametrize("row", [row_of(), row_of("here", "null"), row_of(table="id here null")])
def test_a_row_answers_for_columns_that_were_read_and_for_names_that_the_table_has_not(row: Any) -> None:
    assert (row["here"], row.get("here"), "here" in row, row.get("null", 5)) == (1, 1, True, None)
    assert (row.get("nowhere"), row.get("nowhere", 2), "nowhere" in row) == (None, 2, False)
    with pytest.raises(KeyError):
        row["nowhere"]
    assert isinstance(row, dict)


def test_columns_that_the_declaration_leaves_out_are_absent() -> None:
    assert "absent" not in row_of("here", "null")
