"""What commands say of parked keys, of foreign ones, of a file with a wrong key, and of two that are the same."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from projectors.binding import bind
from viewtail import Entity, RedisJson
from viewtail.changes.errors import MisuseError, ViewtailError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.commands.replay_keys import _keys_of
from viewtail.commands.verify import Options, _chosen, _print
from viewtail.operations.runs import Run
from viewtail.operations.verify import Verify
from viewtail.settings import load as load_settings

NUMBERED = Table(
    schema="shop",
    name="user",
    columns=(Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),),
    primary_key=("id",),
)


def verified(*, parked: set[str] = frozenset(), letters: set[str] = frozenset(), foreign: tuple[str, ...] = ()) -> Any:  # type: ignore[assignment]
    """The report of a pass that found these, and how its record says that it ended."""
    ended: list[str] = []
    run: Any = SimpleNamespace(progress={}, end=lambda _, words: ended.append(words))
    view = SimpleNamespace(id="redis:card", view=SimpleNamespace(entity=SimpleNamespace(version=None)))
    of_keys = {name: SimpleNamespace(waits=False) for name in letters}
    beside: Any = SimpleNamespace(view=view, letters_of=lambda _: of_keys, paused=())
    pass_ = Verify(beside=beside, run=run, throttle=Any)  # type: ignore[arg-type]
    pass_._parked, pass_.counts.parked, pass_.counts.foreign = set(parked), len(parked), len(foreign)
    comparison: Any = SimpleNamespace(reader=SimpleNamespace(foreign=foreign))
    pass_._comparison = comparison
    return pass_._report([], 0.0, ""), ended


def test_the_record_of_a_pass_counts_what_viewtail_did_not_write() -> None:
    _, ended = verified(foreign=("a", "b"))
    assert ended == ["0 rows compared: 2 foreign"]
    _, ended = verified(parked={"7"})
    assert ended == ["0 rows compared: none differs, 1 parked"]


def test_a_parked_key_without_a_dead_letter_is_not_looked_for_there(capsys: pytest.CaptureFixture[str]) -> None:
    report, _ = verified(parked={"7", "a b"}, letters={"a b", "9"})
    options = Options(
        is_repair=False, is_dry_run=False, share=1.0, rows_a_second=0, max_threads_running=1, as_json=False
    )
    _print(report, options)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "redis:card\t7\tparked\tits dead letter is gone; to try it again: viewtail replay redis:card --key 7",
        "redis:card\ta b\tparked\tviewtail dead-letters show redis:card 'a b'",
    ]


def test_a_pass_over_everything_says_which_views_it_leaves_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "views_with_a_topic.py").write_text(
        "from viewtail import Entity, RedisHash, Topic\nuser = Entity('shop.user')\n"
        "views = [RedisHash('user', user, fields=['id']), Topic('shop.user', user)]\n"
    )
    monkeypatch.chdir(tmp_path)
    loaded = load_settings(None).model_copy(update={"views": "views_with_a_topic:views"})
    assert [view.id for view in _chosen(loaded, [])] == ["redis:user"]
    said = capsys.readouterr().err
    assert "kafka:shop.user: a topic is not compared: it has changes, not rows" in said and "redis:user" not in said
    assert [view.id for view in _chosen(loaded, ["redis:user"])] == ["redis:user"]
    assert capsys.readouterr().err == "", "it was not asked of all"


def test_a_command_that_another_one_runs_now_is_no_misuse() -> None:
    class Running(Run):
        def _is_locked(self) -> bool:
            return False

    cursor = SimpleNamespace(execute=lambda *_: 1, fetchone=lambda: (7, "{}", "ann@db1"))
    one = Running(lambda: Any, "viewtail", "replay", "redis:city", "all", "")  # type: ignore[arg-type, return-value]
    with pytest.raises(ViewtailError, match=r"ann@db1 runs the same replay of redis:city now") as said:
        one._take_row(cursor)
    assert said.value.exit_code == 1


def test_a_file_of_keys_may_begin_with_a_byte_order_mark_and_a_wrong_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = RedisJson("card", Entity("shop.user"), document=dict)
    (bound,) = bind([view], lambda schema, name: NUMBERED)
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf11\r\n\n12\n")
    assert _keys_of(bound, file) == ["11", "12"]
    file.write_bytes(b"11\n\nabc\n")
    with pytest.raises(MisuseError, match=f"--keys-from {file}, line 3: the key 'abc' does not fit column id"):
        _keys_of(bound, file)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"\xef\xbb\xbf13\nx")))
    with pytest.raises(MisuseError, match="--keys-from -, line 2: the key 'x'"):
        _keys_of(bound, Path("-"))
