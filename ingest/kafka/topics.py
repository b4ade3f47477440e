"""Which topic holds the changes of which table, and which groups share them out: the settings `topics`, `group`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingest import SourceAccess, Tables
from viewtail.changes.tables import full_name, names_of


def topics_of(tables: Tables, given: Iterable[str]) -> Mapping[tuple[str, str], str]:
    """By table: its topic.

    Of `given`, 'schema.table=topic' names a table's topic. A topic alone is that of the table whose full name it has,
    or ends with behind a dot, as Debezium calls them: 'prefix.schema.table'. Other tables have the topic of their name.
    """
    named = dict(_named(_normal(one)) for one in given if "=" in one)
    alone = [one for one in given if "=" not in one]
    return {table: _topic_of(table, named, alone) for table in tables}


def idle(tables: Tables, given: Iterable[str]) -> list[str]:
    """Of `given`, what names the topic of none of these tables."""
    used = set(topics_of(tables, given).items())
    pairs = {one for (schema, table), topic in used for one in (topic, f"{full_name(schema, table)}={topic}")}
    return [one for one in given if _normal(one) not in pairs]


def groups_of(access: SourceAccess) -> str:
    """What the names of a deployment's consumer groups begin with; behind it comes the store."""
    return f"{access.section.group or f'viewtail.{access.own_database}'}."


def check_form(given: str) -> None:
    """Raises ValueError for what cannot be an entry."""
    table, is_named, topic = given.rpartition("=")
    if not topic or (is_named and (not table or "=" in table)):
        raise ValueError(f"{given!r}: write TOPIC or SCHEMA.TABLE=TOPIC")


def _named(given: str) -> tuple[str, str]:
    table, _, topic = given.rpartition("=")
    return table, topic


def _normal(given: str) -> str:
    """With the table's name as viewtail writes it: in backticks where that is needed."""
    table, is_named, topic = given.rpartition("=")
    names = names_of(table)
    return f"{full_name(*names)}={topic}" if is_named and names is not None else given


def _topic_of(names: tuple[str, str], named: Mapping[str, str], alone: Iterable[str]) -> str:
    whole, table = full_name(*names), ".".join(names)
    if whole in named:
        return named[whole]
    return next((topic for topic in alone if topic == table or topic.endswith(f".{table}")), table)
