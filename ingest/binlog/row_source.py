"""The Python source of a row decoder: straight-line code over the columns of one table.

Fixed-width columns that stand together are one Struct. Where the NULLs of a row are known there is no condition; where
they are not, columns that nobody follows are counted, not looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from ingest.binlog.column_forms import PREFIXES, Layout

_NARROW_BYTES = 4  # of NULL bits, which are one small integer
_BULK_BYTES = 2048  # from here on one copy into bytes costs less than slicing a bytearray ...
_LARGE_BYTES = 1 << 20  # ... up to here: a larger event holds one row, whose copy is only memory


class Writer:
    """Writes the source of one function; if not said otherwise, run(buffer, p, end, append) -> where it stopped."""

    def __init__(self, layouts: list[Layout], constants: Iterable[int] = (), *, is_careful: bool = False) -> None:
        self._layouts = layouts
        self._is_careful = is_careful
        self._null_bytes = (len(layouts) + 7) // 8
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}
        self._indent = ""
        self._at, self._offset = "p", 0  # the present place: a variable and a constant beside it
        self._run: list[tuple[str, tuple[str, ...], int]] = []  # fixed-width columns not yet written
        self._after: list[str] = []  # what turns them into values
        # Of a constant, its variable is a name of the function's module.
        wanted = sorted([*constants, *(layout.number for layout in layouts if layout.number is not None)])
        self._tuple = "(" + "".join(f"v{number}, " for number in wanted) + ")"

    def plain_rows(self) -> tuple[str, dict[str, Any]]:
        """The decoder itself, run(buffer, p, end) -> rows: those without NULLs; those with some go to `other`."""
        last = self._null_bytes - 1
        mask = (1 << len(self._layouts) - 8 * last) - 1  # of the last byte; the other bits say nothing
        if not any(layout.is_nullable for layout in self._layouts):
            has_nulls = ""
        elif last == 0:
            has_nulls = f"buffer[p] & {mask}"
        elif last == 1:
            has_nulls = f"buffer[p] or buffer[p + 1] & {mask}"
        else:
            has_nulls = f"buffer[p:p + {last}] != NO_NULLS or buffer[p + {last}] & {mask}"
            self._names["NO_NULLS"] = bytes(last)
        self._lines += ["def run(buffer, p, end):", "    rows = []", "    append = rows.append"]
        if any(layout.prefix and layout.number is not None for layout in self._layouts):
            self._lines += [
                f"    if {_BULK_BYTES} < end - p <= {_LARGE_BYTES} and type(buffer) is bytearray:",
                "        buffer, p, end = bytes(buffer[p:end]), 0, end - p",
            ]
        self._lines += ["    try:", "        while p < end:"]
        self._indent = " " * 12
        if has_nulls:
            self._line(f"if {has_nulls}:")
            self._line("    p = other(buffer, p, end, append)")
            self._line("    continue")
        self._known_row(0)
        self._lines += [
            "    except MISFITS:",
            "        raise misfit() from None",
            "    if p != end:",
            "        raise misfit()",
            "    return rows",
        ]
        return "\n".join(self._lines), self._names

    def rows_with(self, pattern: bytes) -> tuple[str, dict[str, Any]]:
        """Rows whose NULL bitmap is `pattern`, until one has another."""
        self._begin_loop()
        if len(pattern) == 1:
            self._line(f"if buffer[p] != {pattern[0]}: return p")
        else:
            self._line(f"if buffer[p:p + {len(pattern)}] != {pattern!r}: return p")
        nullable = sum(layout.is_nullable << index for index, layout in enumerate(self._layouts))
        # Of the others no bit counts, as where a row is read by code for any NULLs.
        self._known_row(int.from_bytes(pattern, "little") & nullable)
        return self._finish()

    def any_rows(self) -> tuple[str, dict[str, Any]]:
        """Rows with any NULLs."""
        self._begin_loop()
        self._unknown_row()
        return self._finish()

    def one_row(self) -> tuple[str, dict[str, Any]]:
        """A single row with any NULLs."""
        self._line("def run(buffer, p, end, append):")
        self._indent = "    "
        self._unknown_row()
        return self._finish()

    def _begin_loop(self) -> None:
        self._line("def run(buffer, p, end, append):")
        self._line("    while p < end:")
        self._indent = "        "

    def _finish(self) -> tuple[str, dict[str, Any]]:
        self._lines.append("    return p")
        return "\n".join(self._lines), self._names

    def _known_row(self, nulls: int) -> None:
        self._offset = self._null_bytes
        for index, layout in enumerate(self._layouts):
            if nulls >> index & 1:
                if layout.number is not None:
                    self._after.append(f"v{layout.number} = None")
            else:
                self._column(layout)
        self._settle()
        self._line(f"append({self._tuple})")
        self._move()

    def _move(self) -> bool:
        """Let `p` be the present place; False where it is already."""
        is_behind = self._at != "p" or self._offset > 0
        if is_behind:
            self._line(f"p = {self._place(self._offset)}")
        self._at, self._offset = "p", 0
        return is_behind

    def _unknown_row(self) -> None:
        size, at = self._null_bytes, 0
        counted = [layout.number is None and not layout.prefix for layout in self._layouts]
        if size <= _NARROW_BYTES or any(counted):
            self._line(f"nulls = from_bytes(buffer[p:p + {size}], 'little')")
        self._line("row = p")
        self._line(f"p += {size}")
        while at < len(self._layouts):
            stop = at + 1
            while counted[at] and stop < len(self._layouts) and counted[stop]:
                stop += 1
            if counted[at]:
                self._count(at, stop)
            else:
                self._one_column(at)
            at = stop
        self._line(f"append({self._tuple})")

    def _count(self, at: int, stop: int) -> None:
        """Step over columns of fixed width that nobody follows: of each width, so many as are not NULL."""
        of_size: dict[int, int] = {}  # bit masks of those that may be NULL
        for index in range(at, stop):
            layout = self._layouts[index]
            if layout.size and layout.is_nullable:
                of_size[layout.size] = of_size.get(layout.size, 0) | 1 << index
        whole = sum(layout.size for layout in self._layouts[at:stop])
        absent = "".join(f" - {size} * (nulls & {mask}).bit_count()" for size, mask in of_size.items())
        if whole:
            self._line(f"p += {whole}{absent}")

    def _one_column(self, index: int) -> None:
        layout, outer = self._layouts[index], self._indent
        if layout.is_nullable:
            is_null = f"nulls & {1 << index}"
            if self._null_bytes > _NARROW_BYTES:
                is_null = f"buffer[row + {index >> 3}] & {1 << (index & 7)}"
            if layout.number is None:
                self._line(f"if not {is_null}:")
            else:
                self._line(f"if {is_null}: v{layout.number} = None")
                self._line("else:")
            self._indent = outer + "    "
        self._column(layout)
        self._settle()
        if not self._move() and layout.is_nullable and not layout.size and not layout.prefix:
            self._line("pass")
        self._indent = outer

    def _column(self, layout: Layout) -> None:
        if not layout.prefix:
            self._run.append((layout.codes, layout.fields, layout.size))
            self._after.extend(layout.before)
            if layout.value and layout.value != f"v{layout.number}":
                self._after.append(f"v{layout.number} = {layout.value}")
            return
        if layout.number is None and layout.prefix <= 2 and not any(fields for _, fields, _ in self._run):
            self._step_over(layout.prefix)
            return
        self._run.append(PREFIXES[layout.prefix])
        self._settle()
        self._variable(layout)
        self._offset = 0

    def _variable(self, layout: Layout) -> None:
        """The bytes behind their length, which was read."""
        length = {1: "n", 2: "n", 3: "n + (n2 << 16)", 4: "n"}[layout.prefix]
        if self._offset:
            self._line(f"{self._at} += {self._offset}")
        if layout.number is None:
            self._line(f"{self._at} += {length}")
        else:
            start, stop = self._at, "q" if self._at == "p" else "p"
            self._line(f"{stop} = {start} + {length}")
            value = layout.careful if self._is_careful and layout.careful else layout.value
            self._line(f"v{layout.number} = {value.format(raw=f'buffer[{start}:{stop}]')}")
            self._at = stop

    def _step_over(self, prefix: int) -> None:
        # Nothing to unpack before the length: indexing is cheaper than a Struct of one field.
        self._settle()
        length = f"buffer[{self._place(self._offset)}]"
        if prefix == 2:
            length = f"({length} | buffer[{self._place(self._offset + 1)}] << 8)"
        self._line(f"{self._at} += {self._offset + prefix} + {length}")
        self._offset = 0

    def _settle(self) -> None:
        """Write the fixed-width columns gathered so far."""
        end = self._offset + sum(size for _, _, size in self._run)
        read = [number for number, (_, fields, _) in enumerate(self._run) if fields]
        if read:
            self._offset += sum(size for _, _, size in self._run[: read[0]])
            self._unpack(self._run[read[0] : read[-1] + 1])
        self._offset, self._run = end, []
        for line in self._after:
            self._line(line)
        self._after = []

    def _unpack(self, run: list[tuple[str, tuple[str, ...], int]]) -> None:
        """Read columns that lie next to each other, the first and last of which have fields."""
        fields = [field for _, some, _ in run for field in some]
        codes = "<" + "".join(code or f"{size}x" for code, _, size in run)
        place = self._place(self._offset)
        if codes == "<B":
            self._line(f"{fields[0]} = buffer[{place}]")
            return
        unpack = f"unpack{len(self._names)}"
        self._names[unpack] = struct.Struct(codes).unpack_from
        self._line(f"{', '.join(fields)}{',' if len(fields) == 1 else ''} = {unpack}(buffer, {place})")

    def _place(self, offset: int) -> str:
        return f"{self._at} + {offset}" if offset else self._at

    def _line(self, line: str) -> None:
        self._lines.append(self._indent + line)
