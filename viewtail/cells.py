"""A small library of cells that are written once, of which viewtail keeps views: row, column, ref key, body."""

from viewtail.entities.cells import Cell, Cells, OtherBodyError, Trigger

__all__ = ["Cell", "Cells", "OtherBodyError", "Trigger"]
