"""Whether some viewtail wrote keys where a new view's would be: a sample of all keys is looked at."""

from __future__ import annotations

import structlog

from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.owners import Ask
from projectors.stores.redis.script import BELOW
from projectors.views import BoundView
from viewtail.changes.versions import WIDTH

_log = structlog.get_logger("viewtail.redis")

STEPS_OF_A_SAMPLE = 200  # of SCAN: not all keys there are
KEYS_A_STEP = 500


def holds_keys(ask: Ask, view: BoundView) -> bool | None:
    """Return whether some viewtail wrote keys of the view's shape there; None: not as far as the sample shows."""
    keys, cursor = RedisKeys(view), b"0"
    for _ in range(STEPS_OF_A_SAMPLE):
        scan = (cursor, keys.scan_match, KEYS_A_STEP)
        pages = [ask("EVAL", BELOW, 0, form, f"{10**WIDTH - 1:0{WIDTH}d}", *scan) for form in ("hash", "json")]
        if any(keys.key_of(name.decode(errors="replace")) is not None for page in pages for name in page[1::2]):
            return True
        cursor = pages[0][0]
        if int(cursor) == 0:
            return False
    _log.warning(
        "not all keys were looked at: another viewtail's may lie where a new view's will be", view=view.view.id
    )
    return None
