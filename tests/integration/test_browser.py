"""What the browser of the tests finds: each kind of fault on a page that has it, and none on a page that has none."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

import stack.chromium
from tests.support import browser as chromium
from tests.support.browser import DESKTOP, PHONE, Visitor, screenshot, violations
from tests.support.forked import CHECKOUT

STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; require-trusted-types-for 'script'"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Views</title>
<link rel="stylesheet" href="/style.css"><script src="/script.js" defer></script>
</head>
<body><main><h1>Views</h1><p id="said">no script</p>{body}</main></body>
</html>"""
STYLE = """
body { color: #222; background: #fff }
.pale { color: #bbb }
.close button { padding: 0; width: 9px; height: 9px; font-size: 6px; margin: 0; border: 0 }
"""
SCRIPT = """
const wishes = ["(prefers-color-scheme: dark)", "(prefers-reduced-motion: reduce)", "(pointer: coarse)"];
const said = wishes.map((wish) => matchMedia(wish).matches);
document.getElementById("said").textContent = `${innerWidth} x ${innerHeight} ${said.join(" ")}`;
"""
BODIES = {
    "/": "",
    "/picture": "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>",
    "/pale": "<p class='pale'>halted</p>",
    "/small": "<div class='close'><button>a</button><button>b</button></div>",
    "/outline": "<h4>Lag</h4>",
    "/inline": "<script>document.title = 'changed'</script>",
    "/gone": "<script src='/nothing.js'></script>",
    "/fails": "<script src='/fails.js'></script>",
    "/outside": "<script src='/outside.js'></script>",
}
SCRIPTS = {
    "/script.js": SCRIPT,
    "/fails.js": "console.warn('slow'); console.error('no such view'); undefinedName()",
    "/outside.js": """
new Image().src = "http://192.0.2.1/pixel.gif";
new WebSocket("ws://listener.example/told");
fetch("https://cdn.example/library.js").catch(() => {});
""",
}


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, text = self._answer()
        body = text.encode()
        self.send_response(200 if text else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.path != "/outside":
            self.send_header("Content-Security-Policy", f"{STRICT}; img-src data:")
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> tuple[str, str]:
        if self.path in BODIES:
            return "text/html", PAGE.format(body=BODIES[self.path])
        if self.path == "/style.css":
            return "text/css", STYLE
        return "text/javascript", SCRIPTS.get(self.path, "")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# Of the C library, which is the machine's.
C_LIBRARY = re.compile(r"/(ld-linux.*|lib(c|dl|m|pthread|resolv|rt|nss_\w+))\.so\.\d+$")


def libraries_of(program: Path) -> set[str]:
    """What the processes of this program have loaded."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "exe").readlink() == program:
                found.update(line.split()[-1] for line in (process / "maps").read_text().splitlines() if ".so" in line)
        except OSError:  # it ended meanwhile, or is another user's
            pass
    return found


def test_chromium_takes_nothing_of_the_machine_but_the_c_library(page: Page, site: str) -> None:
    page.goto(site)
    page.screenshot()
    prefix = str(stack.chromium.install().resolve())
    loaded = libraries_of(stack.chromium.executable().resolve())
    assert any(library.startswith(prefix) for library in loaded)
    others = {library for library in loaded if not library.startswith(prefix)}
    assert {library for library in others if not C_LIBRARY.search(library)} == set()


def faults_of(browser: Browser, url: str) -> str:
    visitor = Visitor(browser)
    visitor.page().goto(url)
    with pytest.raises(AssertionError) as faults:
        visitor.close()
    return str(faults.value)


def test_a_page_without_faults_passes_under_a_strict_policy(page: Page, site: str) -> None:
    page.goto(site)
    assert violations(page) == []


@pytest.mark.parametrize(
    ("path", "rule", "element"),
    [
        ("/picture", "image-alt (critical)", "img"),
        ("/pale", "color-contrast (serious)", ".pale"),
        ("/small", "target-size (serious)", "button"),
        ("/outline", "heading-order (moderate)", "h4"),
    ],
)
def test_axe_names_the_rule_and_the_element(page: Page, site: str, path: str, rule: str, element: str) -> None:
    page.goto(site + path)
    found = violations(page)
    assert found
    assert all(violation.startswith(f"{rule}: ") for violation in found), found
    assert f"  at {element}" in found[0]
    assert "Fix " in found[0]


def test_errors_of_the_console_and_of_scripts_are_faults(browser: Browser, site: str) -> None:
    faults = faults_of(browser, f"{site}/fails")
    assert "console: no such view (on http://127.0.0.1" in faults
    assert "script: undefinedName is not defined" in faults
    assert "slow" not in faults  # a warning


def test_what_a_policy_refuses_is_a_fault(browser: Browser, site: str) -> None:
    assert "Content Security Policy" in faults_of(browser, f"{site}/inline")


def test_what_is_not_there_is_a_fault(browser: Browser, site: str) -> None:
    assert "404" in faults_of(browser, f"{site}/gone")


@pytest.mark.parametrize(
    "address", ["http://192.0.2.1/pixel.gif", "ws://listener.example/told", "https://cdn.example/library.js"]
)
def test_a_request_to_another_machine_is_a_fault_and_reaches_nobody(browser: Browser, site: str, address: str) -> None:
    faults = faults_of(browser, f"{site}/outside")
    assert f"request to another machine: {address}" in faults
    assert faults.count("ERR_NAME_NOT_RESOLVED") == 3


def test_only_the_fault_that_was_expected_is_forgiven(browser: Browser, site: str) -> None:
    visitor = Visitor(browser)
    page = visitor.page()
    with visitor.expecting("no such view"):
        page.goto(f"{site}/fails")
    with pytest.raises(AssertionError) as faults:
        visitor.close()
    assert "undefinedName" in str(faults.value)
    assert "no such view" not in str(faults.value)


def test_a_fault_that_does_not_come_is_missed(visitor: Visitor, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "WAIT_S", 0.1)
    page = visitor.page()
    with pytest.raises(AssertionError, match="no fault matches 'no such view'"), visitor.expecting("no such view"):
        page.goto(site)


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (DESKTOP, "1280 x 800 false false false"),
        (PHONE, "390 x 844 false false true"),
        (replace(DESKTOP, dark=True), "1280 x 800 true false false"),
        (replace(DESKTOP, still=True), "1280 x 800 false true false"),
        (replace(DESKTOP, javascript=False), "no script"),
    ],
)
def test_a_page_is_seen_as_the_person_has_set_it(visitor: Visitor, site: str, look: chromium.Look, said: str) -> None:
    page = visitor.page(look)
    page.goto(site)
    assert page.locator("#said").inner_text() == said


def test_profiles_are_apart_and_pages_of_one_are_not(visitor: Visitor, site: str) -> None:
    first, other = visitor.page(), visitor.page()
    first.goto(site)
    first.evaluate("document.cookie = 'token=a'")
    beside = first.context.new_page()
    for page, cookie in ((beside, "token=a"), (other, "")):
        page.goto(site)
        assert page.evaluate("document.cookie") == cookie


def test_a_screenshot_has_the_pixels_of_its_window(visitor: Visitor, site: str, tmp_path: Path) -> None:
    page = visitor.page(PHONE)
    page.goto(site)
    header = screenshot(page, "views", tmp_path).read_bytes()[:24]
    assert header[1:4] == b"PNG"
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (2 * 390, 2 * 844)


def test_a_test_fails_at_its_end_for_a_fault_on_its_page(site: str, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(f"def test_it(page):\n    page.goto('{site}/fails')\n")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(argv, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1
    assert "console: no such view" in done.stdout
