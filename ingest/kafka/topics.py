"""Which topic holds the changes of which table, and which groups share them out: the settings `topics`, `group`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingest import SourceAccess, Tables


def topics_of(tables: Tables, given: Iterable[str]) -> Mapping[tuple[str, str], str]:
    """By table: its topic.

    Of `given`, 'schema.table=topic' names a table's topic. A topic alone is that of the table whose full name it has,
    or ends with behind a dot, as Debezium calls them: 'prefix.schema.table'. Other tables have the topic of their name.
    """
    named = dict(_named(one) for one in given if "=" in one)
    alone = [one for one in given if "=" not in one]
    return {table: _topic_of(".".join(table), named, alone) for table in tables}


def idle(tables: Tables, given: Iterable[str]) -> list[str]:
    """Of `given`, what names the topic of none of these tables."""
    used = set(topics_of(tables, given).items())
    pairs = {one for (schema, table), topic in used for one in (topic, f"{schema}.{table}={topic}")}
    return [one for one in given if one not in pairs]


def groups_of(access: SourceAccess) -> str:
    """What the names of a deployment's consumer groups begin with; behind it comes the store."""
    return f"{access.section.group or f'viewtail.{access.own_database}'}."


def check_form(given: str) -> None:
    """Raises ValueError for what cannot be an entry."""
    table, is_named, topic = given.rpartition("=")
    if not topic or (is_named and (not table or "=" in table)):
        raise ValueError(f"{given!r}: write TOPIC or SCHEMA.TABLE=TOPIC")


def _named(given: str) -> tuple[str, str]:
    table, _, topic = given.partition("=")
    return table, topic


def _topic_of(table: str, named: Mapping[str, str], alone: Iterable[str]) -> str:
    if table in named:
        return named[table]
    return next((topic for topic in alone if topic == table or topic.endswith(f".{table}")), table)
