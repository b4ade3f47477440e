"""`viewtail wait`: until a view has what was committed before."""

from __future__ import annotations

from dataclasses import asdict

from viewtail.operations.waiting import Wanted
from viewtail.settings import Settings
from viewtail.waiting import wait_for


def wait(loaded: Settings, view: str, key: str | None, wanted: Wanted, *, within_s: float) -> int:
    """Print how long it took; the exit code is 0. Raises WaitedTooLongError."""
    took_s = wait_for(view, key, **asdict(wanted), within_s=within_s, settings=loaded)
    print(f"{view}: has it, after {took_s:.3f} s")
    return 0
