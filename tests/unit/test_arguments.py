"""What no command takes, whatever it is called; and what an option says that changes nothing."""

from __future__ import annotations

import pytest
import typer

from viewtail.main import app, main


@pytest.mark.parametrize("words", [("why", "redis:pkg", "\udcff\udcfe"), ("pause", "pkg", "--reason", "\udce9")])
def test_an_argument_that_is_not_utf_8_is_misuse(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"the argument {words[-1]!a} is not UTF-8" in capsys.readouterr().err


def test_help_shows_a_section_of_the_settings_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    assert "the webhook of [notify]" in " ".join(capsys.readouterr().out.replace("│", "").split())


def test_help_says_why_the_newest_event_stays_without_an_option_too() -> None:
    (helped,) = [
        one.help for one in typer.main.get_command(app).commands["archive"].params if "--keep-last" in one.opts
    ]
    assert "Changes nothing" in helped and "state is in it" in helped
