"""Takes SQL of MySQL and MariaDB apart into words, with sqlglot's tokenizer, and reads names from them.

What the words mean is the caller's business: ingest/ddl.py knows what a statement does to tables. Importing this module
costs 17 MiB: do it when there is a statement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot.dialects.mysql import MySQL
from sqlglot.tokenizer_core import Token, TokenType

logging.getLogger("sqlglot").disabled = True  # it logs the text of statements it does not know


class Unread(Exception):
    """The statement, or the part of it that the message shows, cannot be read."""


@dataclass(frozen=True, slots=True)
class Name:
    """A table; the schema is the session's where the statement names none."""

    schema: str
    name: str


class _Tokenizer(MySQL.Tokenizer):
    # As they are, the rest of such a statement would be one token.
    COMMANDS = MySQL.Tokenizer.COMMANDS - {TokenType.COMMAND, TokenType.RENAME, TokenType.SHOW}


class _Dialect(MySQL):
    Tokenizer = _Tokenizer


DIALECT = _Dialect()


Naming: TypeAlias = "Callable[[Name], Name]"


def as_written(name: Name) -> Name:
    """A table's name where names that differ in case are those of different tables."""
    return name


def folding(tables: Iterable[tuple[str, str]]) -> Naming:
    """Table names where case does not tell them apart: those of `tables` as they are, others in lower case."""
    known = {(schema.lower(), name.lower()): Name(schema, name) for schema, name in tables}

    def named(name: Name) -> Name:
        lower = name.schema.lower(), name.name.lower()
        return known.get(lower) or Name(*lower)

    return named


class Words:
    """The tokens of a statement, read from the left."""

    def __init__(self, tokens: Sequence[Token], statement: str, database: str, naming: Naming) -> None:
        self._tokens = tokens
        self._statement = statement
        self._database = database
        self._naming = naming
        self._at = 0

    @classmethod
    def of(cls, statement: str, database: str, naming: Naming = as_written) -> Words:
        """The words of a whole statement. Raises sqlglot's errors, and Unread where it reads names."""
        return cls(DIALECT.tokenize(statement), statement, database, naming)

    def is_done(self) -> bool:
        return self._at >= len(self._tokens)

    def peek(self) -> str:
        """The next word in capitals; '' for a quoted one and at the end."""
        return "" if self.is_done() else _word(self._tokens[self._at])

    @property
    def line(self) -> int:
        """The line of the next word in the statement, from 1; at the end that of the last one."""
        return self._tokens[min(self._at, len(self._tokens) - 1)].line if self._tokens else 1

    def take(self) -> str:
        word = self.peek()
        self._at += 1
        return word

    def value(self) -> str:
        """The text of the next word, without its quotes; stepped over."""
        if self.is_done():
            raise Unread("a value is missing at its end")
        self._at += 1
        return self._tokens[self._at - 1].text

    def enclosed(self) -> Words:
        """The words in the parentheses that open here, which are stepped over."""
        if not self.skip("("):
            raise Unread(f"{self.peek() or 'the end'} where a parenthesis should open")
        inner = self.inside()
        self._at += len(inner._tokens) + 1
        return inner

    def skip(self, *words: str) -> bool:
        """Step over these words if they come next, in this order."""
        ahead = tuple(_word(token) for token in self._tokens[self._at : self._at + len(words)])
        if ahead == words:
            self._at += len(words)
        return ahead == words

    def name(self) -> Name:
        """A table's name, with or without its schema."""
        first = self.identifier()
        if self.skip("."):
            return self._naming(Name(first, self.identifier()))
        return self._naming(Name(self._database, first))

    def last_name(self) -> Name:
        """A name behind which nothing may come that means something."""
        name = self.name()
        self.check_done()
        return name

    def check_done(self) -> None:
        """Raises Unread where more comes than words that change nothing, and MariaDB's waiting time."""
        self.skip_wait()
        if not self.skip("RESTRICT"):
            self.skip("CASCADE")
        if not self.is_done():
            raise Unread(f"{self.peek()} where the statement should end")

    def skip_wait(self) -> None:
        if self.skip("WAIT"):
            self._at += 1
        else:
            self.skip("NOWAIT")

    def identifier(self) -> str:
        if self.is_done():
            raise Unread("a name is missing at its end")
        token = self._tokens[self._at]
        self._at += 1
        if token.token_type is TokenType.IDENTIFIER:
            return token.text
        is_word = token.text.replace("_", "a").replace("$", "a").isalnum()
        if token.token_type is TokenType.STRING or not is_word:
            raise Unread(f"{_word(token) or 'a text'} where a name should be")
        return token.text

    def specifications(self) -> Iterator[Words]:
        """The parts between commas that are in no parentheses."""
        depth, begin = 0, self._at
        for at in range(self._at, len(self._tokens)):
            word = _word(self._tokens[at])
            depth += (word == "(") - (word == ")")
            if word == "," and not depth:
                yield self._part(begin, at)
                begin = at + 1
        yield self._part(begin, len(self._tokens))

    def inside(self) -> Words:
        """The words up to the parenthesis that closes the one that was just read."""
        depth = 1
        for at in range(self._at, len(self._tokens)):
            word = _word(self._tokens[at])
            depth += (word == "(") - (word == ")")
            if not depth:
                return self._part(self._at, at)
        raise Unread("a parenthesis that is not closed")

    def behind(self) -> Words:
        """The words behind the next one."""
        return self._part(self._at + 1, len(self._tokens))

    def _part(self, begin: int, end: int) -> Words:
        return Words(self._tokens[begin:end], self._statement, self._database, self._naming)

    def words(self) -> list[str]:
        """All words that are left, as `peek` gives them."""
        return [_word(token) for token in self._tokens[self._at :]]

    def outline(self) -> str:
        """The words that are left, with '?' for a quoted one, and '()' for what is in parentheses."""
        shown: list[str] = []
        depth = 0
        for word in self.words():
            depth -= word == ")"
            if not depth:
                shown.append("()" if word == ")" else word or "?")
            depth += word == "("
            if word == "(" and depth == 1:
                shown.pop()
        return " ".join(shown)

    def text(self) -> str:
        """The statement's own text of all tokens."""
        if not self._tokens:
            return ""
        return self._statement[self._tokens[0].start : self._tokens[-1].end + 1]


def _word(token: Token) -> str:
    if token.token_type in (TokenType.IDENTIFIER, TokenType.STRING):
        return ""
    return " ".join(token.text.upper().split())
