"""index_TABLE_COLUMN over plain tables, and cells_index_TABLE_COLUMN over the cells that hold the same."""

from viewtail import Entity, IndexTable

INDEXED = {"users": ("username", "email"), "companies": ("name", "city"), "schools": ("name", "city")}


def over_table(table: str, column: str) -> IndexTable:
    return IndexTable(f"index_{table}_{column}", Entity(f"jogchat.{table}"), value=column)


def over_cells(table: str, column: str) -> IndexTable:
    cells = Entity(
        "jogchat.cell",
        key="row_key",
        version="ref_key",
        append_only=True,
        order="added_at",
        only={"column_name": table},
        body="body",
        codec="json",
    )
    name = f"cells_index_{table}_{column}"
    return IndexTable(name, cells, values={column: "VARCHAR(190)"}, of=lambda row: row["body"].get(column))


views = [made(table, column) for table in INDEXED for column in INDEXED[table] for made in (over_table, over_cells)]
