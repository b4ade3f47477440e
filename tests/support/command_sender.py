"""Sends a part of numbered commands to event-sourced accounts, some of them several times, and prints each answer.

python -m tests.support.command_sender PORT SEED COUNT: for tests that kill it. One line of JSON for each answer: the
command's number, and the balance and version of a committed one, or why it was refused.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from concurrent.futures import Future
from typing import Any

from viewtail import settings
from viewtail.entities import Answer, Command, CommandWorker, EventSourced, Refusal, RefusedError

ENTITIES = 20
TABLE = "commands.account"


def move(state: Any, request: Any) -> tuple[Any, Any]:
    """An account that never goes below zero."""
    balance = (0 if state is None else state["balance"]) + request["amount"]
    if balance < 0:
        raise Refusal("not enough")
    return {"balance": balance}, {"balance": balance}


def command(number: int) -> Command:
    """What everybody sends under this number."""
    amount = number * 7919 % 200 - 60
    return Command(entity_id=f"e{number % ENTITIES}", command_id=f"c{number}", name="move", request={"amount": amount})


def accounts(port: int) -> EventSourced:
    """On a server of the stack."""
    environment = {"VIEWTAIL_SOURCE__URL": f"mysql://root@127.0.0.1:{port}"}
    return EventSourced(TABLE, {"move": move}, settings=settings.load(None, environment))


def send(worker: CommandWorker, numbers: list[int], say: Any) -> None:
    """All of them; returns when each is answered."""
    left = threading.Semaphore(0)

    def answered(number: int, future: Future[Answer]) -> None:
        error = future.exception()
        if error is None:
            answer = future.result()
            say({"number": number, "balance": answer.response["balance"], "version": answer.version})
        elif isinstance(error, RefusedError):
            say({"number": number, "refused": str(error)})
        else:
            say({"number": number, "error": f"{type(error).__name__}: {error}"})
        left.release()

    for number in numbers:
        worker.submit(command(number)).add_done_callback(lambda future, number=number: answered(number, future))
    for _ in numbers:
        left.acquire()


def main() -> None:
    port, seed, count = map(int, sys.argv[1:])
    chance, lock = random.Random(seed), threading.Lock()

    def say(line: dict[str, Any]) -> None:
        with lock:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    with accounts(port).worker() as worker:
        while True:
            some = [chance.randrange(count) for _ in range(chance.randint(1, 400))]
            send(worker, some + chance.sample(some, chance.randint(0, len(some))), say)


if __name__ == "__main__":
    main()
