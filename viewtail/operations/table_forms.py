"""Knows the forms of a table's definition: in a CREATE TABLE, an ALTER TABLE or a CREATE INDEX.

Its parts are outlines (ingest/ddl.py): words in capitals, '?' for what is quoted, '()' for parentheses. The forms are
those of MySQL and MariaDB; a part that has none of them is misspelt. Whether names exist and expressions hold is the
server's business. An option that only a plugin of MariaDB knows (X=Y) is taken for a misspelt one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ingest.ddl import Outlines, goes_on, list_in
from viewtail.changes.errors import nearest

_TYPES = (
    r"(?:DOUBLE(?: PRECISION)?|NCHAR(?: VARCHAR(?:ACTER)?)?(?: VARYING)?"
    r"|(?:NATIONAL )?(?:CHAR|CHARACTER|VARCHAR|VARCHARACTER|NVARCHAR)(?: VARYING)?"
    r"|LONG(?: (?:VARCHAR|VARBINARY|VARCHARACTER|CHAR VARYING|CHARACTER VARYING))?"
    r"|BIT|BOOL|BOOLEAN|TINYINT|SMALLINT|MEDIUMINT|MIDDLEINT|INT|INTEGER|BIGINT|INT[1-48]|DECIMAL|DEC|NUMERIC|FIXED"
    r"|NUMBER|FLOAT|FLOAT4|FLOAT8|REAL|SERIAL|DATE|TIME|DATETIME|TIMESTAMP|YEAR|VARCHAR2|BINARY|VARBINARY|RAW"
    r"|TINYBLOB|BLOB|MEDIUMBLOB|LONGBLOB|TINYTEXT|TEXT|MEDIUMTEXT|LONGTEXT|CLOB|ENUM|SET|JSON|XMLTYPE"
    r"|GEOMETRY|POINT|LINESTRING|POLYGON|MULTIPOINT|MULTILINESTRING|MULTIPOLYGON|GEOMETRYCOLLECTION|GEOMCOLLECTION"
    r"|VECTOR|UUID|INET4|INET6)"
)
_NAME = r"[^\s()]+(?: \. [^\s()]+)*"
_VALUE = rf"(?:(?:[-+] )?(?:\. )?(?:NEXT VALUE FOR )?{_NAME}(?: \?)?(?: \(\))?|\(\))"
_ACTION = "(?:RESTRICT|CASCADE|SET NULL|SET DEFAULT|NO ACTION)"
_REFERENCES = rf"REFERENCES {_NAME}(?: \(\))?(?: MATCH \w+)?(?: ON (?:DELETE|UPDATE) {_ACTION})*"
_ATTRIBUTES = (
    r"\(\)", "UNSIGNED|SIGNED|ZEROFILL|BINARY|ASCII|UNICODE|BYTE",
    rf"(?:CHARACTER SET|CHAR SET|CHARSET|COLLATE)(?: =)? {_NAME}", "NOT NULL|NULL",
    rf"(?:DEFAULT|ON UPDATE) {_VALUE}",
    "AUTO_INCREMENT|SERIAL DEFAULT VALUE", "UNIQUE(?: KEY)?|PRIMARY KEY|PRIMARY|KEY",
    r"(?:COMMENT|SRID|REF_SYSTEM_ID)(?: =)? \S+",
    r"(?:GENERATED ALWAYS )?AS \(\)", "VIRTUAL|STORED|PERSISTENT|VISIBLE|INVISIBLE|COMPRESSED(?: = \\S+)?",
    r"GENERATED ALWAYS AS ROW (?:START|END)", "(?:WITH|WITHOUT) SYSTEM VERSIONING",
    r"(?:COLUMN_FORMAT|STORAGE) \w+", r"(?:SECONDARY_)?ENGINE_ATTRIBUTE(?: =)? \S+", "NOT SECONDARY",
    rf"(?:CONSTRAINT(?: (?!CHECK){_NAME})? )?CHECK \(\)(?: (?:NOT )?ENFORCED)?",
    _REFERENCES,
    rf"FIRST|AFTER {_NAME}", r"IETF_QUOTES = \S+",
)  # fmt: skip
_DEFINITION = re.compile(
    rf"(?P<type>{_TYPES})(?P<rest>(?: (?:{'|'.join(_ATTRIBUTES)}))*+)(?P<other>(?: .*)?)\Z", re.DOTALL
)
_IF_EXISTS = r"(?:IF (?:NOT )?EXISTS )?"
_ADDED = re.compile(rf"ADD (?:COLUMN )?{_IF_EXISTS}(?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)
_MODIFIED = re.compile(rf"MODIFY (?:COLUMN )?{_IF_EXISTS}(?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)
_CHANGED = re.compile(rf"CHANGE (?:COLUMN )?{_IF_EXISTS}\S+ (?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)
_LISTED = re.compile(r"(?P<name>\S+) ?(?P<definition>.*)\Z", re.DOTALL)

# Keys and constraints.
_INDEX_OPTION = (
    rf"(?: (?:(?:USING|TYPE) (?:BTREE|HASH|RTREE)|(?:KEY_BLOCK_SIZE|CLUSTERING|M|DISTANCE)(?: =)? \S+|COMMENT(?: =)? \?"
    rf"|WITH PARSER {_NAME}|VISIBLE|INVISIBLE|(?:NOT )?IGNORED|(?:SECONDARY_)?ENGINE_ATTRIBUTE(?: =)? \?))"
)
_INDEXED = rf"(?: IF NOT EXISTS)?(?: {_NAME})?(?: (?:USING|TYPE) \w+)? \(\){_INDEX_OPTION}*"
_CONSTRAINTS = (
    rf"(?:PRIMARY KEY|UNIQUE(?: INDEX| KEY)?){_INDEXED}",
    rf"FOREIGN KEY(?: IF NOT EXISTS)?(?: {_NAME})? \(\) {_REFERENCES}",
    r"CHECK \(\)(?: (?:NOT )?ENFORCED)?",
)
_KEY = re.compile(
    rf"(?:(?:CONSTRAINT(?: IF NOT EXISTS)?(?: (?!(?:PRIMARY|UNIQUE|FOREIGN|CHECK)\b){_NAME})? )?"
    rf"(?:{'|'.join(_CONSTRAINTS)})"
    rf"|(?:INDEX|KEY|(?:FULLTEXT|SPATIAL)(?: INDEX| KEY)?|VECTOR (?:INDEX|KEY)){_INDEXED}"
    rf"|PERIOD FOR {_NAME} \(\))\Z"
)
_BEGINS_KEY = re.compile(
    r"(?:INDEX|KEY|PRIMARY KEY|UNIQUE|FULLTEXT|SPATIAL|VECTOR (?:INDEX|KEY)|CONSTRAINT|FOREIGN KEY|CHECK|PERIOD FOR)\b"
)
_INDEX = re.compile(
    rf"CREATE (?:OR REPLACE )?(?:ONLINE )?(?:(?:UNIQUE|FULLTEXT|SPATIAL|VECTOR) )?INDEX {_IF_EXISTS}{_NAME}"
    rf"(?: (?:USING|TYPE) \w+)? ON {_NAME} \(\)"
    rf"(?:{_INDEX_OPTION}| (?:ALGORITHM|LOCK)(?: =)? \w+| WAIT \d+| NOWAIT)*\Z"
)

# Options of a table, and what else comes behind its columns.
_OPTION = (
    rf"(?:(?:DEFAULT )?(?:CHARACTER SET|CHAR SET|CHARSET|COLLATE)(?: =)? {_NAME}|(?:DATA|INDEX) DIRECTORY(?: =)? \?"
    r"|(?:ENGINE|TYPE|AUTO_INCREMENT|AUTOEXTEND_SIZE|AVG_ROW_LENGTH|CHECKSUM|TABLE_CHECKSUM|PAGE_CHECKSUM|COMMENT"
    r"|COMPRESSION|CONNECTION|DELAY_KEY_WRITE|ENCRYPTION|ENCRYPTED|ENCRYPTION_KEY_ID|ENGINE_ATTRIBUTE"
    r"|SECONDARY_ENGINE|SECONDARY_ENGINE_ATTRIBUTE|INSERT_METHOD|KEY_BLOCK_SIZE|MAX_ROWS|MIN_ROWS|PACK_KEYS"
    r"|PAGE_COMPRESSED|PAGE_COMPRESSION_LEVEL|PASSWORD|ROW_FORMAT|SEQUENCE|STATS_AUTO_RECALC|STATS_PERSISTENT"
    r"|STATS_SAMPLE_PAGES|TABLESPACE|STORAGE|TRANSACTIONAL|IETF_QUOTES)(?: =)? [^\s(),=]+"
    r"|UNION(?: =)? \(\)|START TRANSACTION|SECONDARY_(?:UNLOAD|LOAD))"
)
_OPTIONS = rf"(?:{_OPTION}(?: ,)?(?: |\Z))*+"
_QUERY = re.compile(r"(?:(?:IGNORE|REPLACE) )?(?:AS )?(?:SELECT|WITH|TABLE|VALUES|\(\))(?: |\Z)")
_REST = re.compile(
    rf"(?:\(\)(?: |\Z))?{_OPTIONS}(?:WITH SYSTEM VERSIONING(?: |\Z))?{_OPTIONS}(?P<other>.*)\Z", re.DOTALL
)
_LIKE = re.compile(rf"LIKE {_NAME}\Z")

# Specifications of an ALTER TABLE.
_ADDS_NO_COLUMN = re.compile(r"ADD (?:PARTITION|SYSTEM VERSIONING)\b")
_ADDS_LIST = re.compile(rf"ADD (?:COLUMN )?{_IF_EXISTS}\(\)(?P<other>.*)\Z", re.DOTALL)
_ALTERED = re.compile(
    rf"ALTER (?:(?:COLUMN )?{_IF_EXISTS}{_NAME} (?:SET DEFAULT {_VALUE}|DROP DEFAULT|SET (?:VISIBLE|INVISIBLE))"
    rf"|(?:INDEX|KEY) {_IF_EXISTS}{_NAME} (?:VISIBLE|INVISIBLE|(?:NOT )?IGNORED)"
    rf"|(?:CHECK|CONSTRAINT) {_NAME} (?:NOT )?ENFORCED)\Z"
)
_CONVERTED = re.compile(
    rf"CONVERT (?:TO (?:CHARACTER SET|CHAR SET|CHARSET)(?: =)? {_NAME}(?: COLLATE(?: =)? {_NAME})?\Z"
    r"|(?:PARTITION|TABLE)\b)"
)
_ORDERED = re.compile(r"ORDER BY \S")
_ALL_OPTIONS = re.compile(rf"{_OPTIONS}(?P<other>.*)\Z", re.DOTALL)
# Of these ddl.read knows every form.
_KNOWN = re.compile(
    r"(?:ADD|DROP|RENAME|MODIFY|CHANGE|EXCHANGE|DISCARD|IMPORT|REMOVE|ENABLE|DISABLE|LOCK|WITH|WITHOUT|FORCE|PARTITION"
    r"|PARTITION BY|ALGORITHM|ANALYZE|CHECK|COALESCE|OPTIMIZE|REBUILD|REORGANIZE|REPAIR|TRUNCATE|WAIT|NOWAIT)\b"
)


_PATTERNS = (*_ATTRIBUTES, _ALTERED.pattern, _ALL_OPTIONS.pattern, _KNOWN.pattern)
_WORDS = sorted({*re.findall("[A-Z_]{4,}", " ".join(_PATTERNS))})


def misspelt(outlines: Outlines) -> Iterator[str]:
    """Yield why some parts of a statement have no form of MySQL or MariaDB."""
    if outlines.index is not None and _INDEX.match(outlines.index) is None:
        yield "this CREATE INDEX statement has no form that viewtail knows"
    is_query = outlines.listed and (_QUERY.match(outlines.listed[0]) or _LIKE.match(outlines.listed[0]))
    yield from () if is_query else filter(None, map(_why_unlisted, outlines.listed))
    yield from filter(None, map(_why_misspelt, _without_lists(outlines.specifications)))
    if outlines.rest is not None:
        yield from filter(None, [_why_no_rest(outlines.rest)])


def _without_lists(specifications: tuple[str, ...]) -> Iterator[str]:
    """Leave out the second and further ones of a list of partitions or columns."""
    list_of = ""
    for words in map(str.split, specifications):
        if not goes_on(list_of, words):
            list_of = list_in(words)
            yield " ".join(words)


def _why_no_rest(rest: str) -> str:
    """Return why what comes behind the name in a CREATE TABLE has no form of it."""
    if _LIKE.match(rest) or (match := _REST.match(rest)) is None:
        return ""
    other = match["other"]
    return "" if other and (other.startswith("PARTITION BY ") or _QUERY.match(other)) else _no_option(other)


def _why_unlisted(outline: str) -> str:
    """Return why one of the things in parentheses in a CREATE TABLE, or behind ADD, is none."""
    if _BEGINS_KEY.match(outline):
        return _why_no_key(outline)
    column = _LISTED.match(outline)
    return _why_odd(column) if column is not None else ""


def _why_no_key(outline: str) -> str:
    if _KEY.match(outline):
        return ""
    if "()" not in outline:
        return f"a key without columns behind {outline.partition(' ')[0]}"
    return f"{' '.join(outline.split()[:3])} begins no key or constraint in a form that viewtail knows"


def _why_misspelt(outline: str) -> str:
    """Return why one specification of an ALTER TABLE is none."""
    verb, _, behind = outline.partition(" ")
    if verb == "ADD" and not _ADDS_NO_COLUMN.match(outline):
        return _why_not_added(outline, behind)
    if changed := _MODIFIED.match(outline) or _CHANGED.match(outline):
        return _why_odd(changed)
    if form := {"ALTER": _ALTERED, "CONVERT": _CONVERTED}.get(verb):
        what = " ".join(outline.split()[:2])
        return "" if form.match(outline) else f"{what} has no form that viewtail knows{meant_in(outline)}"
    if _KNOWN.match(outline) or _ORDERED.match(outline):
        return ""
    options = _ALL_OPTIONS.match(outline)
    return _no_option(options["other"] if options else None)


def _no_option(other: str | None) -> str:
    word = (other or "").partition(" ")[0]
    return f"{word} is no option of a table{_meant(word)}" if word else ""


def meant_in(text: str) -> str:
    """Return, for a message, what a misspelt word of a statement, or of a part of it, is like; '' where none is."""
    verb = re.compile(r"\s*(?:ALTER|CREATE) TABLE \S+\s|\b(?:ALTER|MODIFY|CHANGE|ADD)(?: COLUMN)? \S+")
    words = re.findall("[A-Z_]{4,}", verb.sub(" ", " ".join(text.upper().split())))
    return next(filter(None, map(_meant, words)), "")


def _meant(word: str) -> str:
    """Return, for a message, the word that a misspelt one is like; '' where it is like none."""
    return "" if word in _WORDS else nearest(word, _WORDS)


def _why_not_added(outline: str, behind: str) -> str:
    if _BEGINS_KEY.match(behind):
        return _why_no_key(behind)
    if match := _ADDS_LIST.match(outline):
        other = match["other"].strip()
        return f"{other.partition(' ')[0]} behind the list of columns that are added" if other else ""
    match = _ADDED.match(outline)
    return _why_odd(match) if match is not None else "nothing behind ADD"


def _why_odd(column: re.Match[str]) -> str:
    """Return why a column's definition is none; '' where it is one."""
    definition = _DEFINITION.match(column["definition"])
    if definition is None:
        what = column["definition"].partition(" ")[0] or "nothing"
        return f"{what} where the type of column {column['name']} should be"
    word = definition["other"].strip().partition(" ")[0]
    return f"{word} in the definition of column {column['name']}{_meant(word)}" if word else ""
