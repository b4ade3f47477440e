"""The texts of query events: what they mean for their transaction, and for the followed tables.

Every such event comes by here, so most is lexical and cheap; only a statement that may change a followed table is read
(ingest/ddl.py) and judged (table_effects.py). Everything looks at the text without its comments, which may hold any
word.

A row event carries its own columns, and table_fit.py compares those that views use with what they were; so a change
that leaves them in place needs no verdict. What the next table map cannot show is judged: rows that come and go as a
whole, a column that went and came back, a conversion that the server may have made lossy. Where a statement cannot be
read, each followed table that it may name halts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from viewtail.changes.batches import Followed, TableChangeKind
from viewtail.changes.patterns import Part
from viewtail.changes.tables import Table
from viewtail.servers.quoted import BACKTICK, DOUBLE, SINGLE

if TYPE_CHECKING:
    from ingest import ddl


class Meaning(Enum):
    """The meaning of a query event's text for its transaction."""

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The meaning of a statement for the views of a followed table."""

    followed: Followed
    kind: TableChangeKind | None  # None: they halt
    why: str  # without the statement
    columns: frozenset[str] | None = None  # of a halt: views that use none of them go on; None: all halt
    part: Part | None = None  # which of a pattern's tables it is about

    @property
    def table(self) -> Followed:
        """The one table that it is about."""
        from ingest.binlog import table_effects

        return self.followed if self.part is None else table_effects.alone(self.followed, self.part)

    @property
    def name(self) -> str:
        return self.followed.table.full_name if self.part is None else self.part.full_name


_SINGLE_WITHOUT_ESCAPES = r"'[^']*+'?"
_DOUBLE_WITHOUT_ESCAPES = r'"(?:[^"]|"")*+"?'  # with ANSI_QUOTES an identifier
_COMMENT = r"/\*(?!M?!).*?(?:\*/|\Z)|--(?=[\s\x00-\x1f]|\Z)[^\n]*|#[^\n]*|/\*M?!\d*|\*/"
_WORD = re.compile(r"\w+")


def _keeping(single: str, double: str) -> re.Pattern[str]:
    # What is kept comes first. `*/*` is a factor before a comment, not the end of an executable one.
    return re.compile(rf"({single}|{double}|{BACKTICK}|\*(?=/\*))|{_COMMENT}", re.DOTALL)


_KEPT = {  # by whether strings have escapes, and whether "..." is an identifier
    (True, False): _keeping(SINGLE, DOUBLE),
    (True, True): _keeping(SINGLE, _DOUBLE_WITHOUT_ESCAPES),
} | dict.fromkeys(((False, False), (False, True)), _keeping(_SINGLE_WITHOUT_ESCAPES, _DOUBLE_WITHOUT_ESCAPES))
_STRING = re.compile(rf"{SINGLE}|{DOUBLE}", re.DOTALL)
_SHOWN_CHARACTERS = 200

ANSI_QUOTES = 1 << 2  # bits of sql_mode (MySQL source, system_variables.h)
NO_BACKSLASH_ESCAPES = 1 << 20
STRICT = 3 << 21  # STRICT_TRANS_TABLES, STRICT_ALL_TABLES


def plain(statement: str, sql_mode: int = 0) -> str:
    """The statement without comments; what /*!...*/ holds is executed, so it stays, and so does all that is quoted.

    What is left stays on its line, but for empty ones before the first word.

    What depends on the session's `sql_mode` comes out as it is written without: with NO_BACKSLASH_ESCAPES a backslash
    hides no quote behind it, so it is doubled, and with ANSI_QUOTES "..." is an identifier, put into backticks.
    """
    has_escapes, is_ansi = not sql_mode & NO_BACKSLASH_ESCAPES, bool(sql_mode & ANSI_QUOTES)

    def replaced(match: re.Match[str]) -> str:
        text = match[1] or " " + "\n" * match[0].count("\n")
        if is_ansi and text[0] == '"':
            return "`" + text[1:].removesuffix('"').replace('""', '"').replace("`", "``") + "`"
        return text if has_escapes or text[0] not in "'\"" else text.replace("\\", "\\" * 2)

    return _KEPT[has_escapes, is_ansi].sub(replaced, statement).strip(" \t\r\n\f\v\0;")


def meaning(text: str) -> Meaning:
    """Tell what a query event's `plain` text means for its transaction."""
    words = " ".join(_WORD.findall(text[:200])[:2]).upper()
    if words.startswith("ROLLBACK") and _ROLLBACK_TO.match(text):
        return Meaning.ROLLBACK_TO
    if words.startswith("CREATE") and _OPENING.search(text[-200:]):
        return Meaning.OPENING_STATEMENT
    return _MEANINGS.get(words) or _MEANINGS.get(words.partition(" ")[0], Meaning.STATEMENT)


_ROLLBACK_TO = re.compile(r"ROLLBACK\s+(WORK\s+)?TO\b", re.IGNORECASE)
_OPENING = re.compile(r"\bSTART\s+TRANSACTION\Z", re.IGNORECASE)
_MEANINGS = {  # by the first word or two
    "BEGIN": Meaning.BEGIN, "COMMIT": Meaning.COMMIT, "ROLLBACK": Meaning.ROLLBACK, "SAVEPOINT": Meaning.SAVEPOINT,
    "RELEASE SAVEPOINT": Meaning.SAVEPOINT, "XA": Meaning.XA_BRANCH, "XA COMMIT": Meaning.XA_COMMIT,
    "XA ROLLBACK": Meaning.XA_ROLLBACK,
}  # fmt: skip


def is_change(text: str) -> bool:
    """Return whether a `plain` text changes rows in statement format: its tables are not all that it may change."""
    return _CHANGE.match(text) is not None


def without_settings(text: str) -> str:
    """The statement behind MariaDB's SET STATEMENT ... FOR."""
    return _FOR_ONE_STATEMENT.sub("", text, count=1)


def of_schemas(text: str, database: str, followed: Iterable[Followed]) -> list[Followed]:
    """The followed tables of the session's database and of those that a `plain` text may name."""
    folded = text.casefold()
    return [table for table in followed if _reaches(text, folded, database, table.table)]


def savepoint(text: str) -> str:
    """The name that SAVEPOINT or ROLLBACK TO ends with."""
    match = re.search(r"(`(?:[^`]|``)*`|\S+)\Z", text)
    if match is None:
        return ""
    return match[1][1:-1].replace("``", "`") if match[1][0] == "`" else match[1]


def concerned(text: str, database: str, followed: Iterable[Followed]) -> list[Followed]:
    """The followed tables that a statement's `plain` text may be about: every one that it is about is among them."""
    folded = text.casefold()  # lower() writes a sigma by what follows it, so that a name would not be found
    if _DROP_DATABASE.match(text):
        return [table for table in followed if _names_schema(text, folded, table.table)]
    named = [table for table in followed if _names_table(text, folded, table.table)]
    return [table for table in named if _reaches(text, folded, database, table.table)]


def judge(
    text: str, database: str, followed: Iterable[Followed], sql_mode: int = 0, *, folds_names: bool | None = None
) -> list[Verdict]:
    """Judge each followed table whose rows or columns a statement may have changed unseen, or that got a column.

    The verdicts on new columns come last: they do not count for a table that the others halt.

    Args:
        text: as `plain` gives it.
        database: the session's, for names without one.
        followed: those that the statement may be about are picked from them.
        sql_mode: the session's; a strict one made the server refuse a conversion that loses something.
        folds_names: whether table names that differ in case are those of one table (ServerFacts); None: perhaps.
    """
    if _ROWS_STAY.match(text) or not (tables := concerned(text, database, followed)):
        return []
    if not _READ.match(text):
        why = f"a {text.split(None, 1)[0].upper()} statement may have changed rows without row events"
        return [Verdict(table, None, why) for table in tables]
    from ingest import ddl  # 17 MiB, which a stream without such statements does without

    names = [(each.table.schema, each.table.name) for each in tables]
    try:
        effects = ddl.read(text, database, ddl.folding(names) if folds_names else ddl.as_written)
    except ddl.Unread as error:
        why = f"viewtail cannot read this statement ({error}), and it may be about the table"
        return [Verdict(table, None, why) for table in tables]
    return _verdicts(tables, effects, bool(sql_mode & STRICT), folds_names)


def _verdicts(
    tables: Sequence[Followed], effects: list[ddl.Effect], is_strict: bool, folds_names: bool | None
) -> list[Verdict]:
    gone = [verdict for table in tables for verdict in _gone(table, effects, folds_names)]
    made = [verdict for table in tables for verdict in _made(table, effects, folds_names)]
    meant = [verdict for table in tables for verdict in _meant(table, effects, is_strict, folds_names)]
    return [*gone, *made, *meant, *(verdict for table in tables for verdict in _extended(table, effects, folds_names))]


def _gone(table: Followed, effects: list[ddl.Effect], folds_names: bool | None) -> Iterator[Verdict]:
    from ingest.binlog import table_effects

    for part, why in table_effects.gone(table, effects, folds_names):
        yield Verdict(table, TableChangeKind.LEFT, why, None, part)


def _made(table: Followed, effects: list[ddl.Effect], folds_names: bool | None) -> Iterator[Verdict]:
    from ingest.binlog import table_effects

    for part in table_effects.made(table, effects, folds_names):
        yield Verdict(table, TableChangeKind.REDEFINED, "a table was created", None, part)


def _meant(table: Followed, effects: list[ddl.Effect], is_strict: bool, folds_names: bool | None) -> Iterator[Verdict]:
    from ingest.binlog import table_effects

    case_tells = folds_names is False
    for part, alone in table_effects.alone_in(table, effects, folds_names):
        if (meant := table_effects.meant(alone, effects, is_strict, case_tells)) is not None:
            yield Verdict(table, *meant, part)


def _extended(table: Followed, effects: list[ddl.Effect], folds_names: bool | None) -> Iterator[Verdict]:
    from ingest.binlog import table_effects

    for part, alone in table_effects.alone_in(table, effects, folds_names):
        if table_effects.extends(alone, effects):
            yield Verdict(table, TableChangeKind.EXTENDED, "a column was added", None, part)


def reason(verdict: Verdict, text: str) -> str:
    """Why the table changed, and the statement: for messages."""
    return f"{verdict.why}: {shown(text)}"


def shown(text: str) -> str:
    """A statement for messages: short, and without its strings, which may hold anybody's data."""
    short = " ".join(_STRING.sub("'...'", text).split())
    return short if len(short) <= _SHOWN_CHARACTERS else short[: _SHOWN_CHARACTERS - 4] + " ..."


def _reaches(text: str, folded: str, database: str, table: Table) -> bool:
    if table.pattern is not None and table.pattern.is_named_in(f"`{database.replace('`', '``')}`", schema=True):
        return True
    return database.casefold() == table.schema.casefold() or _names_schema(text, folded, table)


def _names_schema(text: str, folded: str, table: Table) -> bool:
    if table.pattern is not None:
        return table.pattern.is_named_in(text, schema=True)
    return _names(folded, table.schema)


def _names_table(text: str, folded: str, table: Table) -> bool:
    if table.pattern is not None:
        return table.pattern.is_named_in(text, schema=False)
    return _names(folded, table.name)


def _names(folded: str, identifier: str) -> bool:
    """Return whether an identifier may be meant somewhere in the text, quoted or not."""
    wanted = identifier.casefold()
    if wanted not in folded and "`" not in wanted:
        return False
    return re.search(rf"(?<![\w$]){re.escape(wanted)}(?![\w$])", folded) is not None or (
        wanted.replace("`", "``") in folded and not wanted.replace("_", "").isalnum()
    )


_FOR_ONE_STATEMENT = re.compile(
    r"\ASET\s+STATEMENT\s(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[^'\"`])*?\sFOR\s+", re.IGNORECASE
)
# Statements that take no row away, whatever they name; not worth a parser.
_ROWS_STAY = re.compile(
    r"(?:ANALYZE|OPTIMIZE|REPAIR|CHECK|CHECKSUM|FLUSH|GRANT|REVOKE|SET|INSTALL|UNINSTALL|LOCK|UNLOCK|RENAME\s+USER)\b",
    re.IGNORECASE,
)
_READ = re.compile(r"(?:CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE)
_DROP_DATABASE = re.compile(r"(DROP|CREATE\s+OR\s+REPLACE)\s+(DATABASE|SCHEMA)\b", re.IGNORECASE)
# SELECT, DO and CALL may call a function that changes rows.
_CHANGE = re.compile(r"\(*\s*(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|SELECT|DO|CALL|WITH)\b", re.IGNORECASE)
