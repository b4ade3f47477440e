"""States in files of archived events, as many readers ask for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from viewtail.changes.errors import StoreError
from viewtail.entities import archive_files
from viewtail.entities.archive_files import FiledEvent


def written(path: Path, first: int) -> str:
    events = [FiledEvent(one, "e", one, "c", "n", "{}", "{}", f'{{"n": {one}}}', "") for one in range(first, first + 5)]
    return archive_files.write(path, "bank.account", events, lambda _: None)


def test_one_file_is_unpacked_at_a_time_and_not_again_while_it_is_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [(path := tmp_path / f"{first}", written(path, first), first) for first in (10, 20)]
    read, reading, most, began = archive_files.read, 0, 0, []
    lock = threading.Lock()

    def counted(path: Path, sha256: str) -> list[FiledEvent]:
        nonlocal reading, most
        with lock:
            reading += 1
            most = max(most, reading)
            began.append(path)
        try:
            threading.Event().wait(0.02)  # so that others come meanwhile
            return read(path, sha256)
        finally:
            with lock:
                reading -= 1

    monkeypatch.setattr(archive_files, "read", counted)
    with ThreadPoolExecutor(8) as pool:
        for path, digest, first in files:
            asked = [pool.submit(archive_files.state_in, path, digest, first + number % 6) for number in range(24)]
            found = [one.result() for one in asked]
            assert found == [None if number % 6 == 5 else f'{{"n": {first + number % 6}}}' for number in range(24)]
        assert began == [path for path, *_ in files]
        began.clear()
        asked = [pool.submit(archive_files.state_in, path, digest, first) for path, digest, first in files * 8]
        assert [one.result() for one in asked] == ['{"n": 10}', '{"n": 20}'] * 8
    assert most == 1 and began


def test_nothing_of_a_damaged_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    digest = written(path, 30)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    for _ in range(2):
        with pytest.raises(StoreError, match="is damaged"):
            archive_files.state_in(path, digest, 30)
    path.write_bytes(whole)
    assert archive_files.state_in(path, digest, 30) == '{"n": 30}'
