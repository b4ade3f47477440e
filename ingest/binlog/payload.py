"""The payload of a compressed transaction (event type 40): how it is packed, and its events' bytes, a window at a time.

Source of the form: Transaction_payload_event and its codec (libs/mysql/binlog/event/codecs/binary.cpp): fields of
type, length and value, all packed integers, up to the end mark; then the events, without checksums.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import zstandard

from ingest.binlog.events import XA_PREPARE
from ingest.binlog.packed_integers import integer

_END, _PAYLOAD_BYTES, _COMPRESSION, _EVENT_BYTES = range(4)
_ZSTD, _NONE = 0, 255
_FIRST_BYTES = 4096  # of the events: more than what comes before the rows of an XA transaction
_SCAN_BYTES = 1 << 20
_HEAD_BYTES = 20  # an event's header and the first byte of its body
_TYPE_AT, _SIZE_AT, _BODY_AT = 4, 9, 19


class MalformedPayloadError(ValueError):
    """Bytes that are no compressed transaction, or one compressed in a way viewtail does not know."""


class Payload:
    """One event's payload; `size` is that of its events, decompressed."""

    def __init__(self, body: bytes, decompressor: zstandard.ZstdDecompressor) -> None:
        fields: dict[int, int] = {}
        try:
            kind, at = integer(body, 0)
            while kind != _END:
                length, at = integer(body, at)
                fields[kind] = integer(body, at)[0]
                kind, at = integer(body, at + length)
        except IndexError:
            raise MalformedPayloadError("its fields end too early") from None
        if not fields.keys() >= {_PAYLOAD_BYTES, _COMPRESSION}:
            raise MalformedPayloadError("it does not say how it is compressed")
        self._body = body
        self._decompressor = decompressor
        self._at = at
        self._compression = fields[_COMPRESSION]
        self.size = fields.get(_EVENT_BYTES, fields[_PAYLOAD_BYTES])
        if self._compression not in (_ZSTD, _NONE):
            raise MalformedPayloadError(f"it is compressed by method {self._compression}")
        if len(body) - at != fields[_PAYLOAD_BYTES] or (
            self._compression == _NONE and self.size != fields[_PAYLOAD_BYTES]
        ):
            raise MalformedPayloadError("its lengths do not agree")

    def whole(self) -> bytes:
        """All events' bytes at once."""
        packed = self._body[self._at :]
        if self._compression == _NONE:
            return packed
        try:
            # What a frame says of its size is allocated at once: it must be what the event says.
            if zstandard.frame_content_size(packed) not in (-1, self.size):
                raise MalformedPayloadError("its lengths do not agree")
            content = self._decompressor.decompress(packed, max_output_size=self.size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise MalformedPayloadError(str(error)) from None
        if len(content) != self.size:
            raise MalformedPayloadError("its lengths do not agree")
        return content

    def is_prepared(self) -> bool:
        """Return whether it is an XA transaction that was prepared: its last event says so."""
        if b"XA START" not in next(self.pieces(_FIRST_BYTES), b""):
            return False
        last = self._last_head()
        return last[_TYPE_AT] == XA_PREPARE and not last[_BODY_AT]  # else it was committed in one phase

    def _last_head(self) -> bytes:
        last, head = bytes(_HEAD_BYTES), b""
        begin = at = 0  # of a piece, and of the event whose head is gathered
        for piece in self.pieces(_SCAN_BYTES):
            end = begin + len(piece)
            while at + len(head) < end:
                head += piece[at + len(head) - begin : at + _HEAD_BYTES - begin]
                if len(head) < _HEAD_BYTES:
                    break
                size = int.from_bytes(head[_SIZE_AT : _SIZE_AT + 4], "little")
                if size < _BODY_AT:
                    raise MalformedPayloadError(f"it holds an event of {size} bytes")
                last, head, at = head, b"", at + size
            begin = end
        return last

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """The events' bytes in pieces of so many, as they are decompressed."""
        source = io.BytesIO(self._body)
        source.seek(self._at)
        left = self.size
        reader = source if self._compression == _NONE else self._decompressor.stream_reader(source)
        try:
            while left:
                piece = reader.read(min(piece_bytes, left))
                if not piece:
                    raise MalformedPayloadError("it ends too early")
                left -= len(piece)
                yield piece
            if reader.read(1):
                raise MalformedPayloadError("its lengths do not agree")
        except zstandard.ZstdError as error:
            raise MalformedPayloadError(str(error)) from None
