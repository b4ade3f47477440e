"""entities.py as `viewtail serve` loads it: what is wrong with it is one message with the file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from viewtail import settings
from viewtail.changes.errors import DeclarationError
from viewtail.entities.serving import declared

GOOD = """
from viewtail.entities import EventSourced
entities = [EventSourced("bank.account", {"deposit": lambda state, request: (1, 1)})]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "entities", ModuleType("entities"))  # what the test loads goes with it
    del sys.modules["entities"]
    return tmp_path


def loaded(**environment: str) -> settings.Settings:
    return settings.load(None, {"VIEWTAIL_SOURCE__URL": "mysql://root@db:1", **environment})


def test_entities_have_the_settings_of_the_command(folder: Path) -> None:
    (folder / "entities.py").write_text(GOOD)
    (found,) = declared.entities(loaded())
    assert found.table.name == "bank.account" and found._address.host == "db"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            GOOD.replace("entities =", "enities ="),
            r"^entities\.py: there is no 'entities' in it; did you mean enities\?",
        ),
        ("entities = []", r"^entities\.py: entities must be a list of entities"),
        ("entities = [5]", r"^entities\.py: entities\[0\] is a value of type int, not entities, as EventSourced"),
        (GOOD + "entities *= 2", r"^entities\.py: 2 of entities have the table bank\.account"),
        (GOOD.replace("bank.account", "account"), r"^entities\.py:3: MisuseError: 'account': name the table with"),
        (GOOD.replace('"deposit"', '""'), r"the name of a command is text of 1 to 64 characters"),
        ("entities = [", r"^entities\.py:1: "),
    ],
)
def test_what_is_wrong_with_entities_py_is_said_with_its_file(folder: Path, text: str, says: str) -> None:
    (folder / "entities.py").write_text(text)
    with pytest.raises(DeclarationError, match=says):
        declared.entities(loaded())


def test_a_missing_entities_py_is_said_with_the_setting(folder: Path) -> None:
    with pytest.raises(DeclarationError, match="VIEWTAIL_SERVE__ENTITIES=MODULE:ATTRIBUTE"):
        declared.entities(loaded())
