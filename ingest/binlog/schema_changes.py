"""What a statement that changes tables means for the followed ones: nothing, a table change, or a halt.

A row event carries its own columns, and table_fit.py compares those that views use with what they were; so a change
that leaves them in place is followed without a word here. What the next table map cannot show is judged: rows that
come and go as a whole, a column that went and came back, a conversion that the server may have made lossy. Where a
statement cannot be read, each followed table that it may name halts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from changes.batches import Followed, TableChangeKind
from changes.tables import Column
from ingest.binlog.statements import STRICT, concerned, shown

if TYPE_CHECKING:
    from ingest import ddl  # 17 MiB, which a stream without such statements does without

_UNSEEN = "values may have changed without row events"
# Statements that take no row away, whatever they name; not worth a parser.
_ROWS_STAY = re.compile(
    r"(?:ANALYZE|OPTIMIZE|REPAIR|CHECK|CHECKSUM|FLUSH|GRANT|REVOKE|SET|INSTALL|UNINSTALL|LOCK|UNLOCK|RENAME\s+USER)\b",
    re.IGNORECASE,
)
_READ = re.compile(r"(?:CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE)
# Each holds all values of those before it.
_WIDER = (
    ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"),
    ("UTINYINT", "USMALLINT", "UMEDIUMINT", "UINT", "UBIGINT"),
    ("TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"),
    ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"),
)
_ONE_LENGTH = frozenset({"VARCHAR", "CHAR", "VARBINARY"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a followed table's views."""

    followed: Followed
    kind: TableChangeKind | None  # None: they halt
    why: str  # without the statement
    columns: frozenset[str] | None = None  # of a halt: views that use none of them go on; None: all halt


def judge(text: str, database: str, followed: Iterable[Followed], sql_mode: int = 0) -> list[Verdict]:
    """The verdict on each followed table whose rows or columns a statement may have changed unseen.

    Args:
        text: as `plain` gives it.
        database: the session's, for names without one.
        followed: those that the statement may be about are picked from them.
        sql_mode: the session's; a strict one made the server refuse a conversion that loses something.
    """
    if _ROWS_STAY.match(text) or not (tables := concerned(text, database, followed)):
        return []
    if not _READ.match(text):
        verb = text.split(None, 1)[0].upper()
        return [
            Verdict(table, None, f"a {verb} statement may have changed rows without row events")
            for table in tables
        ]
    from ingest import ddl

    try:
        effects = ddl.read(text, database)
    except ddl.Unread as error:
        why = f"viewtail cannot read this statement ({error}), and it may be about the table"
        return [Verdict(table, None, why) for table in tables]
    return [found for table in tables if (found := _on(table, effects, bool(sql_mode & STRICT))) is not None]


def told(verdict: Verdict, text: str) -> str:
    """Why, and the statement: for messages."""
    return f"{verdict.why}: {shown(text)}"


def _on(followed: Followed, effects: list[ddl.Effect], is_strict: bool) -> Verdict | None:
    verdicts = [found for effect in effects if (found := _of_effect(followed, effect, is_strict)) is not None]
    if not verdicts:
        return None
    return next((found for found in verdicts if found.kind is None), verdicts[0])


def _of_effect(followed: Followed, effect: ddl.Effect, is_strict: bool) -> Verdict | None:
    from ingest import ddl

    match effect:
        case ddl.Truncated(table):
            return _about(followed, table, TableChangeKind.EMPTIED, "the table was emptied")
        case ddl.Dropped(table, is_replaced):
            what = "replaced by an empty one" if is_replaced else "dropped"
            return _about(followed, table, None, f"the table was {what}")
        case ddl.DatabaseDropped(schema) if schema.lower() == followed.table.schema.lower():
            return Verdict(followed, None, "the table was dropped with its database")
        case ddl.Renamed(pairs):
            return _renamed(followed, pairs)
        case ddl.Altered():
            return _altered(followed, effect, is_strict)
    return None


def _about(
    followed: Followed,
    name: ddl.Name,
    kind: TableChangeKind | None,
    why: str,
    columns: frozenset[str] | None = None,
) -> Verdict | None:
    """The verdict if the name is the table's.

    Whether names that differ in case are the same is the server's setting (lower_case_table_names), which the binlog
    does not tell: they may be, so the table halts.
    """
    table = followed.table
    if (name.schema, name.name) == (table.schema, table.name):
        return Verdict(followed, kind, why, columns)
    if (name.schema.lower(), name.name.lower()) == (table.schema.lower(), table.name.lower()):
        return Verdict(followed, None, f"{why}, or one whose name differs in case only", columns)
    return None


def _renamed(followed: Followed, pairs: tuple[tuple[ddl.Name, ddl.Name], ...]) -> Verdict | None:
    """A table that goes takes its rows along; one that comes in its place (gh-ost, pt-online-schema-change) brings its
    own."""
    from ingest import ddl

    own = ddl.Name(followed.table.schema, followed.table.name)
    if all(_about(followed, name, None, "") is None for pair in pairs for name in pair):
        return None
    before: dict[ddl.Name, ddl.Name] = {}  # of a table's name now, the one it had
    for old, new in pairs:
        before[new] = before.pop(old, old)
    if before.get(own, own) != own:
        return Verdict(followed, TableChangeKind.REPLACED, "another table got this table's name")
    gone = [new for new, old in before.items() if old == own and new != own]
    if gone:
        return Verdict(
            followed,
            None,
            f"the table is called {gone[0].schema}.{gone[0].name} now, and no other took its place",
        )
    if own in before:
        return None  # away and back
    return _about_case(followed, pairs)


def _about_case(followed: Followed, pairs: tuple[tuple[ddl.Name, ddl.Name], ...]) -> Verdict | None:
    found = [_about(followed, name, None, "the table was renamed") for pair in pairs for name in pair]
    return next((verdict for verdict in found if verdict is not None), None)


# -- ALTER TABLE ----------------------------------------------------------------------------------------------------


def _altered(followed: Followed, altered: ddl.Altered, is_strict: bool) -> Verdict | None:
    from ingest import ddl

    for change in altered.changes:
        if isinstance(change, ddl.PartitionExchanged):
            verdict = _about(
                followed,
                change.other,
                TableChangeKind.REPLACED,
                "the table's rows were exchanged for a partition's",
            )
            if verdict is not None:
                return verdict
    if _about(followed, altered.table, None, "") is None:
        return None
    lost = _lost(followed, altered, is_strict)
    if lost is not None:
        return _about(followed, altered.table, None, *lost)
    for change in altered.changes:
        if isinstance(change, ddl.PartitionExchanged):
            return _about(
                followed,
                altered.table,
                TableChangeKind.REPLACED,
                "a partition's rows were exchanged for a table's",
            )
        if isinstance(change, ddl.PartitionsEmptied):
            return _about(followed, altered.table, TableChangeKind.THINNED, f"{change.verb} took rows away")
    return _widened(followed, altered) or _redefined(followed, altered)


def _redefined(followed: Followed, altered: ddl.Altered) -> Verdict | None:
    """The values stay, but a SELECT made before may read them wrongly, or a fill's next page begin elsewhere."""
    from ingest import ddl

    table = followed.table
    used = {name.lower() for name in (*followed.columns, *table.paging_key)}
    for change in altered.changes:
        match change:
            case ddl.ColumnDefined(name) | ddl.ColumnRenamed(name) | ddl.ColumnDropped(name) if (
                name.lower() in used
            ):
                why = f"column {name} was changed"
            case ddl.PrimaryKeyAdded() | ddl.PrimaryKeyDropped():
                why = "the primary key was made anew"
            case ddl.Converted():
                why = "the table was converted to a character set"
            case _:
                continue
        return _about(followed, altered.table, TableChangeKind.REDEFINED, why)
    return None


def _widened(followed: Followed, altered: ddl.Altered) -> Verdict | None:
    """A store may have room for the values of before only."""
    from ingest import ddl

    used = {name.lower() for name in followed.columns}
    for change in altered.changes:
        if isinstance(change, ddl.ColumnDefined) and change.old.lower() in used:
            column = next(one for one in followed.table.columns if one.name.lower() == change.old.lower())
            if _is_other(ddl.column_type(column.declared), change.type):
                why = f"column {column.name}, {column.declared} before, was made wider"
                return _about(followed, altered.table, TableChangeKind.WIDENED, why)
    return None


def _is_other(before: ddl.ColumnType, now: ddl.ColumnType) -> bool:
    """Display widths of integers are no difference."""
    if before.word == now.word and before.word in (*_WIDER[0], *_WIDER[1]):
        return False
    return (before.word, before.arguments) != (now.word, now.arguments)


_Loss = tuple[str, frozenset[str] | None]  # why, and of which followed columns; None: of the table


def _lost(followed: Followed, altered: ddl.Altered, is_strict: bool) -> _Loss | None:
    """What of it may change values of followed columns although the next table map may look as before; or None.

    A conversion counts unless the server was told to convert nothing (ALGORITHM=INPLACE or INSTANT, which it refuses
    where it must), or refuses what loses something and the new type only holds more.
    """
    converts_nothing = bool(altered.algorithms) and altered.algorithms <= {"INPLACE", "INSTANT"}
    for change in altered.changes:
        found = _lost_column(followed, change, converts_nothing, is_strict)
        if found is None and (why := _lost_table(followed, altered, change, converts_nothing)) is not None:
            found = why, None
        if found is not None:
            return found
    return None


def _lost_column(
    followed: Followed, change: ddl.Change, converts_nothing: bool, is_strict: bool
) -> _Loss | None:
    """A column that goes counts, for one of that name may come back before the next row event."""
    from ingest import ddl

    used = {name.lower(): name for name in followed.columns}
    match change:
        case ddl.ColumnDropped(name) if name.lower() in used:
            return f"column {name} was dropped", frozenset({used[name.lower()]})
        case ddl.ColumnRenamed(old, new) | ddl.ColumnDefined(old, new) if old.lower() != new.lower():
            if names := frozenset(used[name.lower()] for name in (old, new) if name.lower() in used):
                return f"column {old} was renamed to {new}", names
    if not isinstance(change, ddl.ColumnDefined):
        return None
    name = change.old
    if change.may_be_null and (unique := _unique_with(followed, name)):
        why = f"column {name} may be NULL from then on, and views rely on the unique key ({', '.join(unique)}): "
        return f"{why}NULL identifies nothing", None
    # Which columns a generated one is made from is not known here: any of them may be.
    names = frozenset(
        one for one in followed.columns if one.lower() == name.lower() or _is_generated(followed, one)
    )
    column = followed.table.column(used.get(name.lower(), name))
    if names and not _keeps_values(column, change, converts_nothing, is_strict):
        return f"column {name} was defined anew, and {_UNSEEN}", names
    return None


def _is_generated(followed: Followed, name: str) -> bool:
    column = followed.table.column(name)
    return column is not None and column.is_generated


def _lost_table(
    followed: Followed, altered: ddl.Altered, change: ddl.Change, converts_nothing: bool
) -> str | None:
    """What takes each view of the table along."""
    from ingest import ddl

    match change:
        case ddl.PrimaryKeyDropped() if _key_added(altered) != tuple(
            map(str.lower, followed.table.primary_key)
        ):
            return "the primary key, by which the views tell entities apart, was changed"
        case ddl.IndexDropped(index) | ddl.IndexRenamed(index) if unique := _relied_on(followed, index):
            what = "dropped" if isinstance(change, ddl.IndexDropped) else "renamed"
            return (
                f"index {index} was {what}, and views rely on the unique key ({', '.join(unique)}): without it "
                "rows could share an entity, and fills could miss some"
            )
        case ddl.TablespaceMoved(verb):
            return f"{verb} TABLESPACE took rows away or brought some"
        case ddl.RowsMoved(how):
            return f"{how} changed which rows it has"
        case ddl.RowsForgotten(engine):
            return f"the engine {engine} keeps no rows"
        case ddl.Converted() if not converts_nothing:
            return f"the table was converted to a character set, and {_UNSEEN}"
    return None


def _key_added(altered: ddl.Altered) -> tuple[str, ...]:
    """The columns, in lower case, of the primary key that the statement makes; () where it makes none."""
    from ingest import ddl

    for change in altered.changes:
        if isinstance(change, ddl.PrimaryKeyAdded):
            return tuple(name.lower() for name in change.columns)
    return ()


def _relied_on(followed: Followed, index: str) -> tuple[str, ...] | None:
    """The key that the views rely on and this index stands behind, or may where nobody described the indexes."""
    table = followed.table
    if not table.unique_names:
        return next(iter(followed.keys), None)
    for name, columns in zip(table.unique_names, table.unique_keys, strict=True):
        if name.lower() == index.lower() and any(set(columns) == set(key) for key in followed.keys):
            return columns
    return None


def _unique_with(followed: Followed, column: str) -> tuple[str, ...] | None:
    """The key that the views rely on and this column is a part of."""
    return next((key for key in followed.keys if column.lower() in map(str.lower, key)), None)


def _keeps_values(
    column: Column | None, defined: ddl.ColumnDefined, converts_nothing: bool, is_strict: bool
) -> bool:
    if defined.is_computed or column is None:
        return False  # computed: another expression gives other values, whatever the type
    if column.is_nullable and not defined.may_be_null and not is_strict:
        return False  # MariaDB makes something of each NULL, in place [M, 10.11]
    return converts_nothing or (is_strict and only_widens(column, defined.type))


def only_widens(column: Column, new: ddl.ColumnType) -> bool:
    """Whether a type holds at least what the described one did.

    The character set is not asked for: a server that is strict converts to another exactly or not at all.
    """
    from ingest import ddl

    old = ddl.column_type(column.declared)
    if new.is_unsigned != column.is_unsigned:
        return False
    for family in _WIDER:
        if old.word in family:
            return new.word in family[family.index(old.word) :]
    if new.word != old.word:
        return False
    if new.word in _ONE_LENGTH and len(new.arguments) == 1 and new.arguments[0].isdecimal():
        return int(new.arguments[0]) >= column.length
    if new.word in ("ENUM", "SET"):
        return new.arguments[: len(old.arguments)] == old.arguments
    if new.word.removeprefix("U") == "DECIMAL":
        precision, scale = _digits(new)
        return precision >= column.precision and scale == column.scale
    return new.arguments == old.arguments


def _digits(decimal: ddl.ColumnType) -> tuple[int, int]:
    """Precision and scale of a DECIMAL; (0, 0) where they cannot be read."""
    match decimal.arguments:
        case ():
            return 10, 0
        case (precision,) if precision.isdecimal():
            return int(precision), 0
        case (precision, scale) if precision.isdecimal() and scale.isdecimal():
            return int(precision), int(scale)
    return 0, 0
