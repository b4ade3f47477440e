"""The examples, as a reader runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from examples.orders import tables
from stack.places import CHECKOUT

_SEEN = re.compile(r"^  shop\.(?P<table>\w+) +elasticsearch +\d+ ms   redis +\d+ ms   \w", re.MULTILINE)

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "views"),
    [("bank", 2), ("friendfeed", 10), ("unshatter", 3), pytest.param("orders", 5, marks=pytest.mark.elasticsearch)],
)
def test_an_example_ends_with_every_view_equal_to_its_table(name: str, views: int) -> None:
    environment = {
        variable: value
        for variable, value in os.environ.items()
        if not variable.startswith("VIEWTAIL_") or variable.startswith("VIEWTAIL_STACK_")
    }
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=CHECKOUT,
        env={**environment, f"{name.upper()}_LIVE_S": "3", "ORDERS_WEEKS": "1", "UNSHATTER_ACCOUNTS": "60"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if name == "orders":
        _kept_its_promises(done.stdout)
    if name == "unshatter":
        _nobody_noticed(done.stdout)
    assert done.stdout.endswith(f"\n{name}: {views} views equal their tables\n")
    assert done.stdout.count(": equal, ") == views and not done.stderr


def _kept_its_promises(output: str) -> None:
    """What examples/orders/README.md says that one sees."""
    assert {match["table"] for match in _SEEN.finditer(output)} == {*tables.TABLES}
    before, killed, after = output.partition("viewtail is killed with SIGKILL")
    assert killed
    assert "redis:order" in before.rpartition("viewtail is killed meanwhile")[2], "a fan-out is under way"
    assert "order" in after and " orders show it in Redis and Elasticsearch " in after
    assert output.count(": the same answer\n") == 4
    assert output.count(" rows   equal\n") == 5


def _nobody_noticed(output: str) -> None:
    """What examples/unshatter/README.md says that one sees."""
    before, killed, after = output.partition("is killed with SIGKILL")
    assert killed and "views filled" in before and "no view halted" in after
    assert output.count("  Ready") == 3, "viewtail cutover says so of each"
    assert len(re.findall(r"viewtail\.\w+ +[\d,]+ rows   equal", after)) == 3
    assert len(re.findall(r" app\.\w+ +[\d,]+ rows   equal", after)) == 3
    assert re.search(r"[\d,]+ reads, none failed, .* [\d,]+ writes, none failed", after)
