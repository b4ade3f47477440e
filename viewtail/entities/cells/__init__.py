"""A small library of cells that are written once, of which viewtail keeps views: row, column, ref key, body."""

from viewtail.entities.cells.cell_table import Cell
from viewtail.entities.cells.cells import Cells, OtherBodyError
from viewtail.entities.cells.triggers import Trigger

__all__ = ["Cell", "Cells", "OtherBodyError", "Trigger"]
