"""The payload of a compressed transaction (event type 40): how it is packed, and its events' bytes, a window at a time.

Source of the form: Transaction_payload_event and its codec (libs/mysql/binlog/event/codecs/binary.cpp): fields of
type, length and value, all packed integers, up to the end mark; then the events, without checksums.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import zstandard

from ingest.binlog.packed import integer

_END, _PAYLOAD_BYTES, _COMPRESSION, _EVENT_BYTES = range(4)
_ZSTD, _NONE = 0, 255


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
            found = self._decompressor.decompress(packed, max_output_size=self.size, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise MalformedPayloadError(str(error)) from None
        if len(found) != self.size:
            raise MalformedPayloadError("its lengths do not agree")
        return found

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
