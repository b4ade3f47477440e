"""Checks the pages for readers: their size, links, examples in Python, the files and commands that they name, and
phrases that need a second reading.

python docs/lint.py    # exit 1, with a line for each finding, when a page needs work

Pages are README.md, docs/ and the README of each package. `make lint` calls it.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import typer

from viewtail.main import app

CHECKOUT = Path(__file__).resolve().parent.parent
MAX_BYTES = 30_000
LARGER = {"views.md": 46_000}  # the reference of all declarations

# What a reader has to read twice, and what to write instead.
RIDDLES = {
    r"\b(?:is|are|was|were|be) told\b": "name who reports: 'X reports', 'says'",
    r"\banew\b": "'again', 'restarts', 'redefined'",
    r"\btells? (?:of|nobody)\b": "'reports', 'names'",
    r"\bnobody can tell\b": "say what is not known",
    r"\basks nobody\b": "say what it does without asking",
    r"\bwhatever became of\b": "say what may have happened to it",
    r"(?:^|[.:;] |- |\| )Of (?:an?|the|such|one|what)\b": "begin with the thing itself, or with 'For'",
    r"(?:^|[.:;] |- )So (?:is|are|was|were|has|have|does|do|it is)\b": "repeat the verb: 'X is ... too'",
    r"(?:^|[.:;] |- )(?:That|Those|This) (?:is|are) (?:not )?so\b": "say what is true",
}

_CODE = re.compile(r"^ {4,}[^\n]*$|^```.*?^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w*][\w*./-]*\.(?:py|md|sql|json|toml|yml)|\w[\w./-]*/)`")
_USERS = {"views.py", "entities.py", "viewtail.toml"}  # files of those who use viewtail
_COMMAND = re.compile(r"^ *(?:\$ )?viewtail ([^\n]+)", re.MULTILINE)
_INLINE_COMMAND = re.compile(r"`viewtail ([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """The pages that are checked."""
    packages = [page for page in CHECKOUT.glob("*/**/README.md") if not _is_hidden(page)]
    return [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md")), *sorted(packages)]


def findings(page: Path) -> Iterator[str]:
    """What is to be mended on one page, a sentence each."""
    text = page.read_text()
    yield from too_large(page.name, text)
    yield from broken_links(page, text)
    yield from broken_examples(text)
    yield from wrong_commands(text)
    yield from riddles(text)
    if page.name == "README.md" and page.parent != CHECKOUT:
        yield from missing_files(page.parent, text)


def too_large(name: str, text: str) -> Iterator[str]:
    """Whether a page has more than MAX_BYTES, or the bound that LARGER has for it."""
    limit = LARGER.get(name, MAX_BYTES)
    if (size := len(text.encode())) > limit:
        yield f"has {size:,} bytes, above {limit:,}: say it shorter, or split it by what a reader wants to do"


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Links to files and headings that are not there; other sites are not asked."""
    for link in _LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists():
            yield f"links to {link}, which is not there"
        elif anchor and anchor not in anchors(target.read_text()):
            yield f"links to {link}, and {target.name} has no such heading"


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_examples(text: str) -> Iterator[str]:
    """Examples that are no Python."""
    for example in _PYTHON.findall(text):
        try:
            ast.parse(textwrap.dedent(example))
        except SyntaxError as error:
            yield f"has an example that is no Python, at its line {error.lineno}: {error.msg}"


def missing_files(package: Path, text: str) -> Iterator[str]:
    """Files that the README of a package names, and that are neither in it nor in the checkout."""
    for name in dict.fromkeys(_FILE.findall(text)):
        is_there = any(CHECKOUT.glob(name)) or any(package.rglob(name.rstrip("/")))
        if not is_there and name not in _USERS:
            yield f"names `{name}`, which is not there"


def wrong_commands(text: str) -> Iterator[str]:
    """Commands of viewtail in code, or options of them, that do not exist. Values are not looked at."""
    blocks = "\n".join(_CODE.findall(text))
    for line in (*_COMMAND.findall(blocks), *_INLINE_COMMAND.findall(_CODE.sub("", text))):
        # Behind two spaces a list says what the command does, and behind "…" anything may come.
        words = [word.strip("[](),") for word in re.split(r"  | #|…", line)[0].replace("|", " ").split()]
        if problem := _wrong_word(words):
            yield f"has `viewtail {' '.join(words)}`: {problem}"


def _wrong_word(words: Sequence[str]) -> str | None:
    command, path = _commands(), "viewtail"
    for word in words:
        options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
        options |= {option for parameter in command.params for option in parameter.secondary_opts}
        members = getattr(command, "commands", {})
        if re.match(r"--?[a-z]", word):
            if word.partition("=")[0] not in options:
                return f"{path} has no option {word}"
        elif word in members:
            command, path = members[word], f"{path} {word}"
        elif members and re.fullmatch(r"[a-z][a-z-]*", word):
            return f"{path} has no command {word}"
    return None


@cache
def _commands() -> Any:
    return typer.main.get_command(app)


def riddles(text: str) -> Iterator[str]:
    """Phrases of RIDDLES in prose; a sentence may go over the end of a line."""
    prose = _CODE.sub("", text)
    prose = re.sub(r"`[^`\n]+`", "CODE", prose)
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#]|\d+\. )", prose):
        line = " ".join(paragraph.split())
        for phrase, advice in RIDDLES.items():
            if found := re.search(phrase, line):
                around = line[max(0, found.start() - 30) : found.end() + 30]
                yield f"has a phrase that needs a second reading, '...{around}...': {advice}"


def _is_hidden(page: Path) -> bool:
    return any(part.startswith(".") for part in page.relative_to(CHECKOUT).parts)


def main() -> int:
    """Print the findings on all pages; 1 where there is one."""
    count = 0
    for page in pages():
        for finding in findings(page):
            print(f"{page.relative_to(CHECKOUT)} {finding}", file=sys.stderr)
            count += 1
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main())
