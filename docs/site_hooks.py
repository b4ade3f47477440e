"""What mkdocs does besides, to build the site of these pages: `make site`, which reads mkdocs.yml.

Pages are written for a code host, where links lead to files of the repository outside docs/: examples, deploy/, READMEs
of packages. Here each such file becomes a page of the site, below files/. Nothing else is changed: a test compares
what the site shows of each page with what CommonMark says.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

CHECKOUT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file outside docs/ that a page, or such a file, links to."""
    todo = [f"docs/{file.src_uri}" for file in files if file.is_documentation_page()]
    seen = {*todo}
    for path in todo:  # it grows
        for target in _targets(path):
            if target not in seen and not target.startswith("docs/"):
                seen.add(target)
                todo.append(target)
                page = File.generated(
                    config, _page_of(target), content=_shown(target), inclusion=InclusionLevel.NOT_IN_NAV
                )
                files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links to the pages that on_files added."""
    path = _path_of(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target = posixpath.relpath(_page_of(_resolved(path, found[1])), posixpath.dirname(page.file.src_uri) or ".")
        return target + (found[2] or "")

    return _LINK.sub(link, markdown)


def _targets(path: str) -> Iterator[str]:
    """Files of the repository to which that page links."""
    if path.endswith(".md"):
        for found in _LINK.finditer((CHECKOUT / path).read_text()):
            yield _resolved(path, found[1])


def _resolved(path: str, link: str) -> str:
    """The file that a link on a page leads to, from the top of the repository."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{target}/README.md" if (CHECKOUT / target).is_dir() else target


def _page_of(path: str) -> str:
    """Where the site has a file of the repository; mkdocs makes pages of what ends with .md."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    # A README would be the index of its folder.
    return f"files/{path.replace('README.md', 'readme.md')}" + ("" if path.endswith(".md") else ".md")


def _path_of(src_uri: str) -> str:
    """The other way round."""
    if not src_uri.startswith("files/"):
        return f"docs/{src_uri}"
    path = src_uri.removeprefix("files/").replace("readme.md", "README.md")
    return path if (CHECKOUT / path).exists() else path.removesuffix(".md")


def _shown(path: str) -> str:
    """A page of a file: itself, where it is Markdown, or its text as code."""
    text = (CHECKOUT / path).read_text()
    if path.endswith(".md"):
        return text
    return f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n```{Path(path).suffix.lstrip('.')}\n{text}```\n"
