"""Programs wait for views from several threads at once, and each binds its view, which reads functions' sources."""

from __future__ import annotations

import gc
import inspect
import threading
import time

from projectors import function_source


class Cycle:
    """Python code that runs when it is collected, so that another thread may go on."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_may_read_sources_at_once() -> None:
    """CPython's parser fails where a thread makes a tree while another one's is half made."""
    text = inspect.getsource(function_source)
    failed: list[BaseException] = []

    def ask() -> None:
        for _ in range(20):
            gc.disable()
            for _ in range(300):
                Cycle()
            gc.enable()  # they go in the midst of what comes
            function_source._parsed.cache_clear()
            try:
                function_source._parsed(text)
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.enable()
    assert failed == []
