"""Which columns of related rows a user's function asks for, by its source, and what happens where that tells less."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projectors.binding import bind
from projectors.function_columns import Reads, UnforeseenColumn, columns_read, paths, watches
from projectors.projection import RowByRow, RowRefusedError
from projectors.related import Count, Many, One, Relations, Sum, Uses, relations
from projectors.stores.redis.views import RedisJson
from projectors.views import BoundView, Entity
from tests.support.user_functions import function
from viewtail.changes.tables import Column, Kind, Table

RELATED = relations(
    {
        "customer": One(
            "s.user",
            on="user_id",
            related={"country": One("s.country", on="country_id"), "orders": Many("s.order", by="user_id")},
        ),
        "lines": Many(
            "s.line",
            by="order_id",
            related={"product": One("s.product", on="product_id"), "returns": Count("s.return", by="line_id")},
        ),
        "tags": Many("s.tag", through="s.order_tag", by="order_id", to="tag_id"),
        "total": Sum("s.line", "amount", by="order_id"),
    },
    "a test",
)

# An expression over `row`, and the paths that it asks for; `customer` alone: whether there is one, or how many.
EXPRESSIONS = {
    "row['customer']['name']": "customer.name",
    "row.get('customer').get('name')": "customer.name",
    "row.get('customer', {})['name']": "customer.name",
    "(row['customer'] or {}).get('name')": "customer.name",
    "row['customer'] and row['customer']['name']": "customer.name",
    "row['customer']['name'] if row['customer'] is not None else None": "customer.name",
    "(c := row['customer']) and c['name']": "customer.name",
    "row['customer']['country']['code']": "customer.country.code",
    "row['customer'] and row['customer']['country'] and row['customer']['country']['code']": "customer.country.code",
    "f\"{row['customer']['name']!r:>9} {row['total']}\"": "customer.name total",
    "'name' in row['customer']": "customer.name",
    "'customer' in row": "customer",
    "row['customer'] is None": "customer",
    "row['customer'] == None": "customer",
    "not row['customer']": "customer",
    "bool(row['customer'])": "customer",
    "isinstance(row['customer'], dict)": "customer",
    "1 if row['customer'] else 2": "customer",
    "[1 for _ in 'a' if row['customer']]": "customer",
    "len(row['lines'])": "lines",
    "any(row['lines'])": "lines",
    "1 if row['lines'] else 2": "lines",
    "sum(1 for _ in row['lines'])": "lines",
    "[line['product']['title'] for line in row['lines']]": "lines.product.title",
    "[line['n'] for line in row['lines'] or []]": "lines.n",
    "[line['product']['deep']['deeper'] for line in row['lines']]": "lines.product.deep",
    "sum(line['n'] for line in row['lines'] if line['product'])": "lines.n lines.product",
    "all(line['n'] > row['least'] for line in row['lines'])": "least lines.n",
    "{line['id']: line['n'] for line in row['lines']}": "lines.id lines.n",
    "{line['n'] for line in row['lines']}": "lines.n",
    "', '.join(line['product']['title'] for line in row['lines'])": "lines.product.title",
    "row['lines'][0]['n']": "lines.n",
    "row['lines'][-1]['n']": "lines.n",
    "row['lines'][row['at']]['n']": "at lines.n",
    "[line['n'] for line in row['lines'][1:row['at']]]": "at lines.n",
    "[line['n'] for line in row['lines'][::-1]]": "lines.n",
    "[line['n'] for line in row['lines'][slice(1)]]": "lines.*",
    "[line['n'] for line in reversed(row['lines'])]": "lines.n",
    "[line['a'] for line in sorted(row['lines'], key=lambda line: line['n'], reverse=True)]": "lines.a lines.n",
    "max(row['lines'], key=lambda line: line['n'])['a']": "lines.a lines.n",
    "min(row['lines'], key=lambda one: one['n'], default={'a': 1})['a']": "lines.a lines.n",
    "next((line for line in row['lines'] if line['n'] == 1), {}).get('a')": "lines.a lines.n",
    "[(at, line['n']) for at, line in enumerate(row['lines'], row['first'])]": "first lines.n",
    "[line['a'] + tag['b'] for line, tag in zip(row['lines'], row['tags'], strict=True)]": "lines.a tags.b",
    "list(map(lambda line: line['n'], row['lines']))": "lines.n",
    "[line['n'] for line in filter(lambda line: line['a'], row['lines'])]": "lines.a lines.n",
    "[line['n'] for line in filter(None, row['lines'])]": "lines.n",
    "list(row['lines'])[0]['n']": "lines.n",
    "[*row['lines'], *row['tags']][0]['n']": "lines.n tags.n",
    "[one['n'] for one in (row['customer'], row['customer']['country'])]": "customer.country.n customer.n",
    "[p['title'] for p in [line['product'] for line in row['lines']] if p]": "lines.product.title",
    "[o['n'] for o in row['customer']['orders']]": "customer.orders.n",
    "[t['n'] for line in row['lines'] for t in row['tags'] if t['id'] == line['id']]": "lines.id tags.id tags.n",
    "[[line['n'] for line in row['lines']] for tag in row['tags'] if tag['a']]": "lines.n tags.a",
    "[line['returns'] for line in row['lines']]": "lines.returns",
    # a name that is another row inside is no column of the row
    "sorted(row['lines'], key=lambda row: row['n'])[0]['a']": "lines.a lines.n",
    "[row['n'] for row in row['lines']]": "lines.n",
    "(row['lines'][0]['product'] or {}).get('title', row['none'])": "lines.product.title none",
    # whatever is not understood
    "row['customer']": "customer.*",
    "row.get('lines')": "lines.*",
    "{'customer': row['customer']}": "customer.*",
    "{**row['customer']}": "customer.*",
    "dict(row['customer'], a=1)": "customer.*",
    "str(row['customer'])": "customer.*",
    "f\"{row['customer']}\"": "customer.*",
    "len(row['customer'])": "customer.*",
    "list(row['customer'])": "customer.*",
    "[name for name in row['customer']]": "customer.*",
    "row['customer'].items()": "customer.*",
    "row['customer'][row['which']]": "customer.* which",
    "row['customer'].get(row['which'])": "customer.* which",
    "row['customer'] == row['lines'][0]['product']": "customer.* lines.product.*",
    "row['customer'] in [None]": "customer.*",
    "(lambda c: c['name'])(row['customer'])": "customer.*",
    "getattr(row['customer'], 'get')('name')": "customer.*",
    "[line for line in row['lines'] if line['n']]": "lines.*",
    "[line['product'] for line in row['lines']]": "lines.product.*",
    "[{**line['product'], 'n': line['n']} for line in row['lines']]": "lines.n lines.product.*",
    "sorted(row['lines'], key=str)[0]['n']": "lines.*",
    "sorted(row['lines'], key=lambda line: line)[0]['n']": "lines.*",
    "{line['id']: line for line in row['lines']}[1]['n']": "lines.*",
    "row['lines'].copy()[0]['n']": "lines.*",
    "row['lines'] + []": "lines.*",
    "sum(row['lines'], [])": "lines.*",
    "row['customer'] | {'a': 1}": "customer.*",
    "(lambda c=row['customer']: c['name'])()": "customer.*",
}

# Bodies of a function of `row`.
STATEMENTS = {
    "for line in row['lines']:\n    print(line['n'])": "lines.n",
    "out = []\nfor line in row['lines']:\n    out.append(line['product']['title'])\nreturn out": "lines.product.title",
    "for line in row['lines']:\n    out.append(line)": "lines.*",
    "for line in row['lines']:\n    p = line['product']\n    if p is not None:\n        yield p['title'], line['n']": (
        "lines.n lines.product.title"
    ),
    "for at, line in enumerate(row['lines']):\n    print(line['n'])\nelse:\n    print(line['a'])": "lines.a lines.n",
    "c = row['customer']\nif not c:\n    return None\nreturn c['name']": "customer.name",
    "c = row['customer'] if row['a'] else row['lines'][0]['product']\nreturn c['n']": "a customer.n lines.product.n",
    "c: dict = row['customer']\nreturn c['name']": "customer.name",
    "c = d = row['customer']\nreturn c['name'], d['mail']": "customer.mail customer.name",
    "c = None\nwhile c is None:\n    c = row['customer']\n    print(d['name'])\n    d = c\nreturn 1": "customer.name",
    "c, tags = row['customer'], row['tags']\nreturn c['name'], [tag['n'] for tag in tags]": "customer.name tags.n",
    "first, *rest = row['lines']\nreturn first['a'], [line['n'] for line in rest]": "lines.a lines.n",
    "(first, second), third = row['lines'], row['tags']\nreturn first['a']": "lines.a tags",
    "def name():\n    return row['customer']['name']\nreturn name()": "customer.name",
    "def name(c):\n    return c['name']\nreturn name(row['customer'])": "customer.*",
    "def rows():\n    for line in row['lines']:\n        yield line['n']\nreturn list(rows())": "lines.n",
    "try:\n    return row['customer']['name']\nexcept TypeError:\n    return row['customer']['mail']": (
        "customer.mail customer.name"
    ),
    "match row['customer']:\n    case {'name': name}:\n        return name": "customer.*",
    "with open(row['customer']) as c:\n    return c['name']": "customer.*",
    "row['customer']['name'] = 1": "customer.*",
    "del row['customer']['name']": "customer.*",
    "c = row['customer']\nc |= {}\nreturn c['name']": "customer.*",
    "out = {}\nout['c'] = row['customer']\nreturn out": "customer.*",
    "assert row['customer'], row['tags']\nreturn row['lines'] and row['lines'][0]['n']": "customer lines.n tags.*",
    "lines = [row['lines']]\nlines = [lines]\nlines = [lines]\nreturn lines[0][0][0][0]['n']": "lines.*",
    "lines = [row['lines']]\nreturn lines[0][0]['n']": "lines.n",
    "len = dict\nreturn len(row['lines'])": "lines.*",
    "global c\nc = row['customer']\nreturn c['name']": "customer.*",
    "def put():\n    nonlocal c\n    c = row['customer']\nc = None\nput()\nreturn c['name']": "customer.*",
    "row['customer']\nreturn 1": "customer",
}

ANY = [
    "class C:\n    x = row['customer']\nreturn C.x['name']",
    "return eval(\"row['customer']\")['name']",
    "c = row\nc['a'] = row['customer']",
]


def found(text: str) -> str:
    reads = columns_read(function(text), RELATED)
    return reads.why_all or " ".join(paths(reads.uses, RELATED))


@pytest.mark.parametrize(("text", "asked"), EXPRESSIONS.items(), ids=EXPRESSIONS)
def test_the_columns_of_related_rows_that_an_expression_names_are_found(text: str, asked: str) -> None:
    assert found(f"f = lambda row: {text}") == asked
    assert found(f"def f(r):\n    return {text.replace('row', 'r')}") == asked


@pytest.mark.parametrize(("text", "asked"), STATEMENTS.items(), ids=STATEMENTS)
def test_the_columns_of_related_rows_that_statements_name_are_found(text: str, asked: str) -> None:
    assert found("def f(row):\n" + "".join(f"    {line}\n" for line in text.splitlines())) == asked


@pytest.mark.parametrize("text", ANY, ids=ANY)
def test_a_row_that_is_lost_from_sight_may_be_asked_for_anything(text: str) -> None:
    assert found("def f(row):\n" + "".join(f"    {line}\n" for line in text.splitlines())).startswith("f has: ")


def test_a_builtin_that_the_module_defines_is_none() -> None:
    assert found("def len(of):\n    return of[0]['n']\nf = lambda row: len(row['lines'])") == "lines.*"


def test_without_related_rows_a_columns_value_is_no_row() -> None:
    reads = columns_read(function("f = lambda row: (row['a']['deep'], row['b'], 'c' in row)"))
    assert reads.uses == {"a": None, "b": None, "c": None}


# --- While it runs ---

ROW = {
    "customer": {"name": "Ada", "n": 1, "country": {"code": "GB", "n": 2}, "orders": [{"n": 3}, {"n": 4}]},
    "lines": [
        {"n": 5, "id": 1, "product": {"title": "pen", "n": 6, "id": 1}, "returns": 0},
        {"n": 7, "id": 2, "product": None, "returns": 1},
    ],
    "tags": [{"n": 8, "id": 1}, {"n": 9, "id": 2}],
    "total": 12,
}


def watched(uses: Uses, related: Relations = RELATED) -> dict[str, Any]:
    """The row as a function gets it of which this was found."""
    row = _kept(copy.deepcopy(ROW), uses)
    for name, watch in watches(related, uses).items():
        row[name] = watch([row[name]])[0]
    return row


def _kept(value: Any, uses: Uses | None) -> Any:
    if uses is None or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [_kept(each, uses) for each in value]
    return {name: _kept(of, uses[name]) for name, of in value.items() if name in uses}


ASKING: dict[str, Callable[[Any], Any]] = {
    "customer": lambda row: row["customer"]["n"],
    "customer.country": lambda row: row["customer"]["country"].get("n"),
    "lines": lambda row: [line.get("id", 1) for line in row["lines"]],
    "lines.product": lambda row: "id" in row["lines"][0]["product"],
}
SOME: Uses = {
    "customer": {"name": None, "country": {"code": None}},
    "lines": {"n": None, "none": None, "product": {"title": None}},
}


@pytest.mark.parametrize("path", ASKING)
def test_a_column_of_related_rows_that_was_not_read_is_never_taken_for_an_absent_one(path: str) -> None:
    with pytest.raises(UnforeseenColumn) as raised:
        ASKING[path](watched(SOME))
    assert raised.value.path == path
    reason = raised.value.reason("s.order")
    assert f"column {raised.value.name} of the related rows {path}," in reason and "columns=[" in reason


def test_related_rows_answer_for_columns_that_were_read_and_for_names_that_their_table_has_not() -> None:
    row = watched(SOME)
    assert (row["customer"]["name"], row["customer"].get("name"), "name" in row["customer"]) == ("Ada", "Ada", True)
    line = row["lines"][0]
    assert (line.get("none"), "none" in line, row["lines"][1]["product"]) == (None, False, None)
    with pytest.raises(KeyError):
        line["none"]


def test_a_related_row_is_true_where_no_column_of_it_was_read() -> None:
    row = watched({"customer": {}, "lines": {"product": {}}})
    assert row["customer"] and all(row["lines"]) and [bool(line["product"]) for line in row["lines"]] == [True, False]


def test_related_rows_whose_columns_are_declared_have_these() -> None:
    product = One("s.product", on="product_id")
    related = relations({"lines": Many("s.line", by="order_id", columns=["n"], related={"product": product})}, "a test")
    row = watched({"lines": {"n": None}}, related)
    assert row["lines"][0].get("id") is None
    with pytest.raises(UnforeseenColumn):
        row["lines"][0].get("product")
    assert type(watched({"lines": {"n": None, "product": None}}, related)["lines"][0]) is dict


# --- In a view ---

TABLES = {
    name: Table(
        schema="s",
        name=name,
        columns=tuple(
            Column(name=column, kind=Kind.INTEGER, declared="int", is_nullable=False) for column in columns.split()
        ),
        primary_key=("id",),
    )
    for name, columns in {
        "order": "id user_id a b",
        "user": "id name mail",
        "line": "id order_id product_id n m",
        "product": "id title stock",
    }.items()
}
ORDER = Entity(
    "s.order",
    related={
        "customer": One("s.user", on="user_id"),
        "lines": Many("s.line", by="order_id", related={"product": One("s.product", on="product_id")}),
    },
)


def bound_by(document: Callable[[Any], Any], **declared: Any) -> BoundView:
    (view,) = bind([RedisJson("v", ORDER, document=document, **declared)], lambda _, name: TABLES[name])
    return view


def followed(view: BoundView) -> dict[str, list[str]]:
    assert view.derived is not None
    return {part.table.name: sorted(part.columns) for part in view.derived.parts}


def test_a_view_follows_only_the_columns_that_its_functions_name() -> None:
    titles = bound_by(lambda row: {"titles": [line["product"]["title"] for line in row["lines"]]})
    assert followed(titles) == {
        "order": ["id"], "line": ["id", "order_id", "product_id"], "product": ["id", "title"]
    }  # fmt: skip
    named = bound_by(
        lambda row: {"name": row["customer"]["name"]}, where=lambda row: bool(row["customer"] and row["a"])
    )
    assert followed(named) == {"order": ["a", "id", "user_id"], "user": ["id", "name"]}
    given = bound_by(lambda row: {"name": row["customer"]["name"]}, where=lambda row: bool(dict(row["customer"])))
    assert followed(given)["user"] == ["id", "mail", "name"]


def test_a_column_of_related_rows_that_was_not_read_parks_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    uses: Uses = {"lines": {"n": None, "product": {}}}
    monkeypatch.setattr("projectors.binding.columns_read", lambda *_: Reads(uses=uses))
    view = bound_by(lambda row: {"n": [line["n"] for line in row["lines"]], "m": row["lines"][0].get("m")})
    row = tuple(
        {"id": 1, "lines": '[{"n": 5, "product": {}}, {"n": 6, "product": null}]'}[name] for name in view.needed
    )
    with pytest.raises(RowRefusedError) as refused:
        RowByRow(view, view.needed).values(row, 1)
    assert refused.value.reason.startswith("document asked for column m of the related rows lines, which was not read")
    seen = bound_by(lambda row: {"n": [line["n"] if line["product"] else 0 for line in row["lines"]]})
    assert RowByRow(seen, seen.needed).values(row, 1) == b'{"n":[5,0]}'


# --- Any program ---

# Programs over a row. Of each kind of expression, those that are often of that kind; each is made of others: ROW is
# one, ROWS a list, PLAIN a value of one, ANY anything. Whatever raises says something, too.
_EXPRESSIONS = {
    "ROW": [
        "row['customer']", "row.get('customer')", "a", "b", "c", "ROW['country']", "ROW['product']", "ROWS[0]",
        "ROWS[-1]", "(ROW or {})", "(ROW or ROW)", "(ROW and ROW)", "(ROW if ANY else ROW)", "(c := ROW)", "None",
        "next(iter(ROWS), ROW)", "max(ROWS, key=lambda a: PLAIN, default=ROW)", "min(ROWS, key=lambda b: b['n'])",
        "ROW.get('product', ROW)", "(PLAIN, ROW)[1]", "ROWS[len(ROWS) - 1]", "next(map(lambda a: ROW, ROWS))",
        "next(a for a in ROWS if ANY)",
    ],
    "ROWS": [
        "row['lines']", "row['tags']", "a", "b", "c", "ROW['orders']", "ROWS[1:]", "ROWS[slice(1)]", "(ROWS or [])",
        "[a for a in ROWS]", "[ROW for a in ROWS]", "[ROW for b in ROWS if ANY]", "[*ROWS, *ROWS]", "tuple(ROWS)",
        "[ROW for i, a in enumerate(ROWS)]", "[ROW for a, b in zip(ROWS, ROWS)]", "[*reversed(ROWS)]", "(c := ROWS)",
        "sorted(ROWS, key=lambda a: PLAIN)", "sorted(ROWS, key=lambda row: row['n'])", "list(ROW for a in ROWS)",
        "list(map(lambda a: ROW, ROWS))", "list(filter(lambda a: ANY, ROWS))", "list(filter(None, ROWS))", "(ROW, ROW)",
        "[ROW, ROW]", "[row for row in ROWS if ANY]", "[ROWS, ROWS][0]", "[ROW for a in ROWS for b in ROWS]",
    ],
    "PLAIN": [
        "row['total']", "row['customer']['name']", "[a['n'] for a in row['lines']]", "ROW['n']", "ROW['name']",
        "ROW['id']", "ROW.get('id')", "ROW.get('n', PLAIN)", "ROW['code']", "ROW['title']", "ROW['returns']", "not ANY",
        "len(ROWS)", "any(ROWS)", "bool(ANY)", "isinstance(ROW, dict)", "[PLAIN for a in ROWS]", "'n' in ROW",
        "sum(a['n'] for a in ROWS)", "ROW is None", "ROW == None", "ROW is ROW", "'n' in ROWS",
        "{a['n'] for a in ROWS}", "{a['id']: PLAIN for a in ROWS}",
    ],
    "ANY": ["PLAIN", "ROW", "ROWS"],
}  # fmt: skip
_LOSING = {
    "ROW": ["{'n': ROW}['n']", "(lambda a: ROW)(ROW)", "(lambda: ROW)()", "dict(ROW)", "{**ROW}"],
    "ROWS": ["ROWS.copy()", "sorted(ROWS, key=lambda a: ANY)", "[a for a in {'n': ROWS}['n']]", "ROWS + ROWS"],
    "PLAIN": [
        "len(ROW)", "str(ROW)[:9]", "ROW == ROW", "ROW in ROWS", "helper(ROW)", "{a['id']: ANY for a in ROWS}",
        "[*ROW]", "ROW[ANY]", "[a for a, b in ROW.items()]", "ROW.get(ANY)",
    ],
    "ANY": [],
}  # fmt: skip
_STATEMENTS = [
    "a = ANY", "a = ROW", "b = ROWS", "c = ROW", "a = b = ROW", "a, b = ROWS", "a, b = ROW, ROWS", "a, *b = ROWS",
    "PLAIN", "a: object = ROW", "out.append(PLAIN)", "out.append(PLAIN)", "out.append(PLAIN)", "del a", "assert ANY",
]  # fmt: skip
_BLOCKS = [
    "for a in ROWS: LINE", "for i, a in enumerate(ROWS, PLAIN): LINE", "for a, b in zip(ROWS, ROWS): LINE",
    "if ANY: LINE", "while ANY: LINE; break", "b = g()", "c = lambda a: PLAIN", "b = g(PLAIN)", "b = c(PLAIN)",
]  # fmt: skip
_LOSING_STATEMENTS = [
    "a += ROW; a = None", "out.append(ANY)", "assert ANY, ANY", "b = {}; b['n'] = ROW", "b = ROW; b['n'] = ANY",
    "with nullcontext(ROW) as a: LINE", "class K: a = ROW", "b = K.a", "nonlocal_of(ROW)", "def g(): return ROW",
    "def g(a): return ROW", "b = g(ROW)", "c = lambda a: ANY", "b = c(ROW)", "b = c(ROW)", "return ROW",
]  # fmt: skip
_HEAD = """
from contextlib import nullcontext
def helper(of):
    return of['n'] if isinstance(of, dict) else of
def f(row):
    def nonlocal_of(x):
        nonlocal c
        c = x
    a = b = c = K = g = None
    out = []
"""


def _program(random: Random) -> str:
    """A program, each of whose statements may raise."""
    loses = random.random() < 0.4
    text = _HEAD
    for _ in range(random.randint(2, 6)):
        line = _made(random, random.choice(_STATEMENTS + _BLOCKS + _LOSING_STATEMENTS * loses), 3, loses)
        text += f"    try:\n        {line}\n    except Exception as error:\n        out.append(type(error))\n"
    return f"{text}    return out\n"


def _made(random: Random, template: str, depth: int, loses: bool) -> str:
    """The template, in whose place of others these are; at last the first ones, which are of no others."""

    def part(kind: re.Match[str]) -> str:
        if kind[0] == "LINE":
            choices = _STATEMENTS
        elif depth:
            choices = _EXPRESSIONS[kind[0]] + _LOSING[kind[0]] * loses
        else:
            choices = _EXPRESSIONS[kind[0]][:3]
        return _made(random, random.choice(choices), max(depth - 1, 0), loses)

    return re.sub(r"\b(ROW|ROWS|PLAIN|ANY|LINE)\b", part, template)


def _outcome(program: Callable[[Any], Any], row: dict[str, Any]) -> Any:
    try:
        return list(_plain(program(row), 20))
    except Exception as error:
        return type(error)


def _plain(value: Any, depth: int) -> Iterator[Any]:
    """All that is in what was returned."""
    if not depth or callable(value):
        return
    if isinstance(value, Mapping):
        for name, of in sorted(value.items(), key=str):
            yield name
            yield from _plain(of, depth - 1)
    elif isinstance(value, list | tuple):
        for of in value:
            yield from _plain(of, depth - 1)
    else:
        yield value


@settings(max_examples=300)
@given(st.integers(0, 1 << 60))
def test_a_function_gets_the_same_from_what_was_found_as_from_the_whole_row(seed: int) -> None:
    try:
        program = function(_program(Random(seed)))
    except SyntaxError:  # of an assignment where none may be
        return
    reads = columns_read(program, RELATED)
    if not reads.why_all:  # else it gets the whole row
        assert _outcome(program, watched(reads.uses)) == _outcome(program, copy.deepcopy(ROW))
