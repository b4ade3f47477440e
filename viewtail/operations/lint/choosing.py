"""Which rules count, and where: all of them, those that are selected, and what is ignored, by settings or comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from viewtail.changes.errors import MisuseError
from viewtail.operations.lint import changes, columns, keys, names, statements
from viewtail.operations.lint.rules import Rule
from viewtail.operations.lint.schema import Place
from viewtail.servers.quoted import QUOTED

RULES: Sequence[Rule] = (*names.RULES, *columns.RULES, *keys.RULES, *statements.RULES, *changes.RULES)

_COMMENT = re.compile(rf"(?:{QUOTED})|(?P<comment>--[ \t][^\n]*|\#[^\n]*|/\*.*?(?:\*/|\Z))", re.DOTALL)
_IGNORE = re.compile(r"viewtail:\s*ignore\b(?P<codes>[ \t]+VT\w*(?:[ \t]*,?[ \t]*VT\w+)*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rules that count.

    Args:
        select: codes, or what they begin with: VT1.
        ignore: the same; `VT104:shop.order` only for what has such a name, with * for anything.

    Raises MisuseError for what is no rule.
    """

    select: Sequence[str] = ("VT",)
    ignore: Sequence[str] = ()

    def __post_init__(self) -> None:
        for code in (*self.select, *(each.partition(":")[0] for each in self.ignore)):
            check_code(code)

    @property
    def rules(self) -> list[Rule]:
        whole = tuple(each for each in self.ignore if ":" not in each)
        return [rule for rule in RULES if rule.code.startswith(tuple(self.select)) and not rule.code.startswith(whole)]

    def is_ignored(self, code: str, of: str) -> bool:
        """Return whether a rule is ignored for what has a name."""
        patterns = (each.partition(":") for each in self.ignore if ":" in each)
        return any(
            code.startswith(prefix) and (fnmatchcase(of, pattern) or fnmatchcase(of, f"{pattern}.*"))
            for prefix, _, pattern in patterns
        )


def check_code(code: str, where: str = "") -> None:
    """Raise MisuseError for what is no code, and begins none."""
    if not code or not any(rule.code.startswith(code) for rule in RULES):
        codes = f"{RULES[0].code} to {RULES[-1].code}"
        raise MisuseError(f"{where}{code or 'nothing'} is no rule, nor the beginning of some: there are {codes}")


@dataclass(slots=True)
class Silenced:
    """What comments of one file silence: `-- viewtail: ignore VT101`.

    A comment behind something silences its line; one on a line of its own the next line, and where a statement begins
    there, the whole statement.
    """

    _lines: dict[int, set[str]] = field(default_factory=dict)
    _statements: dict[int, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: str, text: str) -> Silenced:
        """Read the comments of a file. Raises MisuseError for a code that is none."""
        silenced = cls()
        lines = text.split("\n")
        for match in _COMMENT.finditer(text):
            comment = match["comment"]
            if comment is None or (ignore := _IGNORE.search(comment)) is None:
                continue
            line = text.count("\n", 0, match.start() + ignore.start()) + 1
            codes = re.findall(r"VT\w*", (ignore["codes"] or "").upper())
            for code in codes or [""]:
                check_code(code, f"{file}:{line}: viewtail: ignore: ")
            is_alone = not lines[line - 1].partition(comment[:2])[0].strip()
            silenced._add(_next_line(lines, line) if is_alone else line, codes, is_alone=is_alone)
        return silenced

    def _add(self, line: int, codes: Iterable[str], *, is_alone: bool) -> None:
        self._lines.setdefault(line, set()).update(codes)
        if is_alone:
            self._statements.setdefault(line, set()).update(codes)

    def is_silent(self, code: str, place: Place) -> bool:
        """Return whether a finding is silenced."""
        codes = self._lines.get(place.line, set()) | self._statements.get(place.statement, set())
        return code.startswith(tuple(codes))


def _next_line(lines: Sequence[str], line: int) -> int:
    """The next line that is neither empty nor a comment."""
    for number, text in enumerate(lines[line:], start=line + 1):
        if text.strip() and not text.lstrip().startswith(("--", "#", "/*")):
            return number
    return line
