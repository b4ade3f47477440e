"""Replays of random ranges in random order, some of them killed, while rows come, change, move, go and come back.

One seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_replays.py` runs the seventh. A run of all
tests takes fewer replays; `make replays` takes 100.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stack import Server
from tests.support.replayed import (
    KEYS,
    NAMES,
    STORE,
    STORES,
    VIEWS,
    ReplayedWorld,
    Watch,
    Writers,
)
from tests.support.running import CLEANING, Run, addresses, running, wait_for

SEED = int(os.environ.get("VIEWTAIL_TEST_SEED", "1"))
REPLAYS = int(os.environ.get("VIEWTAIL_TEST_REPLAYS", "16"))
AT_ONCE = 3
DEATHS = (None, signal.SIGINT, signal.SIGKILL)  # None: at a named step of its own
ENTITIES = ("--key", "--keys-from", "--where", "--since", "--from")
WHOLE = "the whole view"


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * REPLAYS)
def test_replays_of_random_ranges_beside_writers_lower_nothing_and_bring_nothing_back(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server, tmp_path: Path
) -> None:
    print(f"seed {SEED}: rerun with VIEWTAIL_TEST_SEED={SEED}")
    world = ReplayedWorld(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server)
    world.make()
    environment = addresses(mysql_server, redis_server, elasticsearch_server) | CLEANING
    environment["VIEWTAIL_MYSQL__URL"] = f"{mysql_server.url}/{STORE}"
    environment["VIEWTAIL_RUN__CHUNK_ROWS"] = "100"
    with running(tmp_path, VIEWS, environment) as run:
        world.wait_until_equal()
        wait_for("all is well", run.is_well)
        replays = Replays(world, run, tmp_path, environment)
        began = time.monotonic()
        with Writers(world, SEED) as writers, Watch(world) as watch:
            replays.all()
            wait_for("beacons are seen in every store", lambda: len(watch.beacons) == len(STORES))
        took_s = time.monotonic() - began
        world.wait_until_equal()
        wait_for("all is well", run.is_well)
        past = json.loads(run.command("replays", "--json", "--limit", "10000").stdout)
        rounds = [one for one in past if one["kind"] == "clean"]
        mended = [line for line in run.log.splitlines() if "the cleaner wrote entities again" in line]
        assert run.stop() == 0
    world.drop()
    checker = watch.checker
    print(
        f"{replays.done.total()} replays in {took_s:.0f} s, {writers.committed:,} transactions, {checker.looks:,} looks"
    )
    print(f"{dict(replays.done)}; interrupted: {replays.interrupted}; beacons passed: {watch.beacons}")
    told = [*checker.failures, *writers.failures, *replays.failures]
    assert told == [], "\n".join([f"{len(told)}:", *told[:20], *replays.failures])
    cut_off = "cut off by another replay"  # where two are of the same whole view
    asked = [one["state"] for one in past if one not in rounds and not one["result"].startswith(cut_off)]
    assert set(asked) == {"done"}, "the same command finished what was stopped"
    assert {one["view"].partition(":")[0] for one in rounds} == {*STORES}, "a cleaner goes round beside"
    assert mended == [], "nothing was damaged"
    assert replays.done.total() == REPLAYS and checker.looks > 1000 * REPLAYS and writers.committed > 10 * REPLAYS


PASSING = ("so it is not whole yet", "runs the same replay of")


@dataclass(eq=False)
class Replays:
    """Commands, several at once; the same one again until it is done."""

    world: ReplayedWorld
    run: Run
    folder: Path
    environment: dict[str, str]
    done: Counter[str] = field(default_factory=Counter)
    interrupted: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _places: list[str] = field(default_factory=list)  # of the binlog, in order

    def all(self) -> None:
        """Return when all are done."""
        chance = random.Random(SEED)
        kinds = [*ENTITIES, *ENTITIES, WHOLE]
        wanted = [(kinds[number % len(kinds)], chance.getrandbits(32)) for number in range(REPLAYS)]
        chance.shuffle(wanted)
        self._began_at = time.time()
        self._note_place()
        threads = [threading.Thread(target=self._some, args=(wanted,)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _some(self, wanted: list[tuple[str, int]]) -> None:
        while wanted and not self.failures:
            kind, seed = wanted.pop()
            try:
                self._one(kind, random.Random(seed))
            except Exception as error:
                self.failures.append(f"{kind}: {error!r}")

    def _one(self, kind: str, chance: random.Random) -> None:
        store, name = chance.choice(STORES), chance.choice(sorted(NAMES))
        view = f"{store}:rp_{name}"
        if chance.random() < 0.2:
            self.world.ask("FLUSH BINARY LOGS")
        self._note_place()
        if kind == WHOLE:
            self._whole(view, store, chance)
        else:
            arguments = ["replay", view, *self._named(kind, chance)]
            fate = chance.random()
            if fate < 0.2:
                self._until_done([*arguments, "--dry-run"])
            elif fate < 0.5:
                self._interrupt([*arguments, "--yes", "--max-rows-per-second", "2000"], chance)
            self._until_done([*arguments, "--yes"])
        self.done[f"{store} {kind}"] += 1

    def _named(self, kind: str, chance: random.Random) -> list[str]:
        begin = chance.randrange(KEYS)
        upto = min(KEYS, begin + chance.choice((10, 100, 1000, KEYS)))
        if kind == "--key":
            return [word for _ in range(chance.randint(1, 30)) for word in ("--key", str(chance.randrange(KEYS + 20)))]
        if kind == "--keys-from":
            keys = [str(key) for key in range(begin, upto)]
            chance.shuffle(keys)
            file = self.folder / f"keys-{chance.getrandbits(64):x}"
            file.write_text("\n".join(keys))
            return ["--keys-from", str(file)]
        if kind == "--where":
            return ["--where", chance.choice((f"id BETWEEN {begin} AND {upto}", f"seq % 7 = {begin % 7}"))]
        if kind == "--since":
            since = chance.uniform(max(self._began_at, time.time() - 20), time.time())
            return ["--since", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))]
        places = list(self._places)
        at = chance.randrange(len(places))
        return ["--from", places[at], *(["--to", chance.choice(places[at:])] if chance.random() < 0.7 else [])]

    def _whole(self, view: str, store: str, chance: random.Random) -> None:
        """By the running viewtail, which is killed in the midst of some."""
        self._until_done(["replay", view, "--yes"])
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, 0.5))  # how far it comes; nothing is awaited
            self.interrupted["a pipeline"] += self.run.kill_worker(store)
        asked = f"SELECT state FROM {STORE}.view WHERE name = '{view}'"
        wait_for(f"{view} is filled", lambda: self.world.ask(asked) == [("filled",)])

    def _interrupt(self, arguments: list[str], chance: random.Random) -> None:
        """Begun, and ended from outside or at a named step, wherever it is by then."""
        death = chance.choice(DEATHS)
        environment = {"VIEWTAIL_FAILPOINT": "after rewrite"} if death is None else {}
        process = self.run.background(*arguments, **environment)
        if death is not None:
            wait_for("it has begun", lambda: process.poll() is not None or _takes_signals(process.pid))
            time.sleep(chance.uniform(0, 1.5))  # how far it comes; nothing is awaited
            process.send_signal(death)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors, errors
        if process.returncode not in (0, 1):
            self.interrupted["at a step" if death is None else death.name] += 1

    def _until_done(self, arguments: list[str]) -> None:
        """What is refused for a backfill that runs, or for the same replay by another thread, is asked again."""

        def is_done() -> bool:
            done = self.run.command(*arguments)
            said = done.stdout + done.stderr
            if done.returncode and any(reason in said for reason in PASSING):
                return False
            if done.returncode:
                raise Refused(f"{' '.join(arguments)[:300]}: {done.returncode}: {said}")
            return True

        deadline = time.monotonic() + 60
        while not is_done():
            assert time.monotonic() < deadline, f"never done: {arguments}"

    def _note_place(self) -> None:
        ((file, end, *_),) = self.world.ask("SHOW BINARY LOG STATUS")
        self._places.append(f"{file}:{end}")


def _takes_signals(pid: int) -> bool:
    """Whether Python is up, and viewtail waits for Ctrl-C in a thread."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
    return bool(int(blocked.split()[1], 16) & (1 << (signal.SIGINT - 1)))


class Refused(Exception):
    """What a command said."""
