"""Which columns of which tables each view reads masked, and why a declaration cannot have them so.

Tables get their masks here, as they are described for a view, and nowhere else: the settings' tags, `masked=` of the
entity and `unmasked=` of the view say which. A masked column is only ever shown. What finds, groups or orders rows is
read from the table as it is, so a masked column has no part in that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations, product

from projectors.views import BoundView, View
from viewtail.changes.errors import DeclarationError
from viewtail.changes.masks import SHORTEST_SECRET, Masks, masked_of_table, of_table
from viewtail.changes.tables import Column, Table, full_name

Describe = Callable[[str, str], Table]
_REMEDY = "say unmasked=[{0!r}] of the view, or take the tag from its comment, or the column out of masked="

_ONE_FORM = (
    "One stream feeds the views of one store, and has each column in one form: leave the column out of one of the two "
    "(fields=, columns=), give both the same unmasked=, or keep one of them in another store or another deployment"
)
MASKS_SECRET = "VIEWTAIL_MASKS__SECRET"
_NO_SECRET = (
    f"column {{0}} of {{1}} is masked by a hash, and there is no secret for it: set {MASKS_SECRET}, or secret under "
    f"[masks] in viewtail.toml, to {SHORTEST_SECRET} characters or more that nobody can guess (openssl rand -hex 32), "
    "and keep it: with another one every hash is another one"
)


def with_masks(views: Sequence[View]) -> list[View]:
    """The same views: a column that one entity masks is masked for the views of all, unless they say unmasked=.

    Raises DeclarationError where two entities mask it in different ways.
    """
    declared: dict[str, tuple[str, View]] = {}
    for view in views:
        for name, how in view.entity.whole_masked:
            other, first = declared.setdefault(name, (how, view))
            if other != how:
                raise DeclarationError(
                    f"view {view.id}: masked: {name} is masked by {how!r}, and by {other!r} for view {first.id}; a "
                    "column is masked in one way in all of views.py: write the same, or unmasked= where it is needed"
                )
    masked = tuple(sorted((name, how) for name, (how, _) in declared.items()))
    return [view.masked_as(masked) for view in views]


class MaskedTables:
    """Describes the tables of one view, with its masks. What is wrong with these is in `problems`."""

    def __init__(self, view: View, describe: Describe, masks: Masks) -> None:
        self._view, self._describe, self._masks = view, describe, masks
        self._asked: set[tuple[str, str]] = set()
        self._known: set[str] = set()  # names of the declaration that are of one of the tables
        self._problems: list[str] = []
        self._unhashed: set[tuple[str, str]] = set()  # columns by their tables, for want of a secret

    def __call__(self, schema: str, name: str) -> Table:
        """Raises what describing the table does."""
        table = self._describe(schema, name).stored
        own = full_name(*self._view.entity.schema_and_table)
        declared, columns = dict(self._view.masked), [column.name for column in table.columns]
        found = masked_of_table(declared, own, (schema, name), columns)
        how = {column: declared[whole] for column, whole in found.items()}
        masked = masked_of_table(dict(self._view.entity.masked), own, (schema, name), columns)
        unmasked = of_table(self._view.unmasked, own, schema, name)
        if (schema, name) not in self._asked:
            self._asked.add((schema, name))
            self._known.update(masked.values(), unmasked.values())
            self._problems += self._masks.problems(table, how, [*unmasked])
            unhashed = self._masks.unhashed(table, how, [*unmasked])
            self._unhashed.update((table.full_name, column) for column in unhashed)
        return self._masks.table(table, how, [*unmasked])

    def problems(self) -> list[str]:
        """What is wrong, once all tables were asked for."""
        unknown = [
            f"{what}: {name} is of no table of the view; a column of a related table is written schema.table.column"
            for what, names in (("masked", dict(self._view.entity.masked)), ("unmasked", self._view.unmasked))
            for name in names
            if name not in self._known
        ]
        return self._problems + unknown

    def problems_of_use(self, bound: BoundView) -> Iterator[str]:
        """Which columns the view uses that cannot be masked for want of a secret."""
        for table, columns in _read(bound):
            for name in columns:
                if (table.full_name, name) in self._unhashed:
                    yield _NO_SECRET.format(name, table.full_name)


def check_plain(column: Column, table: Table, use: str) -> None:
    """Raises DeclarationError for a masked column where its stored values are what counts."""
    if column.mask is not None:
        raise DeclarationError(not_plain(column, table, use))


def not_plain(column: Column, table: Table, use: str) -> str:
    """The message that a masked column cannot be used so."""
    return (
        f"column {column.name} of {table.full_name} is masked, and {use}, for which its values are read as they are; "
        + _REMEDY.format(f"{table.full_name}.{column.name}")
    )


def structural_problems(view: View, table: Table, key: Sequence[str]) -> Iterator[str]:
    """The columns that say which rows there are, and in which order, where one is masked."""
    entity = view.entity
    uses = [
        *((name, "part of the key, by which its row is looked for") for name in key),
        *((name, "part of the key by which the table is read in pages") for name in table.paging_key),
        (entity.version, "the version column"),
        (entity.order, "the column by whose ids the table is polled"),
        (entity.body, "the body, of which only parts would be people's data"),
        *((name, "what says which rows are the entity's") for name, _ in entity.only),
        (table.row_end, "the end of a row's validity"),
    ]
    seen: set[str] = set()
    for name, use in uses:
        column = None if name is None else table.column(name)
        if column is not None and column.mask is not None and column.name not in seen:
            seen.add(column.name)
            yield not_plain(column, table, f"it is {use}")


def _read(view: BoundView) -> Sequence[tuple[Table, Sequence[str]]]:
    """Each table that the view's rows are made of, with the columns that it uses."""
    if view.derived is None:
        return [(view.table, view.needed)]
    return [(part.table, part.columns) for part in view.derived.parts]


def conflicts(views: Sequence[BoundView]) -> Iterator[str]:
    """Views of one store of which one needs a column as it is, and another has it masked.

    Their stream has each column once, and no view that has it masked may get it otherwise.
    """
    for first, second in combinations(views, 2):
        if first.view.store == second.view.store:
            for (ours, names), (theirs, others) in product(_read(first), _read(second)):
                for here, there in _masked_otherwise(ours, theirs, {*names}.intersection(others)):
                    yield (
                        f"view {second.id}: column {here.name} of {ours.full_name} is {_shown(there)} for it and "
                        f"{_shown(here)} for view {first.id}. {_ONE_FORM}"
                    )


def _masked_otherwise(ours: Table, theirs: Table, names: Collection[str]) -> Iterator[tuple[Column, Column]]:
    """The columns of these names, where it is one table that two views see."""
    if (ours.schema, ours.name) == (theirs.schema, theirs.name):
        for here in ours.columns:
            there = theirs.column(here.name)
            if here.name in names and there is not None and here.mask != there.mask:
                yield here, there


def _shown(column: Column) -> str:
    return "unmasked" if column.mask is None else f"masked ({column.mask.how})"
