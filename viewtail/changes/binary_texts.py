"""The texts of values that MariaDB keeps as bytes: UUID, INET4 and INET6, as its SELECT gives them.

Source of the forms: sql/sql_type_inet.cc (Inet6::to_string), plugin/type_uuid.
"""

from __future__ import annotations


def uuid_text(raw: bytes) -> str:
    """16 bytes as they are read."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def inet4_text(raw: bytes) -> str:
    """'192.0.2.1'"""
    return ".".join(map(str, raw))


def inet6_text(raw: bytes) -> str:
    """The first of the longest runs of zero words, also one of a single word, is `::`; IPv4 addresses look as such."""
    words = [raw[at] << 8 | raw[at + 1] for at in range(0, 16, 2)]
    start, length = _gap(words)
    if start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        return ("::" if length == 6 else "::ffff:") + inet4_text(raw[12:])
    shown = [f"{word:x}" for word in words]
    if not length:
        return ":".join(shown)
    return ":".join(shown[:start]) + "::" + ":".join(shown[start + length :])


def _gap(words: list[int]) -> tuple[int, int]:
    best = (0, 0)
    start = 0
    for at, word in enumerate([*words, 1]):
        if word:
            if at - start > best[1]:
                best = (start, at - start)
            start = at + 1
    return best
