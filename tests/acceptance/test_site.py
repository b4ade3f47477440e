"""The site that `make site` builds: whole, the same as the pages, with nothing from elsewhere, and searchable."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Page, expect

from tests.support.browser import Look, Visitor, violations

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
# What a page says, in which form: paragraphs inside lists are left out, since the dialects differ in where these are.
FORMS = {*("h1", "h2", "h3", "h4", "ul", "ol", "li", "pre", "table", "tr", "th", "td", "blockquote", "img")}
FORMS |= {"a", "strong", "em"}
# Attributes by which a page has a browser load something at once; a link is followed by a person.
LOADING = {*((element, "src") for element in ("script", "img", "source", "iframe"))}
LOADING |= {("link", "href"), ("object", "data")}


@dataclass
class Seen(HTMLParser):
    """What stands on a page; of `within` alone where that is given."""

    within: str = ""
    shape: list[str] = field(default_factory=list)  # forms and words, in order
    links: list[tuple[str, str, str]] = field(default_factory=list)  # element, attribute, address
    ids: set[str] = field(default_factory=set)
    depth: int = 0
    left_out: int = 0  # the mark of a heading's own address

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.links += [(tag, name, given[name]) for name in ("href", "src", "data") if name in given]
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.depth += tag == self.within
        if tag == "a" and "headerlink" in given.get("class", ""):
            self.left_out += 1
        elif tag in FORMS and self._counts():
            self.shape.append(f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == self.within
        if tag == "a" and self.left_out:
            self.left_out -= 1

    def handle_data(self, data: str) -> None:
        if self._counts():
            self.shape += data.split()

    def _counts(self) -> bool:
        return not self.left_out and (self.depth > 0 or not self.within)


@cache
def _seen(path: Path, within: str = "") -> Seen:
    seen = Seen(within)
    seen.feed(path.read_text())
    return seen


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make site` builds it."""
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=CHECKOUT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mkdocs build --strict" in (CHECKOUT / "Makefile").read_text()
    return built


def test_every_link_within_the_site_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    dead: list[str] = []
    followed = 0
    for page in sorted(site.rglob("*.html")):
        for _, _, address in _seen(page).links:
            link = urlsplit(address)
            if link.scheme or link.netloc or page.name == "404.html":  # that page is shown under any address
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            target = target / "index.html" if target.is_dir() else target
            followed += 1
            if not target.is_file():
                dead.append(f"{page.relative_to(site)} links to {address}, which is not there")
            elif target.suffix == ".html" and unquote(link.fragment) not in _seen(target).ids | {"", "__top"}:
                dead.append(f"{page.relative_to(site)} links to {address}, and there is no such place")
    assert followed > 2000
    assert dead == []


def test_links_to_elsewhere_have_the_form_of_addresses(site: Path) -> None:
    """They are not fetched: a test that asks other sites fails when those are away."""
    outside = {
        address
        for page in site.rglob("*.html")
        for _, _, address in _seen(page).links
        if urlsplit(address).scheme or urlsplit(address).netloc
    }
    print(*sorted(outside), sep="\n")
    assert len(outside) > 40, "the comparison names its sources"
    local = {"http://127.0.0.1:9465/"}  # the console
    form = re.compile(r"https://[a-z0-9.-]+\.[a-z]{2,}(/[^\s<>\"]*)?")
    assert [url for url in sorted(outside - local) if not form.fullmatch(url)] == []


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = [
        (page.relative_to(site), address)
        for page in site.rglob("*.html")
        for element, attribute, address in _seen(page).links
        if (element, attribute) in LOADING and (urlsplit(address).scheme or urlsplit(address).netloc)
    ]
    assert loaded == []
    sheets = [*site.rglob("*.css")]
    assert sheets
    for sheet in sheets:
        addresses = re.findall(r"(?:url\(|@import\s*)[\"']?([^\"')]+)", sheet.read_text())
        assert [address for address in addresses if re.match(r"(?:https?:)?//", address)] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_the_site_says_what_a_code_host_shows(page: Path, site: Path) -> None:
    """Two dialects of Markdown: a list or code that only one of them sees is found here."""
    shown = Seen()
    shown.feed(MarkdownIt("commonmark").enable("table").render(page.read_text()))
    built = _seen(site / page.relative_to(DOCS).with_suffix(".html"), "article")
    assert "".join(built.shape) == "".join(shown.shape)


def test_the_home_page_and_the_sections_name_what_readers_look_up(site: Path) -> None:
    navigation = " ".join(_seen(site / "index.html").shape)
    for title in ("First steps in ten minutes", "Commands, exit codes, states, metrics, probes, settings"):
        assert title in navigation
    assert not [*site.rglob("*.py"), *site.rglob("*.pyc")], "what is beside the pages is no part of the site"


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("VIEWTAIL_RUN__CHUNK_ROWS", "Settings"),
        ("viewtail_lag_seconds", "Metrics"),
        ("exit codes", "Commands"),
        ("why is a row missing", "Why is a row missing?"),
    ],
)
def test_a_reader_finds_by_searching(words: str, found: str, address: str, page: Page) -> None:
    page.goto(f"{address}/index.html")
    page.get_by_role("textbox", name="Search").fill(words)
    expect(page.locator(".md-search-result__item").filter(has_text=found).first).to_be_visible()


def test_pages_are_light_and_dark_as_the_reader_has_it(address: str, visitor: Visitor) -> None:
    for look, scheme in ((Look(), "default"), (Look(dark=True), "slate")):
        page = visitor.page(look)
        page.goto(f"{address}/comparison.html")
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", scheme)


@pytest.mark.parametrize("look", [Look(), Look(dark=True)], ids=["light", "dark"])
def test_pages_can_be_read_by_everybody(look: Look, address: str, visitor: Visitor) -> None:
    of_the_theme = ("aria-dialog-name", "landmark-unique")  # its search field, and its buttons that copy code
    page = visitor.page(look)
    for name in ("index", "comparison", "first-steps", "howto/repair", "reference"):
        page.goto(f"{address}/{name}.html")
        assert [found for found in violations(page) if not found.startswith(of_the_theme)] == [], name


def test_a_phone_shows_a_page_no_wider_than_itself(address: str, visitor: Visitor) -> None:
    page = visitor.page(Look(width=390, height=844, touch=True))
    for name in ("index", "comparison", "reference", "howto/repair"):
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
