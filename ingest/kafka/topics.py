"""Reads the settings `topics` and `group`: each table's topic, and the names of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingest import SourceAccess, Tables
from viewtail.changes.tables import full_name, names_of


def topics_of(tables: Tables, given: Iterable[str]) -> Mapping[tuple[str, str], str]:
    """The topic of each table; ('', TOPIC) is a topic by its own name.

    In `given`, 'schema.table=topic' names a table's topic. An entry without '=' is the topic of the table whose full
    name it has, or ends with behind a dot, as Debezium names them: 'prefix.schema.table'. Other tables have the topic
    of their own name."""
    entries = [_parsed(entry) for entry in given]
    named, alone = dict(entry for entry in entries if entry[0]), [topic for table, topic in entries if not table]
    return {table: _topic_of(table, named, alone) if table[0] else table[1] for table in tables}


def idle(tables: Tables, given: Iterable[str]) -> list[str]:
    """The entries of `given` that name no topic of these tables."""
    used = set(topics_of(tables, given).items())
    pairs = {(name, topic) for (schema, table), topic in used if schema for name in ("", full_name(schema, table))}
    return [entry for entry in given if _parsed(entry) not in pairs]


def groups_of(access: SourceAccess) -> str:
    """The prefix of a deployment's consumer groups, which the name of the store follows."""
    return f"{access.section.group or f'viewtail.{access.own_database}'}."


def check_form(given: str) -> None:
    """Raise ValueError for an entry of another form."""
    table, is_named, topic = given.rpartition("=")
    if not topic or (is_named and (not table or "=" in table)):
        raise ValueError(f"{given!r}: write TOPIC or SCHEMA.TABLE=TOPIC")


def _parsed(entry: str) -> tuple[str, str]:
    """The table as viewtail writes its name, in backticks if it needs them, '' where none is named; and the topic."""
    table, _, topic = entry.rpartition("=")
    names = names_of(table)
    return table if names is None else full_name(*names), topic


def _topic_of(names: tuple[str, str], named: Mapping[str, str], alone: Iterable[str]) -> str:
    whole, table = full_name(*names), ".".join(names)
    if whole in named:
        return named[whole]
    return next((topic for topic in alone if topic == table or topic.endswith(f".{table}")), table)
