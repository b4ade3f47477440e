"""A small library of cells that are written once, of which viewtail keeps views: row, column, ref key, body."""

from viewtail.cells.cell_table import Cell
from viewtail.cells.cells import Cells, OtherBodyError
from viewtail.cells.triggers import Trigger

__all__ = ["Cell", "Cells", "OtherBodyError", "Trigger"]
