"""The SELECT expression of every column type: the value that the binlog gives."""

from __future__ import annotations

from collections.abc import Sequence

from changes.tables import TEXTS_IN_BINARY, Column, Kind
from servers.sessions import quote

# Every valid text of these character sets reaches the client as it is.
CONVERTED = frozenset(("utf8mb4", "utf8mb3", "latin1"))


def select_list(columns: Sequence[Column]) -> str:
    """What stands between SELECT and FROM for `fetch_rows` to give these columns' values as the binlog does."""
    return ", ".join(_expression(column) for column in columns)


def reading(column: Column) -> tuple[object, ...]:
    """How values are asked for and understood: where it changes, what was made for the column before reads others."""
    has_codec = column.kind is Kind.TEXT and column.charset not in CONVERTED
    return _expression(column), column.kind, column.charset if has_codec else None


def _expression(column: Column) -> str:
    name, declared = quote(column.name), column.declared.lower()
    if column.kind is Kind.FLOAT or (column.kind is Kind.DOUBLE and declared != "double"):
        # [M] A FLOAT is printed with 6 digits, a DOUBLE ZEROFILL of -0.0 as '000-0'; the product with a
        # double is the same value, printed in full. (A sum would turn -0.0 into 0.0.)
        return f"{name} * 1e0"
    if declared.startswith("bit"):
        return f"CAST({name} AS UNSIGNED)"
    if column.kind is Kind.TEXT and column.charset not in CONVERTED and declared not in TEXTS_IN_BINARY:
        # The conversion for the client would turn codes without a character into '?'.
        return f"CAST({name} AS BINARY)"
    return name
