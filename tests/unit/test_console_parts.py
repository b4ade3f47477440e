"""The parts of the console that need no server: sessions, names, commands as data, declarations as text."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote
from urllib.request import urlopen

import pytest

from offsets.views import State
from projectors.views import View
from tests.support.running import wait_for
from viewtail import Entity, IndexTable, RedisHash
from viewtail.changes import console_paths
from viewtail.changes.errors import MisuseError
from viewtail.cli import dead_letters, pausing, rebuild, replay, verify
from viewtail.console import actions, declared, guard, jobs, pages
from viewtail.operations.status import ViewStatus

TOKEN = "a-token-that-is-long-enough"


# --- Who may act ---


def test_a_session_is_known_again_until_it_ends() -> None:
    sessions = guard.Sessions(TOKEN)
    opened = sessions.open(TOKEN, "Ada Lövelace", now=1000.0)
    assert opened is not None and opened.name == "Ada Lövelace"
    again = guard.Sessions(TOKEN).of(opened.cookie, now=1000.0 + guard.LASTS_S - 1)
    assert again == opened
    assert sessions.of(opened.cookie, now=1000.0 + guard.LASTS_S) is None


@pytest.mark.parametrize("given", ["", "a-token", TOKEN + " ", TOKEN.upper(), "\udc80", "é" * 30])
def test_another_token_opens_none(given: str) -> None:
    assert guard.Sessions(TOKEN).open(given, "eve") is None


def test_without_a_token_there_are_no_sessions() -> None:
    none = guard.Sessions(None)
    opened = guard.Sessions(TOKEN).open(TOKEN, "ada")
    assert opened is not None and not none.can_act
    assert none.open("", "eve") is None and none.of(opened.cookie) is None


def test_a_changed_cookie_is_no_session() -> None:
    sessions = guard.Sessions(TOKEN)
    opened = sessions.open(TOKEN, "ada")
    other = guard.Sessions(TOKEN + "2").open(TOKEN + "2", "ada")
    assert opened is not None and other is not None
    name, ends_at, signature = opened.cookie.split(".")
    longer = f"{name}.{int(ends_at) + 10**6}.{signature}"
    for cookie in (None, "", "..", "é.1.é", longer, f"ZXZl.{ends_at}.{signature}", opened.cookie[:-1], other.cookie):
        assert sessions.of(cookie) is None, cookie


def test_a_forms_key_is_of_one_session() -> None:
    sessions = guard.Sessions(TOKEN)
    one, two = sessions.open(TOKEN, "ada"), sessions.open(TOKEN, "grace")
    assert one is not None and two is not None
    assert sessions.is_form_key(one, sessions.form_key(one))
    for given in (sessions.form_key(two), "", "é", one.cookie.rpartition(".")[2]):
        assert not sessions.is_form_key(one, given)


@pytest.mark.parametrize(
    ("host", "url", "header", "is_ours"),
    [
        ("127.0.0.1", None, "127.0.0.1:9465", True),
        ("127.0.0.1", None, "LOCALHOST:9465", True),
        ("127.0.0.1", None, "[::1]:9465", True),
        ("::1", None, "[::1]", True),
        ("10.0.0.7", None, "10.0.0.7:9465", True),
        ("127.0.0.1", "https://views.example.org", "views.example.org", True),
        ("127.0.0.1", "https://views.example.org", "views.example.org:443", True),
        ("0.0.0.0", None, "10.0.0.7:9465", False),
        ("127.0.0.1", None, "evil.example:9465", False),
        ("127.0.0.1", None, "127.0.0.1.evil.example", False),
        ("127.0.0.1", None, "", False),
        ("127.0.0.1", None, "localhost:x", False),
    ],
)
def test_the_console_answers_to_its_own_names(host: str, url: str | None, header: str, is_ours: bool) -> None:
    assert guard.is_named(header, guard.names(host, url)) == is_ours


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"host": "127.0.0.1:9465"}, True),  # curl says neither; the form's key decides
        ({"host": "127.0.0.1:9465", "origin": "http://127.0.0.1:9465", "sec-fetch-site": "same-origin"}, True),
        ({"host": "127.0.0.1:9465", "origin": "http://127.0.0.1:8000"}, False),
        ({"host": "127.0.0.1:9465", "origin": "http://["}, False),
        ({"host": "127.0.0.1:9465", "origin": "null"}, False),
        ({"host": "127.0.0.1:9465", "sec-fetch-site": "cross-site"}, False),
        ({"host": "127.0.0.1:9465", "sec-fetch-site": "none"}, False),
    ],
)
def test_a_form_of_another_site_is_seen(headers: dict[str, str], is_own: bool) -> None:
    assert (guard.why_not_own(headers) is None) == is_own


# --- Commands ---


def _offered(view: str) -> set[str]:
    status = ViewStatus(
        name=view, state=State.FILLED, reason=None, filled_percent=100.0, row_count=1, row_estimate=1,
        rows_per_second=0.0, eta_s=None, parked=0,
    )  # fmt: skip
    return {action.id for action in actions.offered(status)}


def test_what_compares_rows_is_not_offered_of_a_topic() -> None:
    assert _offered("redis:user") - _offered("kafka:user") == {"verify", "repair", "replay-key"}
    assert {"replay", "pause"} <= _offered("kafka:user")


def _words(action: str, name: str = "redis:user", **given: str) -> list[str]:
    return actions.BY_ID[action].words(name, given)


def test_an_action_is_the_command_that_one_types() -> None:
    assert _words("replay") == ["replay", "--yes", "--", "redis:user"]
    assert actions.shown(_words("replay")) == "viewtail replay --yes redis:user"
    assert actions.shown(_words("replay-key", key="a b")) == "viewtail replay --yes '--key=a b' redis:user"
    assert actions.shown(_words("redrive", key="-1")) == "viewtail dead-letters redrive --yes -- redis:user -1"
    assert actions.shown(_words("rebuild", hold="1")) == "viewtail rebuild --hold redis:user"
    assert _words("pause-pipeline", "redis", reason="it moves") == ["pause", "--reason=it moves", "--pipeline=redis"]
    assert actions.BY_ID["replay-key"].trial_words("redis:user", {"key": "7"}) == [
        "replay", "--dry-run", "--key=7", "--", "redis:user",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["two\nlines", "x" * 1001, "\x1b[2J"])
def test_what_no_command_takes_is_refused(value: str) -> None:
    with pytest.raises(MisuseError, match="one line"):
        _words("pause", reason=value)


def test_a_key_keeps_the_spaces_that_it_has_and_other_texts_do_not() -> None:
    assert _words("replay-key", key=" 7")[2] == "--key= 7"
    assert _words("redrive", key="7 ")[-1] == "7 "
    assert _words("pause", reason=" it moves ")[1] == "--reason=it moves"


def test_a_command_is_shown_with_the_deployment_that_it_is_about() -> None:
    assert (
        actions.shown(["replay", "--yes", "--", "redis:user"], "eu")
        == "VIEWTAIL_SHARD=eu viewtail replay --yes redis:user"
    )


@pytest.mark.parametrize(("key", "source"), [("us:7", "us"), ("7", ""), ("asia:7", ""), ("us", "us")])
def test_a_key_says_which_source_it_is_of(key: str, source: str) -> None:
    assert pages._source_in(key, ["eu", "us"]) == source


def test_a_long_value_is_cut_and_says_so() -> None:
    shown = pages.environment().filters["shown"]
    assert shown("x" * 10**6) == "x" * pages.MOST_VALUE + "… (cut; 1,000,000 characters)"
    assert (
        shown(b"x" * 10**6).endswith("78… (cut; 1,000,000 bytes)") and shown("x" * pages.MOST_VALUE).count("cut") == 0
    )


@pytest.mark.parametrize("name", ["user", "a/rows", "b/events", "c?d#e%41 ü<b>", "--all", "..", "%2F"])
def test_the_address_of_a_view_names_it_whatever_it_is_called(name: str) -> None:
    part = pages.view_url("", f"redis:{name}", "why").split("/")[3]
    assert len(pages.view_url("", f"redis:{name}").split("/")) == 4
    assert console_paths.name_in_path(unquote(part)) == name  # a server unquotes once


def test_a_key_that_is_needed_is_asked_for() -> None:
    with pytest.raises(MisuseError, match="needed"):
        _words("replay-key", key=" ")


def test_each_option_is_one_of_its_command() -> None:
    import inspect

    of = {
        "verify": verify.verify, "replay": replay.replay, "rebuild": rebuild.rebuild, "pause": pausing.pause,
        "resume": pausing.resume, "dead-letters": dead_letters.redrive,
    }  # fmt: skip
    for action in actions.ACTIONS:
        parameters = inspect.signature(of[action.command[0]]).parameters
        flags = [word for word in action.command if word.startswith("--")]
        flags += [option.words for option in action.options if option.words]
        for flag in flags:
            assert flag.removeprefix("--").replace("-", "_") in parameters, (action.id, flag)


@pytest.mark.parametrize(
    ("advice", "action"),
    [
        ("viewtail replay redis:user --key 7", ("replay-key", "redis:user")),
        ("viewtail replay redis:user", ("replay", "redis:user")),
        ("viewtail replay redis:user --key ' 7 a'", ("replay-key", "redis:user")),
        ("viewtail resume redis:user", ("resume", "redis:user")),
        ("viewtail verify redis:user --repair", ("repair", "redis:user")),
        ("viewtail resume --pipeline shop.user.0.redis", ("resume-pipeline", "shop.user.0.redis")),
        ("viewtail resume --all", None),
        ("viewtail replay --new-history", None),
        ("viewtail run", None),
        ("", None),
    ],
)
def test_advice_leads_to_an_action(advice: str, action: tuple[str, str] | None) -> None:
    assert pages.as_action(advice) == action


def test_a_page_that_advises_to_resume_a_pipeline_leads_to_that_pipeline() -> None:
    advised = pages.as_action("viewtail resume --pipeline redis")
    assert advised is not None
    assert pages.action_url(advised[0], "eu", advised[1]) == "/do/resume-pipeline?of=eu&name=redis"
    assert actions.BY_ID[advised[0]].of == "pipeline"


def test_a_command_has_the_operators_name_and_no_colours() -> None:
    made = jobs.environment({"LOGNAME": "root", "PATH": "/bin"}, "ada", "eu")
    assert made["LOGNAME"] == "ada" and made["VIEWTAIL_SHARD"] == "eu" and made["NO_COLOR"] == "1"
    assert "VIEWTAIL_SHARD" not in jobs.environment({}, "", None)


# --- Declarations ---

USER = Entity("shop.user")


@pytest.mark.parametrize(
    ("source", "view", "text"),
    [
        ('views = [\n    RedisHash("card", user, fields=["a"]),\n]', "card", 'RedisHash("card", user, fields=["a"])'),
        (
            'card = viewtail.RedisHash(name="card",\n  entity=user)',
            "card",
            'card = RedisHash(name="card",\nentity=user)',
        ),
        ('views = [RedisHash(f"card_{n}", user) for n in range(3)]', "card_1", None),
        ('views = [IndexTable("card", user)]', "card", None),
        ('views = [RedisHash("card", a), RedisHash("card", b)]', "card", None),
        ("views = [", "card", None),
    ],
)
def test_a_declaration_is_found_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, view: str, text: str | None
) -> None:
    (tmp_path / "views_of_this_test.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("views_of_this_test", None)
    found = declared.of(RedisHash(view, USER, fields=["a"]), "views_of_this_test:views")
    assert (None if found is None else found.text.replace("viewtail.", "")) == text


def test_a_declaration_of_no_module_is_none() -> None:
    view: View = IndexTable("card", USER, value="a")
    assert declared.of(view, "no_such_module_at_all:views") is None


# --- The process beside a run ---

BESIDE = """
import signal, sys, threading
from pathlib import Path
from viewtail.console_beside import ConsoleBeside
from viewtail.settings import ConsoleSettings

told = threading.Event()
signal.signal(signal.SIGINT, lambda *_: told.set())
beside = ConsoleBeside(ConsoleSettings(port=int(sys.argv[1])), None)
while not told.wait(0.1):
    pass
told.clear()
told.wait(3)  # a run has batches to finish
beside.close()
"""


def test_ctrl_c_in_a_terminal_is_the_runs_alone(tmp_path: Path) -> None:
    view = "IndexTable('u', Entity('s.u'), value='v')"
    (tmp_path / "views.py").write_text(f"from viewtail import Entity, IndexTable\nviews = [{view}]\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = subprocess.Popen(
        [sys.executable, "-c", BESIDE, f"{port}"],
        cwd=tmp_path,
        env={**os.environ, "VIEWTAIL_SOURCE__URL": "mysql://nobody:none@127.0.0.1:1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    icon = f"http://127.0.0.1:{port}/static/icon.svg"
    try:
        wait_for("it answers", lambda: urlopen(icon, timeout=5).read(), timeout_s=60)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        said = run.communicate(timeout=30)[0]
    finally:
        run.kill()
    assert run.returncode == 0, said
    assert "the console ended" not in said and "Traceback" not in said, said
