"""The example jogchat as a reader runs it, with a short live phase."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.mysql
@pytest.mark.slow
def test_jogchat_ends_with_every_view_equal_to_its_tables() -> None:
    environment = {**os.environ, "DEMO_LIVE_S": "4"}
    command = [sys.executable, "-m", "examples.jogchat"]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "jogchat: 12 views equal their tables"
    assert done.stdout.count("   equal\n") == 12
