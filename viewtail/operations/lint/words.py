"""English and SQL words, as names of tables and columns are judged by them: plurals, reserved words, units."""

from __future__ import annotations

import re

from sqlglot.dialects.mysql import MySQL

# Those of MySQL 8.4 are sqlglot's; what later versions and MariaDB reserve besides.
RESERVED = frozenset(MySQL.Generator.RESERVED_KEYWORDS) | {
    "external",
    "library",
    "manual",
    "parallel",
    "qualify",
    "tablesample",
}

_IRREGULAR = {
    "people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "feet": "foot",
    "teeth": "tooth", "indices": "index", "matrices": "matrix", "vertices": "vertex", "criteria": "criterion",
    "movies": "movie", "cookies": "cookie", "calories": "calorie", "zombies": "zombie", "selfies": "selfie",
}  # fmt: skip
_SINGULAR = (
    "alias always analytics as atlas bias canvas chaos christmas does dns economics electronics gas goods gps has "
    "headquarters https kudos lens logistics mathematics means mechanics news no physics plus premises series sms "
    "species sports statistics thanks tls was yes hers its ours "
    "theirs yours"
)
# A column may count these: `keep_days`, `lag_ms`.
_UNITS = (
    "ms us ns s seconds secs milliseconds microseconds minutes mins hours days weeks months years bytes bits cents "
    "pixels points meters metres kilometers grams kilograms"
)
_SINGULAR_IN_S, _UNITS_OF_COLUMNS = frozenset(_SINGULAR.split()), frozenset(_UNITS.split())
_SINGULAR_ENDINGS = re.compile(r"(?:ss|us|is)\Z")
_IES, _ES = re.compile(r"ies\Z"), re.compile(r"(?<=ch|sh|ss)es\Z|(?<=[xz])es\Z")


def plural(name: str, *, may_count: bool = False) -> str:
    """Return the name in the singular where its last word is a plural; '' where it is none."""
    before, underscore, word = name.lower().rpartition("_")
    singular = _singular(word)
    if not singular or (may_count and word in _UNITS_OF_COLUMNS):
        return ""
    return f"{before}{underscore}{singular}"


def _singular(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < 4 or not word.endswith("s") or word in _SINGULAR_IN_S or _SINGULAR_ENDINGS.search(word):
        return ""
    if _IES.search(word):
        return f"{word[:-3]}y"
    return word[:-2] if _ES.search(word) else word[:-1]


def in_snake_case(name: str) -> str:
    """Return a name as it would be in snake_case: OrderLine is order_line."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


# What a table or column is called that is to be dropped: by hand, by gh-ost, by pt-online-schema-change.
_TO_DROP = re.compile(r"(?:\A|_)(?:to_drop|drop|dropped|old|deprecated|unused|trash|del)(?:_\d+)*\Z", re.IGNORECASE)


def is_to_drop(name: str) -> bool:
    """Return whether a name says that the thing is about to be dropped."""
    return _TO_DROP.search(name) is not None
