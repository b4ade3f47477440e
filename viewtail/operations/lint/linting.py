"""Holds a schema, or migrations over one, against the rules.

A dump, or what a server shows, is read with `define`: it is what there is. A migration is read with `migrate`: rules
about statements look at each of its changes before it is made, and rules about tables, in the end, at what it defined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingest.sql_words import Name, Unread
from projectors.binding import Describe
from projectors.views import View
from viewtail.operations.contract import Contract, Effect, missed
from viewtail.operations.lint.choosing import Chosen, Silenced
from viewtail.operations.lint.reading import read
from viewtail.operations.lint.renames import Renames
from viewtail.operations.lint.rules import Migration, Problem, Rule, Step
from viewtail.operations.lint.schema import Change, Place, Schema, TableCreated, TablesRenamed
from viewtail.operations.lint.temporary import Temporary
from viewtail.operations.lint.words import is_to_drop
from viewtail.operations.sql_files import Statement, statements
from viewtail.operations.sql_forms import is_definition, why_unread
from viewtail.operations.sql_session import Session

UNREAD = "VT001"  # of a statement that cannot be read: no rule, and never ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlFile:
    """A file with statements, or one that a server shows: then it has no name."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that a rule found, or a statement that cannot be read."""

    code: str
    level: str
    rule: str
    file: str  # '': it is on a server
    line: int
    of: str
    why: str
    instead: str


@dataclass(slots=True)
class _Readers:
    """What those lose who read changes, gathered while a migration is read."""

    contract: Contract
    broken: list[tuple[Place, Effect]] = field(default_factory=list)
    lost: list[tuple[Place, Name, str]] = field(default_factory=list)
    unlogged: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class Linter:
    """Reads definitions and migrations, and finds what the chosen rules say of them.

    Args:
        chosen: the rules that count.
        database: of names without one, until a USE.
    """

    chosen: Chosen
    database: str
    schema: Schema = field(default_factory=Schema)
    unread: list[Finding] = field(default_factory=list)
    _rules: Sequence[Rule] = field(init=False)
    _problems: list[tuple[Rule, Problem]] = field(default_factory=list)
    _silenced: dict[str, Silenced] = field(default_factory=dict)  # by file
    _files: set[str] = field(default_factory=set)  # that answer for what they define
    _made: set[Name] = field(default_factory=set)
    _renames: Renames = field(default_factory=Renames)  # of the file that is read
    _temporary: Temporary = field(default_factory=Temporary)  # the same

    def __post_init__(self) -> None:
        self._rules = self.chosen.rules

    def define(self, file: SqlFile, *, is_judged: bool) -> None:
        """Read what there is. Raises MisuseError for a comment that silences what is no rule.

        Args:
            file: a dump, or a definition that the server shows.
            is_judged: its definitions are what is looked at, and are not only what a migration begins with.
        """
        if is_judged:
            self._files.add(file.name)
        self._silenced[file.name] = Silenced.of(file.name, file.text)
        for _, place, changes in self._read(file, Session(self.database), is_dump=True):
            for change in changes:
                self.schema.apply(change, place)

    def migrate(self, files: Sequence[SqlFile], views: Sequence[View], describe: Describe | None) -> None:
        """Read migrations, one after the other, for the views that are declared.

        Args:
            files: in the order in which they run.
            views: as declared; they may be none.
            describe: a table as it is now; None: no server can be asked.
        """
        readers = _Readers(Contract(views, describe, self.database))
        for file in files:
            self._files.add(file.name)
            self._silenced[file.name] = Silenced.of(file.name, file.text)
            self._migrate(file, readers)
        migration = Migration(broken=readers.broken, lost=readers.lost, unlogged=readers.unlogged)
        self._find(migration)

    def findings(self) -> list[Finding]:
        """What the rules found, file by file and line by line, without what is silenced."""
        for table in self.schema:
            self._find(table)
        for program in self.schema.programs:
            self._find(program)
        found = [_finding(rule, problem) for rule, problem in self._problems if self._counts(rule, problem)]
        self._problems.clear()
        return sorted(
            dict.fromkeys([*self.unread, *found]), key=lambda finding: (finding.file, finding.line, finding.code)
        )

    def _migrate(self, file: SqlFile, readers: _Readers) -> None:
        session, known = Session(self.database), self._named_in(file.text)
        self._renames, self._temporary = Renames(), Temporary()
        was_unlogged = False
        for text, place, changes in self._read(file, session, is_dump=False):
            if session.is_unlogged and not was_unlogged:
                readers.unlogged.append(place)
            was_unlogged = session.is_unlogged
            readers.lost += [(place, *loss) for loss in missed(text, session, known)]
            self._step(changes, place)
        self._ask_contract(file, readers)

    def _named_in(self, text: str) -> list[Name]:
        """The tables that there are and that a text may name; not those that are about to be dropped."""
        folded = text.casefold()
        names = [table.name for table in self.schema if table.name not in self._made]
        return [name for name in names if name.name.casefold() in folded and not is_to_drop(name.name)]

    def _ask_contract(self, file: SqlFile, readers: _Readers) -> None:
        def placed(line: int) -> Place:
            return Place(file=file.name, line=line, statement=line)

        contract = readers.contract
        contract.session = Session(self.database)  # a USE or SET ends with its file
        effects = contract.check(statements(file.text))
        readers.broken += [(placed(effect.line), effect) for effect in effects if effect.breaks]
        for unread in contract.unread:
            self._note_unread(placed(unread.line), unread.statement, unread.why)
        contract.unread.clear()

    def _step(self, changes: Sequence[Change], place: Place) -> None:
        for change in changes:
            self._temporary.note(change)
            if self._temporary.is_changed_by(change):
                continue
            made = frozenset(self._made)
            self._find(Step(change=change, place=place, schema=self.schema, made=made, renames=self._renames))
            if isinstance(change, TableCreated) and self.schema.makes(change):
                self._made.add(change.definition.name)
            if isinstance(change, TablesRenamed):
                self._made |= {new for old, new in change.pairs if old in self._made}
            self._renames.note(change)
            self.schema.apply(change, place)

    def _read(self, file: SqlFile, session: Session, *, is_dump: bool) -> Iterator[tuple[str, Place, Sequence[Change]]]:
        """The plain text of each statement, its place and its changes; those that cannot be read are noted."""
        for statement in statements(file.text):
            text = session.text_of(statement)
            place = Place(file=file.name, line=statement.line, statement=statement.line)
            # What a server shows is not misspelt, and looking at its forms is two thirds of the time.
            if file.name and (why := why_unread(text, session.database)):
                self._note_unread(place, session.shown(text), why)
                continue
            if session.follow(text):
                yield text, place, ()
                continue
            try:
                changes = [] if is_dump and not is_definition(text) else _changes(text, session, file, statement)
            except Unread as error:
                self._note_unread(place, session.shown(text), f"viewtail does not know {error}")
                continue
            yield text, place, changes

    def _note_unread(self, place: Place, shown: str, why: str) -> None:
        finding = Finding(
            code=UNREAD,
            level="error",
            rule="unread",
            file=place.file,
            line=place.line,
            of=shown,
            why=why,
            instead="correct what is misspelt; write out what another file, a procedure or a prepared statement runs",
        )
        if not any((other.file, other.line) == (finding.file, finding.line) for other in self.unread):
            self.unread.append(finding)

    def _find(self, subject: Any) -> None:
        for rule in self._rules:
            if rule.about is type(subject):
                self._problems += [(rule, problem) for problem in rule.find(subject)]

    def _counts(self, rule: Rule, problem: Problem) -> bool:
        place = problem.place
        if place.file not in self._files or self.chosen.is_ignored(rule.code, problem.of):
            return False
        return not self._silenced[place.file].is_silent(rule.code, place)


def _changes(text: str, session: Session, file: SqlFile, statement: Statement) -> list[Change]:
    def placed(line: int) -> Place:
        return Place(file=file.name, line=statement.line + line - 1, statement=statement.line)

    return read(text, session.database, placed)


def _finding(rule: Rule, problem: Problem) -> Finding:
    return Finding(
        code=rule.code,
        level=rule.level.value,
        rule=rule.name,
        file=problem.place.file,
        line=problem.place.line if problem.place.file else 0,
        of=problem.of,
        why=problem.why,
        instead=problem.instead or rule.instead,
    )
