"""What no command takes, whatever it is called."""

from __future__ import annotations

import pytest

from viewtail.main import main


@pytest.mark.parametrize("words", [("why", "redis:pkg", "\udcff\udcfe"), ("pause", "pkg", "--reason", "\udce9")])
def test_an_argument_that_is_not_utf_8_is_misuse(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"the argument {words[-1]!a} is not UTF-8" in capsys.readouterr().err
