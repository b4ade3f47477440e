"""docs/views.md and docs/mysql-tables.md are what the declarations are: arguments, examples, errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import viewtail
from projectors.binding import bind
from projectors.views import View
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "views.md").read_text()
OF_TABLES = (DOCS / "mysql-tables.md").read_text()
COMMON = {"Topic": 3, "MySQLTable": 4}  # how many of the arguments common to all views it has, if not all
SECTIONS = {
    name: section
    for page in (PAGE, OF_TABLES)
    for names, section in re.findall(r"^## (\w+(?:, \w+)*)$\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    for name in names.split(", ")
}
DECLARATIONS = {
    name: getattr(viewtail, name)
    for name in viewtail.__all__
    if isinstance(getattr(viewtail, name), type) and not name.endswith("Error")
}
MISTAKES = [
    (declaration, message)
    for body in dict.fromkeys(SECTIONS.values())
    for declaration, message in re.findall(r"^\| `(\w+\(.*\))` \| (.+) \|$", body, re.MULTILINE)
]


def _column(name: str, declared: str, kind: Kind, **more: Any) -> Column:
    return Column(name=name, declared=declared, kind=kind, **{"is_nullable": False, **more})


_TEXT = {"charset": "utf8mb4", "collation": "utf8mb4_0900_ai_ci"}
TABLES = {  # those of the page
    "user": Table(
        schema="shop",
        name="user",
        columns=(
            _column("id", "bigint", Kind.INTEGER),
            _column("username", "varchar(50)", Kind.TEXT, length=50, **_TEXT),
            _column("email", "varchar(100)", Kind.TEXT, length=100, is_nullable=True, **_TEXT),
            _column("bio", "text", Kind.TEXT, length=65535, is_nullable=True, **_TEXT),
            _column("credit", "decimal(12,2)", Kind.DECIMAL, precision=12, scale=2),
            _column("is_active", "tinyint(1)", Kind.INTEGER),
            _column("created_at", "datetime", Kind.DATETIME),
            _column("company_id", "bigint", Kind.INTEGER, is_nullable=True),
            _column("tags", "json", Kind.JSON, is_nullable=True),
        ),
        primary_key=("id",),
    ),
    "price": Table(
        schema="shop",
        name="price",
        columns=(
            _column("product_id", "int", Kind.INTEGER),
            _column("revision", "bigint", Kind.INTEGER),
            _column("amount", "decimal(10,2)", Kind.DECIMAL, precision=10, scale=2),
        ),
        primary_key=("product_id", "revision"),
    ),
    "page": Table(
        schema="shop",
        name="page",
        columns=(
            _column("id", "bigint", Kind.INTEGER),
            _column("body", "mediumblob", Kind.BYTES, is_nullable=True),
        ),
        primary_key=("id",),
    ),
    "company": Table(
        schema="shop",
        name="company",
        columns=(
            _column("id", "bigint", Kind.INTEGER),
            _column("name", "varchar(100)", Kind.TEXT, length=100, **_TEXT),
        ),
        primary_key=("id",),
    ),
    "order": Table(
        schema="shop",
        name="order",
        columns=(
            _column("id", "bigint", Kind.INTEGER),
            _column("user_id", "bigint", Kind.INTEGER),
            _column("status", "varchar(20)", Kind.TEXT, length=20, **_TEXT),
            _column("total", "decimal(12,2)", Kind.DECIMAL, precision=12, scale=2),
        ),
        primary_key=("id",),
    ),
}


def _bind(views: list[Any]) -> None:
    bind(views, lambda _schema, name: TABLES[name])


def test_every_declaration_has_its_section_and_nothing_else_has_one() -> None:
    assert set(DECLARATIONS) == set(SECTIONS)
    assert len(DECLARATIONS) >= 5


@pytest.mark.parametrize("name", DECLARATIONS)
def test_the_page_lists_the_arguments_of_the_signature_with_their_defaults(name: str) -> None:
    signature: Callable[..., Any] = DECLARATIONS[name]
    expected = {
        name: "required" if each.default is each.empty else f"`{each.default!r}`"
        for name, each in inspect.signature(signature).parameters.items()
    }
    listed = _arguments(SECTIONS[name])
    if issubclass(DECLARATIONS[name], View):
        common = _arguments(PAGE.partition("## Common to all views")[2])
        assert not common.keys() & listed.keys()
        assert list(common) == ["entity", "where", "unmasked", "previous", "push"]
        listed |= dict(list(common.items())[: COMMON.get(name, 5)])
    assert listed == expected


def _arguments(section: str) -> dict[str, str]:
    """The arguments that a section's table lists, each with its default."""
    table = section.partition("| Argument |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE))


@pytest.mark.parametrize("name", SECTIONS)
def test_each_example_declares_what_the_page_says_of_it(name: str) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(example, f"docs/views.md, {name}", "exec"), namespace)
    (said,) = re.findall(r"^Declares (.*?)\.(?: |$)", SECTIONS[name], re.MULTILINE | re.DOTALL)
    assert [view.id for view in namespace["views"]] == re.findall(r"`([^`]+)`", said)
    assert any(type(thing) is DECLARATIONS[name] for thing in (*namespace["views"], *namespace.values()))
    _bind(namespace["views"])


def test_the_examples_of_all_sections_work_in_one_views_py() -> None:
    views: list[Any] = []
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        namespace: dict[str, Any] = {}
        exec(compile(example, "docs/views.md", "exec"), namespace)
        views += namespace["views"]
    _bind(views)


def test_the_sections_show_many_mistakes() -> None:
    assert len(MISTAKES) > 25


@pytest.mark.parametrize(("declaration", "message"), MISTAKES)
def test_each_mistake_is_refused_in_the_words_of_the_page(declaration: str, message: str) -> None:
    namespace = {
        **DECLARATIONS,
        "user": viewtail.Entity("shop.user"),
        "price": viewtail.Entity("shop.price"),
        "profile": dict,
    }
    with pytest.raises(DeclarationError, match=re.escape(message)):
        _bind([eval(declaration, namespace)])
