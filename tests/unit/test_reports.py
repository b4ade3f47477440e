"""Lines to the supervisor."""

from __future__ import annotations

import json
import os
import threading

from viewtail.reports import tell

WRITERS, LINES = 4, 20


def test_long_lines_of_several_pipelines_in_one_pipe_stay_whole() -> None:
    read_end, write_end = os.pipe()

    def write(number: int) -> None:
        views = [{"view": f"redis:{number}", "state": "filled", "parked": 0}] * 3000  # more than a pipe holds
        for _ in range(LINES):
            tell(write_end, {"pipeline": str(number), "views": views})

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    with os.fdopen(read_end, "rb") as lines:
        found = [json.loads(next(lines)) for _ in range(WRITERS * LINES)]
    for writer in writers:
        writer.join()
    os.close(write_end)
    for line in found:
        assert {view["view"] for view in line["views"]} == {f"redis:{line['pipeline']}"}
