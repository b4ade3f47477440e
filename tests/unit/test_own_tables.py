"""Only offsets/ has SQL on viewtail's own tables: every other module asks it by a named statement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from offsets import schema

CHECKOUT = Path(__file__).resolve().parents[2]
PRODUCT = ("ingest", "projectors", "viewtail")
TABLES = frozenset(ddl.split("`")[1] for ddl in (*schema.STORE_TABLES, *schema.SOURCE_TABLES))

_STATEMENT = re.compile(
    rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:\{{\}}\.)?`?(?:{'|'.join(sorted(TABLES))})`?(?!\w)", re.IGNORECASE
)
_IS_SQL = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE|REPLACE)\b")


def own_tables_in(source: str) -> Iterator[str]:
    """What in a module's source names an own table as SQL does: quoted, or in a statement."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "quote":
            named = [word.value for word in node.args if isinstance(word, ast.Constant) and word.value in TABLES]
            yield from (f"line {node.lineno}: quote(..., {name!r})" for name in named)
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if _IS_SQL.search(text) and (found := _STATEMENT.search(text)):
            yield f"line {node.lineno}: {found[0]}"


def modules() -> list[Path]:
    return [path for package in PRODUCT for path in sorted((CHECKOUT / package).rglob("*.py"))]


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_a_module_outside_offsets_has_no_sql_on_an_own_table(module: Path) -> None:
    assert [*own_tables_in(module.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        "cursor.execute(f\"SELECT 1 FROM {quote(database, 'dead_letter')} WHERE view_id = 1\")",
        "table = quote(self._database, 'view')",
        'cursor.execute("UPDATE viewtail.x SET a = 1"); cursor.execute("DELETE FROM pipeline_owner WHERE fence = 1")',
        'cursor.execute(f"INSERT INTO {database}.`operator_run` (kind) VALUES (1)")',
    ],
)
def test_sql_on_an_own_table_is_seen(source: str) -> None:
    assert [*own_tables_in(source)]


def test_what_only_has_such_a_word_is_let_through() -> None:
    source = 'x = "the view is read FROM its table"; quote(view.table.schema, view.table.name); f"SELECT 1 FROM {name}"'
    assert [*own_tables_in(source)] == []
