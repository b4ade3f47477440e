"""Rows that the hot path does not decode: tables seen for the first time, partial images, texts that are invalid.

What can be read is kept, a row with an unreadable value is refused, and a table none of whose rows can be read halts.
"""

from __future__ import annotations

from changes.batches import Followed, Refused, Row, RowChanges, Unreadable
from changes.errors import TableUnreadableError
from ingest.binlog.events import UPDATE_ROWS, WRITE_ROWS
from ingest.binlog.packed import Buffer
from ingest.binlog.partial_json import PartialUpdates
from ingest.binlog.refusals import unpaired
from ingest.binlog.row_decoder import compile_decoder
from ingest.binlog.table_map import names, parse
from ingest.binlog.walk_state import OWN, Own, Plan, WalkState

_MEMO_LIMIT = 10_000
_NO_EXTRA_DATA = b"\x02\x00"


class CarefulRows(WalkState):
    """Plans for tables, and the slow ways of reading a row event."""

    def _plan(self, body: bytes, version: int) -> Plan | Own | None:
        """The plan for a table map seen for the first time; None for a table nobody follows (OWN is falsy too)."""
        schema, name = names(body)
        plan: Plan | Own | None = None
        if schema == self._watermark.table.schema and name == self._watermark.table.name:
            self._watermark_was_seen = True
            try:
                plan = self._compiled(body, self._watermark)
            except TableUnreadableError as error:
                self._skip_watermark(str(error))
                return None  # not remembered: each one that is skipped is told of
        elif (followed := self._followed.get((schema, name))) is not None:
            if self._is_before_it_fits(followed, version):
                return None  # not remembered: what comes later is followed
            try:
                plan = self._compiled(body, followed)
            except TableUnreadableError as error:
                last = self._last_statements.get(followed)
                self._halt(
                    followed,
                    version,
                    f"{error}. The last statement about the table: {last}" if last else str(error),
                    error.columns,
                )
        elif schema in self._own_schemas:
            plan = OWN
        if len(self._memo) >= _MEMO_LIMIT:
            self._memo.clear()
        self._memo[body] = plan
        return plan

    def _other_image(
        self,
        plan: Plan,
        kind: int,
        version: int,
        buffer: Buffer,
        b: int,
        rows_end: int,
    ) -> None:
        """Rows whose prefix is not the usual one: extra data (partitions) is stepped over, a partial image halts."""
        r = b + 8 + int.from_bytes(buffer[b + 8 : b + 10], "little")
        self._rows_at(plan, kind, version, buffer, r, rows_end)

    def _rows_at(
        self,
        plan: Plan,
        kind: int,
        version: int,
        buffer: Buffer,
        r: int,
        rows_end: int,
    ) -> None:
        """Rows behind what is before their image, from `r` on; a partial image halts."""
        image = (plan.update_image if kind == UPDATE_ROWS else plan.write_image)[2:]
        if buffer[r : r + len(image)] != image:
            self._halt(
                plan.followed,
                version,
                "a row event does not hold the full row image. Run SET GLOBAL binlog_row_image = 'FULL' (and see that "
                "no session changes it), then fill the views again: viewtail replay VIEW",
            )
            return
        self._image_rows(plan, kind, version, buffer, r + len(image), rows_end)

    def _image_rows(
        self,
        plan: Plan,
        kind: int,
        version: int,
        buffer: Buffer,
        r: int,
        rows_end: int,
    ) -> None:
        """Rows of full images."""
        try:
            rows = plan.decode(buffer, r, rows_end)
            if kind == UPDATE_ROWS and len(rows) & 1:
                unpaired(plan.followed)
            self._changes.append(RowChanges(plan.followed, kind - WRITE_ROWS, version, rows))
        except (UnicodeDecodeError, TableUnreadableError) as error:
            self._careful(plan, kind, version, buffer, r, rows_end, error)

    def _careful(
        self,
        plan: Plan,
        kind: int,
        version: int,
        buffer: Buffer,
        r: int,
        rows_end: int,
        error: Exception,
    ) -> None:
        """Keep the rows of an event that can be read, refuse those with an unreadable value, halt if none can."""
        if isinstance(error, TableUnreadableError):
            self._halt(plan.followed, version, str(error))
            return
        try:
            rows = plan.decoder.decode_carefully(buffer, r, rows_end)
            if kind == UPDATE_ROWS and len(rows) & 1:
                unpaired(plan.followed)
        except TableUnreadableError as worse:
            self._halt(plan.followed, version, str(worse))
            return
        self._sort_out(plan, kind, version, rows)

    def _partial_update(self, plan: Plan, version: int, buffer: Buffer, b: int, rows_end: int) -> None:
        """An update whose after-images hold of a JSON column only what changed."""
        r = b + 8 + int.from_bytes(buffer[b + 8 : b + 10], "little")
        image = plan.update_image[2:]
        if buffer[r : r + len(image)] != image:
            self._other_image(plan, UPDATE_ROWS, version, buffer, b, rows_end)  # which halts
            return
        try:
            if plan.partial is None:
                plan.partial = PartialUpdates(plan.table_map, plan.followed)
            rows = plan.partial.decode(buffer, r + len(image), rows_end)
        except TableUnreadableError as error:
            self._halt(plan.followed, version, str(error))
            return
        self._sort_out(plan, UPDATE_ROWS, version, rows)

    def _sort_out(self, plan: Plan, kind: int, version: int, rows: list[Row]) -> None:
        """Keep the rows that can be read, refuse the others."""
        step = 2 if kind == UPDATE_ROWS else 1
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            bad = [value.column for row in some for value in row if isinstance(value, Unreadable)]
            if bad and plan.followed is self._watermark:
                self._skip_watermark("its token holds bytes that are invalid in its character set")
            elif bad:
                reason = f"column {bad[0]} holds bytes that are invalid in its character set"
                self._open_refused.append(Refused(plan.followed, kind - WRITE_ROWS, version, some, reason))
            else:
                self._changes.append(RowChanges(plan.followed, kind - WRITE_ROWS, version, some))

    def _compiled(self, body: bytes, followed: Followed) -> Plan:
        """How the rows of a table map are read; raises TableUnreadableError."""
        table_map = parse(body)
        decoder = compile_decoder(table_map, followed)
        return Plan(
            followed,
            decoder,
            decoder.decode,
            _NO_EXTRA_DATA + decoder.write_image,
            _NO_EXTRA_DATA + decoder.update_image,
            table_map,
        )
