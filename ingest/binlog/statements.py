"""What a statement in a query event means for the followed tables.

Lexical and on the safe side: a statement that may change stored values without row events, and names a followed
table, halts that table's views. Of ALTER TABLE that is what the next table map cannot show (row_decoder.py compares
that): a column that went and came back, a conversion that the server may have made lossy. Everything here looks at
the text without its comments, which may hold any word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import pairwise

from changes.batches import Followed
from changes.tables import Column


class Meaning(Enum):
    """How a query event's text bears on the transaction it stands in."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"  # all that came before in this transaction was taken back
    ROLLBACK_TO = "rollback to"  # some of it was, and the transaction goes on
    SAVEPOINT = "savepoint"  # changes nothing
    XA_BRANCH = "xa branch"  # begins or ends a branch that is committed later
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    STATEMENT = "statement"  # commits by itself
    OPENING_STATEMENT = "opening statement"  # CREATE TABLE ... SELECT: its rows and commit follow


_SINGLE = r"'(?:[^'\\]|\\.)*+'?"  # a doubled quote reads as two strings side by side, which is as good here
_DOUBLE = r'"(?:[^"\\]|\\.)*+"?'
_BACKTICK = r"`[^`]*+`?"
_COMMENT = r"/\*(?!!).*?(?:\*/|\Z)|--(?=[\s\x00-\x1f]|\Z)[^\n]*|#[^\n]*|/\*!\d*|\*/"
# What is kept comes first. `*/*` is a factor before a comment, not the end of an executable one.
_KEPT = re.compile(rf"({_SINGLE}|{_DOUBLE}|{_BACKTICK}|\*(?=/\*))|{_COMMENT}", re.DOTALL)
_KEPT_WITHOUT_ESCAPES = re.compile(rf"('[^']*+'?|\"[^\"]*+\"?|{_BACKTICK}|\*(?=/\*))|{_COMMENT}", re.DOTALL)
_WORD = re.compile(r"\w+")

_ROWLESS = re.compile(
    r"(TRUNCATE|RENAME\s+TABLES?|DROP\s+(TABLES?|DATABASE|SCHEMA)"
    r"|INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|CALL|IMPORT)\b",
    re.IGNORECASE,
)
_ALTER = re.compile(r"ALTER\s+TABLE\b", re.IGNORECASE)
_DROP_DATABASE = re.compile(r"DROP\s+(DATABASE|SCHEMA)\b", re.IGNORECASE)

_TOKENS = re.compile(rf"(?:`[^`]*+`)+|{_SINGLE}|{_DOUBLE}|[\w$]+|[^\s\w$]", re.DOTALL)
_OTHER_DROPS = frozenset(
    {"INDEX", "KEY", "PRIMARY", "FOREIGN", "CHECK", "CONSTRAINT", "PARTITION", "DEFAULT", "TABLESPACE"}
)
_PARTITION_VERBS = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "COALESCE", "DISCARD", "IMPORT"})
# Each holds all values of those before it.
_WIDER = (
    ("tinyint", "smallint", "mediumint", "int", "bigint"),
    ("tinytext", "text", "mediumtext", "longtext"),
    ("tinyblob", "blob", "mediumblob", "longblob"),
)
_ONE_LENGTH = frozenset({"varchar", "char", "varbinary"})


def plain(statement: str, *, has_escapes: bool = True) -> str:
    """The statement without comments; what /*!...*/ holds is executed, so it stays, and so does all that is quoted.

    `has_escapes`: whether a backslash in a string hides the quote behind it. With sql_mode NO_BACKSLASH_ESCAPES it does
    not; such backslashes come out doubled, so that nobody behind here needs to know.
    """
    if has_escapes:
        text = _KEPT.sub(lambda found: found[1] or " ", statement)
    else:
        text = _KEPT_WITHOUT_ESCAPES.sub(lambda found: (found[1] or " ").replace("\\", "\\" * 2), statement)
    return text.strip(" \t\r\n\f\v\0;")


def meaning(text: str) -> Meaning:
    """How a query event's `plain` text bears on the transaction it stands in."""
    words = [found.upper() for found in _WORD.findall(text[:200])[:2]] + ["", ""]
    match words[0]:
        case "BEGIN":
            return Meaning.BEGIN
        case "COMMIT":
            return Meaning.COMMIT
        case "ROLLBACK":
            is_partial = re.match(r"ROLLBACK\s+(WORK\s+)?TO\b", text, re.IGNORECASE)
            return Meaning.ROLLBACK_TO if is_partial else Meaning.ROLLBACK
        case "SAVEPOINT":
            return Meaning.SAVEPOINT
        case "RELEASE" if words[1] == "SAVEPOINT":
            return Meaning.SAVEPOINT
        case "XA":
            decisions = {"COMMIT": Meaning.XA_COMMIT, "ROLLBACK": Meaning.XA_ROLLBACK}
            return decisions.get(words[1], Meaning.XA_BRANCH)
        case "CREATE" if re.search(r"\bSTART\s+TRANSACTION\Z", text[-200:], re.IGNORECASE):
            return Meaning.OPENING_STATEMENT
    return Meaning.STATEMENT


def savepoint(text: str) -> str:
    """The name that SAVEPOINT or ROLLBACK TO ends with."""
    found = re.search(r"(`(?:[^`]|``)*`|\S+)\Z", text)
    return _identifier(found[1]) if found else ""


def halted_by(
    text: str, database: str, followed: Iterable[Followed], *, is_strict: bool = False
) -> list[tuple[Followed, str]]:
    """The followed tables whose stored values this statement may have changed without a row event, and why.

    Args:
        text: of a statement, as `plain` gives it.
        database: the session's, for names without one.
        is_strict: whether sql_mode made the server refuse a conversion that loses something.
    """
    if _ALTER.match(text):
        return _altered(text, database, followed, is_strict)
    if (found := _ROWLESS.match(text)) is None:
        return []
    why = f"a {found[0].split()[0].upper()} statement may have changed rows without row events"
    lowered = text.lower()
    if _DROP_DATABASE.match(text):
        return [(table, why) for table in followed if _names(lowered, table.table.schema)]
    return [(table, why) for table in followed if _names_table(lowered, database, table)]


def _names_table(lowered: str, database: str, followed: Followed) -> bool:
    table = followed.table
    return _names(lowered, table.name) and (
        database.lower() == table.schema.lower() or _names(lowered, table.schema)
    )


def _names(lowered: str, identifier: str) -> bool:
    """Whether an identifier may be meant somewhere in the text, quoted or not."""
    wanted = identifier.lower()
    return re.search(rf"(?<![\w$]){re.escape(wanted)}(?![\w$])", lowered) is not None or (
        wanted.replace("`", "``") in lowered and not wanted.replace("_", "").isalnum()
    )


# -- ALTER TABLE ----------------------------------------------------------------------------------------------------


def _altered(
    text: str, database: str, followed: Iterable[Followed], is_strict: bool
) -> list[tuple[Followed, str]]:
    (schema, name), specifications = _parts(text)
    target = ((schema or database).lower(), name.lower())
    lowered = text.lower()
    moves_rows = any(_moves_rows(specification) for specification in specifications)
    found = []
    for each in followed:
        if moves_rows and _names_table(lowered, database, each):
            found.append((each, "an ALTER TABLE statement may have changed rows without row events"))
        elif target == (each.table.schema.lower(), each.table.name.lower()):
            what = _changed_values(specifications, each, is_strict)
            if what is not None:
                found.append(
                    (each, f"an ALTER TABLE statement {what}, and values may have changed without row events")
                )
    return found


def _parts(text: str) -> tuple[tuple[str, str], list[list[str]]]:
    """The altered table's (schema or '', name), and the tokens of each specification."""
    tokens = _TOKENS.findall(text)[2:]
    if [token.upper() for token in tokens[:2]] == ["IF", "EXISTS"]:  # MariaDB
        tokens = tokens[2:]
    schema, name = "", _identifier(tokens[0]) if tokens else ""
    tokens = tokens[1:]
    if len(tokens) > 1 and tokens[0] == ".":
        schema, name, tokens = name, _identifier(tokens[1]), tokens[2:]
    specifications: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "," and not depth:
            specifications.append([])
        else:
            specifications[-1].append(token)
    return (schema, name), specifications


def _identifier(token: str) -> str:
    if token[:1] == "`" == token[-1:]:
        return token[1:-1].replace("``", "`")
    return token[1:-1].replace('""', '"') if token[:1] == '"' else token


def _moves_rows(specification: list[str]) -> bool:
    """Whether it takes rows in or out as a whole: partitions, tablespaces, the table's name, an engine without rows."""
    words = [token.upper() for token in specification]
    for at, word in enumerate(words):
        following = words[at + 1 : at + 3]
        if word in _PARTITION_VERBS and following[:1] in (["PARTITION"], ["TABLESPACE"]):
            return True
        if word == "ENGINE" and "BLACKHOLE" in [each.strip("'\"") for each in following]:
            return True
    return words[:1] == ["RENAME"] and words[1:2] not in (["COLUMN"], ["INDEX"], ["KEY"])


def _changed_values(specifications: list[list[str]], followed: Followed, is_strict: bool) -> str | None:
    """What of it may change values of followed columns although the next table map may look as before; or None.

    A column that goes counts, for one of that name may come back before the next row event. A conversion does unless
    the server was told to convert nothing (ALGORITHM=INPLACE or INSTANT, which it refuses where it must), or refuses
    what loses something and the new type only holds more.
    """
    columns = {name.lower(): followed.table.column(name) for name in followed.columns}
    # Which columns a generated one is made from is not known here: any of them may be.
    is_computed = any(column is not None and column.is_generated for column in columns.values())
    algorithms = set(_algorithms(specifications))
    converts_nothing = bool(algorithms) and algorithms <= {"INPLACE", "INSTANT"}
    for specification in specifications:
        words = [token.upper() for token in specification]
        verb, is_column = words[0] if words else "", words[1:2] == ["COLUMN"]
        arguments = specification[2 if is_column else 1 :]
        if arguments[:1] and words[1 + is_column : 3 + is_column] == ["IF", "EXISTS"]:
            arguments = arguments[2:]
        names = [_identifier(token) for token in arguments[:3]]
        if verb == "DROP" and names and (is_column or words[1] not in _OTHER_DROPS):
            if names[0].lower() in columns:
                return f"drops column {names[0]}"
        elif verb == "RENAME" and is_column and len(names) == 3:
            for name in (names[0], names[2]):
                if name.lower() in columns:
                    return f"renames a column from or to {name}"
        elif verb == "CHANGE" and len(names) > 1 and names[0].lower() != names[1].lower():
            for name in names[:2]:
                if name.lower() in columns:
                    return f"renames a column from or to {name}"
        elif verb in ("MODIFY", "CHANGE") and names and (names[0].lower() in columns or is_computed):
            column = columns.get(names[0].lower(), followed.table.column(names[0]))
            definition = arguments[2 if verb == "CHANGE" else 1 :]
            if not _keeps_values(column, definition, converts_nothing, is_strict):
                return f"defines column {names[0]} anew"
        elif verb == "CONVERT" and not converts_nothing:
            return "converts the table to a character set"
    return None


def _algorithms(specifications: list[list[str]]) -> Iterator[str]:
    for specification in specifications:
        words = [token.upper() for token in specification if token != "="]
        yield from (word for before, word in pairwise(words) if before == "ALGORITHM")


def _keeps_values(
    column: Column | None, definition: list[str], converts_nothing: bool, is_strict: bool
) -> bool:
    if {"AS", "GENERATED"} & {token.upper() for token in definition} or column is None:
        return False  # computed: another expression gives other values, whatever the type
    return converts_nothing or (is_strict and _only_widens(column, definition))


def _only_widens(column: Column, definition: list[str]) -> bool:
    """Whether a type holds at least what the described one did.

    The character set is not asked for: a server that is strict converts to another exactly or not at all.
    """
    new, new_arguments = _type(definition)
    old, old_arguments = _type(_TOKENS.findall(column.declared))
    if ("UNSIGNED" in [token.upper() for token in definition]) != column.is_unsigned:
        return False
    for family in _WIDER:
        if old in family:
            return new in family[family.index(old) :]
    if new != old:
        return False
    if new in _ONE_LENGTH and len(new_arguments) == 1 and new_arguments[0].isdecimal():
        return int(new_arguments[0]) >= column.length
    if new in ("enum", "set"):
        return new_arguments[: len(old_arguments)] == old_arguments
    return new_arguments == old_arguments


def _type(tokens: list[str]) -> tuple[str, list[str]]:
    """A type's word and what stands in its parentheses: 'DECIMAL(10, 2) NULL' -> 'decimal', ['10', '2']."""
    word = tokens[0].lower() if tokens else ""
    arguments: list[str] = []
    if tokens[1:2] == ["("] and ")" in tokens:
        arguments = [token for token in tokens[2 : tokens.index(")")] if token != ","]
    return {"integer": "int"}.get(word, word), arguments
