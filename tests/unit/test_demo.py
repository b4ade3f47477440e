"""Parts of `viewtail demo` that need no server, and the picture of it at the top of README.md."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import termios
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from projectors.views import View
from stack import places
from stack.places import CHECKOUT
from tests.support import picture
from tests.support.terminal import Screen
from viewtail.changes.errors import MisuseError
from viewtail.demo import fetched, given, servers
from viewtail.demo.hands import END, ENTER, KILL, NOTHING, Moment, Nobody, Person, hands
from viewtail.demo.place import TITLES, Place, refused
from viewtail.demo.process import DemoError
from viewtail.demo.rows import Behind, Change, City, behind, cities
from viewtail.settings import load

SVG = picture.PICTURE.read_text()


# -- the picture


def test_the_picture_is_well_formed_and_refers_to_nothing_outside() -> None:
    root = ElementTree.fromstring(SVG)
    assert root.tag.endswith("}svg")
    assert len(SVG) < 150_000
    named = re.findall(r"[a-z]+://[^\"' <]+", SVG.replace('xmlns="http://www.w3.org/2000/svg"', ""))
    assert named and [address for address in named if "127.0.0.1" not in address] == []  # text, of the demo's servers
    assert "url(" not in SVG and "@import" not in SVG and "<script" not in SVG and "<image" not in SVG
    targets = {f"#{element.get('id')}" for element in root.iter() if element.get("id")}
    assert {element.get("href") for element in root.iter() if element.get("href")} <= targets
    assert str(CHECKOUT) not in SVG and str(Path.home()) + "/" not in SVG


def test_the_picture_is_readable_on_any_page_and_stands_still_where_nothing_may_move() -> None:
    style = "".join(ElementTree.fromstring(SVG).itertext())
    still, _, moving = style.partition("@media (prefers-reduced-motion:no-preference)")
    assert "animation" not in still and "@keyframes" in moving
    assert ".f{visibility:hidden}.z{visibility:visible}" in still and SVG.count('class="f z"') == 1
    background = "#0d1117"
    assert f'fill="{background}"' in SVG
    for colour in re.findall(r"fill:(#[0-9a-f]{6})", still):
        assert _contrast(colour, background) >= 4.5, colour


def test_the_readme_begins_with_the_picture() -> None:
    readme = (CHECKOUT / "README.md").read_text()
    assert f"]({picture.PICTURE.relative_to(CHECKOUT)})" in readme.split("\n\n")[1]


def test_the_picture_has_each_step_of_the_demo() -> None:
    lines = picture.lines_of(SVG)
    course = (CHECKOUT / "viewtail/demo/course.py").read_text()
    headings = re.findall(r'self\._heading\("([^"]+)"\)', course)
    assert len(headings) == 6
    assert [text for text in headings if not any(picture.essence(text) in line for line in lines)] == []


def _contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_terminal_of_the_tests_shows_what_a_terminal_shows() -> None:
    screen = Screen(10)
    screen.feed("one\r\n\x1b[1;36mtwo\x1b[0m!\r\n12345678901\r\n\x1b[2A\r\x1b[2Kup\x1b[")
    screen.feed("1A\x1b[2Kgone")
    assert screen.text() == ["one", "  gone", "up", "1", ""]
    screen = Screen(10)
    screen.feed("\x1b[1;36mtwo\x1b[0m!")
    assert screen.shown() == [(("t", "1;36"), ("w", "1;36"), ("o", "1;36"), ("!", ""))]


# -- its parts


def test_the_file_of_cities_says_whose_they_are_and_has_paris() -> None:
    text = (CHECKOUT / "viewtail/demo/cities.csv").read_text()
    assert "GeoNames" in text and "Creative Commons Attribution 4.0" in text and len(text.encode()) < 50_000
    found = cities()
    assert len(found) == len({city[0] for city in found}) == 300
    assert (2988507, "Paris", "FR") in {(city[0], city[1], city[3]) for city in found}


@pytest.mark.parametrize("stores", [("mysql",), ("mysql", "redis"), ("mysql", "redis", "elasticsearch", "kafka")])
@pytest.mark.parametrize("names", [fetched.NAMES, given.NAMES])
def test_what_is_declared_has_a_view_in_each_store_under_the_name_that_is_asked_for(
    stores: tuple[str, ...], names: Any, tmp_path: Path
) -> None:
    place = _place(tmp_path, stores, names)
    text, namespace = place.declare(), dict[str, Any]()
    exec((tmp_path / f"{place.module}.py").read_text(), namespace)
    views: list[View] = namespace["views"]
    assert {view.store: view.name for view in views} == {store: names.view(store) for store in stores}
    assert len(text.splitlines()) <= 12


def test_a_store_is_behind_by_what_was_committed_before_it_was_asked() -> None:
    changes = [Change(1.0, 7, 100), Change(2.0, 7, 101), Change(2.5, 8, 50), Change(4.0, 9, 5)]
    shown = {7: City("FR", 101), 8: City("DE", 50), 9: City("IS", 4)}
    assert behind(shown, changes, asked_at=3.0) == Behind(0, 0.0)
    assert behind(shown, changes, asked_at=5.0) == Behind(1, 1.0)
    assert behind({**shown, 7: City("FR", 99)}, changes, asked_at=3.0) == Behind(1, 2.0)
    assert behind({}, changes, asked_at=3.0) == Behind(2, 2.0)


def test_without_a_person_one_worker_is_killed_and_the_demo_goes_on_when_it_is_healed() -> None:
    moments = {
        NOTHING: [(0.5, 0, None), (3.0, 1, None), (4.0, 1, 0.1)],
        KILL: [(2.5, 0, None)],
        ENTER: [(6.0, 1, 2.0)],
    }
    for key, cases in moments.items():
        for seconds, kills, healed_s in cases:
            assert Nobody().meanwhile(0, Moment(seconds=seconds, kills=kills, healed_s=healed_s)) == key


def test_keys_are_taken_as_they_are_pressed_and_the_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower, "r+b", buffering=0) as terminal:
        before = termios.tcgetattr(follower)
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(_Terminal(), write_through=True))
        with hands(is_sure=False) as person:
            assert isinstance(person, Person)
            for typed, key in ((b"k", KILL), (b"\n", ENTER), (b"x", NOTHING), (b"q", END)):
                os.write(leader, typed)
                assert person.meanwhile(5, Moment(seconds=0, kills=0, healed_s=None)) == key, typed
            assert person.meanwhile(0, Moment(seconds=0, kills=0, healed_s=None)) == NOTHING
            for typed, goes_on in ((b"xk\n", True), (b"q", False)):
                threading.Timer(0, _type, (leader, typed)).start()
                assert person.goes_on("change a row") == goes_on, typed
        assert termios.tcgetattr(follower) == before
        with hands(is_sure=True) as nobody:
            assert isinstance(nobody, Nobody)
    os.close(leader)


def _type(terminal: int, keys: bytes) -> None:
    """One by one, as a person does."""
    for key in keys:
        os.write(terminal, bytes([key]))
        time.sleep(0.05)


class _Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def test_a_store_that_there_is_not_and_mysql_cannot_be_left_out() -> None:
    refused(TITLES, frozenset({"kafka"}))
    for name, why in (("mongodb", "no such store"), ("mysql", "the rows are there")):
        with pytest.raises(MisuseError, match=why):
            refused(TITLES, frozenset({name}))


def test_servers_are_the_users_only_where_settings_name_them() -> None:
    assert not given.is_given(None, {"VIEWTAIL_STACK_CACHE": "x", "VIEWTAIL_REDIS__URL": "redis://x"})
    assert given.is_given(None, {"VIEWTAIL_SOURCE__URL": "mysql://x"})
    assert given.is_given(Path("viewtail.toml"), {})


def test_the_demo_tells_nobody_whom_the_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = "https://hooks.slack.com/services/secret"
    config = tmp_path / "viewtail.toml"
    config.write_text(f'[source]\nurl = "mysql://root@127.0.0.1:1"\n[notify]\nurl = "{hook}"\n')
    assert load(config, {}).notify.address == hook
    assert given.place(tmp_path, config, frozenset()).settings().notify.address is None
    monkeypatch.setenv("VIEWTAIL_NOTIFY__URL", hook)
    assert given.place(tmp_path, config, frozenset()).settings().notify.address is None


def test_where_no_mysql_can_be_fetched_it_says_why_and_what_to_do_instead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unavailable(*_: object) -> list[servers.Started]:
        why = "mysql: this machine has no apt-get"
        return [servers.Started(name="mysql", server=None, reason=why, seconds=0.1)]

    monkeypatch.setattr(servers, "start_all", unavailable)
    with ExitStack() as stopping, pytest.raises(DemoError) as raised:
        fetched.place(tmp_path, frozenset(), stopping)
    said = str(raised.value)
    assert "no apt-get" in said and "VIEWTAIL_SOURCE__URL=mysql://" in said and "viewtail demo --print-compose" in said
    assert "mysql:" in fetched.compose() and "kafka:" in fetched.compose()


def test_servers_of_an_installed_viewtail_are_kept_in_the_cache_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(places, "CHECKOUT", tmp_path / "site-packages/viewtail/demo")
    monkeypatch.delenv("VIEWTAIL_STACK_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert places.cache_directory() == places.stack_directory() == tmp_path / "cache/viewtail"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert places.stack_directory() == tmp_path / "home/.cache/viewtail"


def _place(folder: Path, stores: tuple[str, ...], names: Any) -> Place:
    return Place(
        is_given=False,
        folder=folder,
        cwd=folder,
        config=None,
        environ={},
        module="views",
        names=names,
        stores=stores,
        lacking={},
    )
