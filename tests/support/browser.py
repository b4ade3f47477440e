"""Pages as a person sees them: in a real Chromium, which notes what went wrong there, and as axe-core judges them.

Nothing leaves the machine: another host than this one has no address here, and each request to one is a fault.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Locator, Page, expect, sync_playwright

import stack.chromium
from stack.places import CHECKOUT

IMAGES = CHECKOUT / "docs" / "images"
WAIT_S = 30.0  # for a fault that is to come
_ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE [::1]",
)
_RULES = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The window in which a page is looked at, and what the person has set there."""

    width: int = 1280  # CSS pixels, as the height is
    height: int = 800
    scale: int = 1  # pixels of a screenshot in a CSS pixel
    touch: bool = False  # a phone, which shows a page as wide as it says (meta viewport)
    dark: bool = False
    still: bool = False  # reduced motion
    javascript: bool = True


DESKTOP = Look()
PHONE = Look(width=390, height=844, scale=2, touch=True)


@contextmanager
def running() -> Iterator[Browser]:
    """A Chromium, until the block ends. Meanwhile this thread can run no asyncio loop: Playwright's is there."""
    environment = {**os.environ, **stack.chromium.environment()}
    expect.set_options(timeout=WAIT_S * 1000)  # on a busy machine a page takes longer than Playwright's 5 s
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=stack.chromium.executable(),
            env=environment,
            args=_ARGUMENTS,
            chromium_sandbox=False,  # it needs rights that neither a container nor root's own processes have
        )
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """Opens pages and notes what a person does not see: errors of scripts and of the console, requests to others."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._faults: list[str] = []

    def page(self, look: Look = DESKTOP) -> Page:
        """An empty page in a profile of its own. `page.context.new_page()` is another one in the same profile."""
        context = self._browser.new_context(
            viewport={"width": look.width, "height": look.height},
            device_scale_factor=look.scale,
            is_mobile=look.touch,
            has_touch=look.touch,
            color_scheme="dark" if look.dark else "light",
            reduced_motion="reduce" if look.still else "no-preference",
            java_script_enabled=look.javascript,
            locale="en-GB",
            timezone_id="UTC",
        )
        self._contexts.append(context)
        context.on("console", self._note_line)
        context.on("weberror", lambda error: self._note(f"script: {error.error}", error.page))
        context.on("request", lambda request: self._note_outside(request.url))
        context.on("page", lambda page: page.on("websocket", lambda socket: self._note_outside(socket.url)))
        return context.new_page()

    @contextmanager
    def expecting(self, pattern: str) -> Iterator[None]:
        """What is done in the block leads to faults that match the regular expression, one at least; they are none."""
        before = len(self._faults)
        yield
        deadline = time.monotonic() + WAIT_S
        while not any(re.search(pattern, fault) for fault in self._faults[before:]):
            assert time.monotonic() < deadline, f"no fault matches {pattern!r}: {self._faults[before:]}"
            self._receive()
        self._faults[before:] = [fault for fault in self._faults[before:] if not re.search(pattern, fault)]

    def close(self) -> None:
        """Close every page; raises AssertionError with the faults, if there was one."""
        self._receive()
        for context in self._contexts:
            context.close()
        assert not self._faults, "\n".join(["What went wrong in the browser:", *self._faults])

    def _note_line(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self._note(f"console: {line.text}", line.page)

    def _note(self, fault: str, page: Page | None) -> None:
        self._faults.append(f"{fault} (on {page.url if page else 'a page that is gone'})")

    def _note_outside(self, url: str) -> None:
        if not _is_of_this_machine(url):
            self._faults.append(f"request to another machine: {url}")

    def _receive(self) -> None:
        # What a page had to say before it answers was said then.
        for page in (page for context in self._contexts for page in context.pages):
            try:
                page.evaluate("0")
            except Error:  # it went on to another page meanwhile, or closed
                pass


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong on the page as it stands, one text an element: rule, element, what would mend it."""
    found = Axe().run(page, options=_RULES).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}\n"
        f"  at {' '.join(map(str, node['target']))}: {node['html'][:200]}\n"
        f"  {node['failureSummary']}\n"
        f"  {rule['helpUrl']}"
        for rule in found
        for node in rule["nodes"]
    ]


def screenshot(shown: Page | Locator, name: str, folder: Path = IMAGES) -> Path:
    """A PNG `name` of what the window shows, or of one element, in the folder of the documentation's images."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    shown.screenshot(path=path, animations="disabled", caret="hide")
    return path


def _is_of_this_machine(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https", "ws", "wss"}:
        return True  # data:, blob:, about:
    host = parts.hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
