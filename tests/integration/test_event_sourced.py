"""Event-sourced entities on a real MySQL: each command takes effect once, and gets its first answer ever after."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail import settings
from viewtail.changes.errors import MisuseError, StoreUnavailableError
from viewtail.entities import (
    Answer,
    Command,
    CommandWorker,
    EventSourced,
    HandlerFailedError,
    Refusal,
    RefusedError,
    UsedCommandIdError,
    WorkerBusyError,
    WorkerEndedError,
    batches,
    handling,
    remembered,
)
from viewtail.entities.archives import Archive
from viewtail.entities.batches import Batches, GivenUpError
from viewtail.entities.commands import HandlerHungError
from viewtail.entities.event_table import Event, EventTable, Newest, landed
from viewtail.entities.handling import Outcome
from viewtail.entities.worker import LANES
from viewtail.servers.pipelined import Flight
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

pytestmark = pytest.mark.mysql

EVENTS = "SELECT entity_id, version, command_id FROM bank.account ORDER BY event_id"


def deposit(state: Any, request: Any) -> tuple[Any, Any]:
    balance = (0 if state is None else state["balance"]) + request["amount"]
    if balance < 0:
        raise Refusal("not enough money")
    return {"balance": balance}, {"balance": balance, "last": request.get("note")}


def fails(state: Any, request: Any) -> tuple[Any, Any]:
    state["balance"] = 1_000_000
    raise KeyError("a value that nobody should read")


class Bank:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.hanging = threading.Event()
        self.accounts = EventSourced(
            "bank.account",
            {
                "deposit": deposit,
                "fails": fails,
                "hangs": lambda state, _: (self.hanging.wait(100), (None, state))[1],
                "exits": lambda *_: exit(3),
                "answers": lambda state, request: request["answer"],
                "answers pair": lambda state, request: (request["answer"], state),
                "no json": lambda state, _: (object(), state),
                "no number": lambda state, _: ({"rate": float("nan")}, state),
            },
            settings=settings.load(None, {"VIEWTAIL_SOURCE__URL": f"mysql://root@127.0.0.1:{server.port}"}),
        )
        ask(server, "DROP DATABASE IF EXISTS bank")
        self.accounts.create()
        self.accounts.create()
        self.sent = 0

    def command(self, name: str = "deposit", entity: str = "ada", command_id: str = "", **request: Any) -> Command:
        self.sent += 1
        return Command(entity_id=entity, command_id=command_id or f"c{self.sent}", name=name, request=request)

    def session(self) -> Connection:
        return open_session(MySQLAddress(host="127.0.0.1", port=self.server.port, user="root"), role="store")

    def events(self) -> list[tuple[Any, ...]]:
        return ask(self.server, EVENTS)


@pytest.fixture
def bank(mysql_server: Server) -> Iterator[Bank]:
    found = Bank(mysql_server)
    yield found
    found.hanging.set()


@pytest.fixture
def worker(bank: Bank) -> Iterator[CommandWorker]:
    with bank.accounts.worker() as found:
        yield found


def answer(future: Future[Answer]) -> Answer:
    return future.result(60)


def test_an_entity_is_what_its_commands_made_of_it(bank: Bank, worker: CommandWorker) -> None:
    assert bank.accounts.state("ada") is None
    assert answer(worker.submit(bank.command(amount=5))) == Answer(
        response={"balance": 5}, version=1, is_repeated=False
    )
    assert answer(worker.submit(bank.command(amount=-2, note="rent"))).version == 2
    assert answer(worker.submit(bank.command(entity="bob", amount=1))).version == 1
    assert bank.accounts.state("ada") == ({"balance": 3, "last": "rent"}, 2)
    assert bank.accounts.state("ada", version=1) == ({"balance": 5, "last": None}, 1)
    assert bank.accounts.state("ada", version=3) is None
    assert bank.events() == [("ada", 1, "c1"), ("ada", 2, "c2"), ("bob", 1, "c3")]


def test_a_command_that_comes_again_gets_its_first_answer_whoever_asks(bank: Bank, worker: CommandWorker) -> None:
    first = bank.command(command_id="once", amount=5)
    assert not answer(worker.submit(first)).is_repeated
    answer(worker.submit(bank.command(amount=7)))
    again = Answer(response={"balance": 5}, version=1, is_repeated=True)
    assert answer(worker.submit(bank.command(command_id="once", amount=5))) == again
    with bank.accounts.worker() as other:
        assert answer(other.submit(first)) == again
    both = [worker.submit(one) for one in [bank.command(command_id="twice", amount=1)] * 2]
    assert [answer(one).version for one in both] == [3, 3]
    assert answer(worker.submit(bank.command(entity="bob", command_id="once", amount=5))).version == 1
    assert len(bank.events()) == 4


@pytest.mark.parametrize(("name", "request_"), [("deposit", {"amount": 6}), ("fails", {"amount": 5})])
def test_another_command_under_a_used_id_is_an_error(
    bank: Bank, worker: CommandWorker, name: str, request_: dict[str, Any]
) -> None:
    answer(worker.submit(bank.command(command_id="once", amount=5)))
    with pytest.raises(UsedCommandIdError, match="use an id of its own"):
        answer(worker.submit(bank.command(name, command_id="once", **request_)))
    assert len(bank.events()) == 1


def test_a_refusal_writes_nothing_and_may_succeed_later(bank: Bank, worker: CommandWorker) -> None:
    withdrawal = bank.command(amount=-3)
    with pytest.raises(RefusedError, match=r"^not enough money$"):
        answer(worker.submit(withdrawal))
    assert bank.events() == []
    answer(worker.submit(bank.command(amount=10)))
    assert answer(worker.submit(withdrawal)).response == {"balance": 7}


def test_a_refusal_is_of_the_state_that_another_owner_left(bank: Bank, worker: CommandWorker) -> None:
    answer(worker.submit(bank.command(amount=5)))
    with bank.accounts.worker() as other:
        answer(other.submit(bank.command(amount=-5)))
    with pytest.raises(RefusedError):
        answer(worker.submit(bank.command(amount=-1)))


def test_many_commands_of_one_entity_are_one_transaction_each_on_the_state_before(bank: Bank) -> None:
    ((_, before),) = ask(bank.server, "SHOW GLOBAL STATUS LIKE 'Com_commit'")
    with bank.accounts.worker(hangs_after_s=60) as worker:
        first = worker.submit(bank.command("hangs"))  # until all are there
        asked = [worker.submit(bank.command(amount=1, note=at)) for at in range(3_000)]
        bank.hanging.set()
        assert answer(first).version == 1
        found = [answer(one) for one in asked]
    assert [one.version for one in found] == list(range(2, 3_002))
    assert [one.response["balance"] for one in found] == list(range(1, 3_001))
    ((_, after),) = ask(bank.server, "SHOW GLOBAL STATUS LIKE 'Com_commit'")
    assert int(after) - int(before) < 30, "batches grow while one is committed"


def test_coroutines_get_what_threads_get(bank: Bank, worker: CommandWorker) -> None:
    async def ask_all() -> list[Answer | BaseException]:
        cancelled = asyncio.ensure_future(worker.answer(bank.command(amount=100)))
        await asyncio.sleep(0)
        cancelled.cancel()
        commands = [bank.command(amount=1) for _ in range(300)]
        wrong = [bank.command(amount=-1_000), bank.command("fails")]
        return await asyncio.gather(*map(worker.answer, [*commands, *wrong]), return_exceptions=True)

    *found, refused, failed = asyncio.run(ask_all())
    assert [one.version for one in found if isinstance(one, Answer)] == list(range(2, 302))
    assert isinstance(refused, RefusedError) and isinstance(failed, HandlerFailedError)
    asyncio.run(asyncio.wait_for(worker.answer(bank.command(amount=1)), 20))  # a loop that is gone hinders nobody
    worker.close()
    with pytest.raises(WorkerEndedError):
        asyncio.run(worker.answer(bank.command(amount=1)))


def test_a_busy_entity_is_not_read_again_for_each_batch(
    bank: Bank, worker: CommandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "FOR_S", 60.0)
    read: list[str] = []
    newest = EventTable.newest

    def counting(self: EventTable, connection: Connection, entity_ids: Collection[str]) -> dict[str, Newest]:
        read.extend(entity_ids)
        return newest(self, connection, entity_ids)

    monkeypatch.setattr(EventTable, "newest", counting)
    assert [answer(worker.submit(bank.command(amount=1))).version for _ in range(5)] == [1, 2, 3, 4, 5]
    assert read == ["ada"]


def test_what_is_remembered_of_an_entity_is_compared_with_the_table(
    bank: Bank, worker: CommandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "FOR_S", 60.0)
    answer(worker.submit(bank.command(amount=5)))
    with bank.accounts.worker() as other:
        answer(other.submit(bank.command(command_id="theirs", amount=5)))
    assert answer(worker.submit(bank.command(amount=-10))).response == {"balance": 0}, "it is refused of a balance of 5"
    assert answer(worker.submit(bank.command(command_id="theirs", amount=5))).is_repeated
    assert [version for _, version, _ in bank.events()] == [1, 2, 3]


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of commands that were looked up before a handler was called, or before its refusal was told."""
    found: list[str] = []
    recorded = EventTable.recorded

    def noting(self: EventTable, connection: Connection, commands: Sequence[Command]) -> dict[Any, Any]:
        found.extend(command.command_id for command in commands)
        return recorded(self, connection, commands)

    monkeypatch.setattr(EventTable, "recorded", noting)
    return found


def test_commands_are_looked_up_only_where_one_came_again_a_moment_ago(
    bank: Bank, worker: CommandWorker, looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "LOOKED_UP_FOR_S", 60.0)
    for at in range(3):
        answer(worker.submit(bank.command(command_id=f"new {at}", amount=1)))
    assert looked_up == []
    assert answer(worker.submit(bank.command(command_id="new 1", amount=1))).version == 2
    answer(worker.submit(bank.command(command_id="next", amount=1)))
    assert looked_up == ["new 1", "next"]


def test_what_a_handler_refuses_now_and_took_once_gets_its_first_answer(
    bank: Bank, worker: CommandWorker, looked_up: list[str]
) -> None:
    """Alone, and in a batch of which another command is new, on the state that was left by those that count."""
    answer(worker.submit(bank.command(amount=5)))
    withdrawal = bank.command(command_id="all", amount=-5)
    assert answer(worker.submit(withdrawal)).version == 2
    assert answer(worker.submit(withdrawal)) == Answer(response={"balance": 0}, version=2, is_repeated=True)
    answer(worker.submit(bank.command(amount=7)))
    with bank.accounts.worker(hangs_after_s=60) as other:
        first = other.submit(bank.command("hangs", "bob"))  # until all are there
        asked = [other.submit(one) for one in (bank.command(amount=-6), withdrawal, bank.command(amount=-1))]
        refused = other.submit(bank.command(command_id="too much", amount=-1))
        bank.hanging.set()
        with pytest.raises(RefusedError):
            answer(refused)
        assert answer(first).version == 1
        assert [(one.version, one.response) for one in map(answer, asked)] == [
            (4, {"balance": 1}),
            (2, {"balance": 0}),
            (5, {"balance": 0}),
        ]
    assert {"all", "too much"} <= {*looked_up}


def test_a_handler_that_hangs_at_a_command_that_comes_again_keeps_its_first_answer(bank: Bank) -> None:
    bank.hanging.set()
    with bank.accounts.worker(hangs_after_s=1) as worker:
        answer(worker.submit(bank.command("hangs", command_id="once")))
        bank.hanging.clear()
        both = [worker.submit(bank.command("hangs", command_id=name)) for name in ("once", "new")]
        assert answer(both[0]).is_repeated
        with pytest.raises(HandlerHungError, match="did not return within 1 s"):
            answer(both[1])
        assert answer(worker.submit(bank.command(amount=1))).version == 2
    assert [name for *_, name in bank.events()] == ["once", "c4"]


def test_owners_beside_each_other_are_never_wrong(bank: Bank) -> None:
    """Each command is sent to two of four workers, half of them at once."""
    workers = [bank.accounts.worker() for _ in range(4)]
    commands = [bank.command(amount=1, entity=f"e{at % 3}") for at in range(600)]
    with ThreadPoolExecutor(16) as callers:

        def send(at: int) -> list[Answer]:
            first = workers[at % 4].submit(commands[at])
            second = workers[(at + 1) % 4].submit(commands[at])
            return [answer(first), answer(second)]

        found = list(callers.map(send, range(600)))
    for one in workers:
        one.close()
    for first, second in found:
        assert (first.response, first.version) == (second.response, second.version)
        assert first.is_repeated != second.is_repeated
    events = bank.events()
    for entity in ("e0", "e1", "e2"):
        assert [version for name, version, _ in events if name == entity] == list(range(1, 201))
        assert bank.accounts.state(entity) == ({"balance": 200, "last": None}, 200)


@pytest.mark.parametrize("came_through", [True, False])
def test_a_commit_without_an_answer_is_looked_up(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, came_through: bool
) -> None:
    lost: list[bool] = []
    send = Flight.send

    def breaks(flight: Flight, statement: bytes) -> None:
        if statement == b"COMMIT" and not lost:
            lost.append(True)
            if came_through:
                send(flight, statement)
                landed(flight)
            flight._connection._force_close()
            raise pymysql.err.OperationalError(2013, "Lost connection")
        send(flight, statement)

    with bank.accounts.worker() as worker:
        monkeypatch.setattr(Flight, "send", breaks)
        found = [answer(one) for one in [worker.submit(bank.command(amount=2)) for _ in range(5)]]
    assert lost and [one.response["balance"] for one in found] == [2, 4, 6, 8, 10]
    assert len(bank.events()) == 5


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fails", "raised KeyError"),
        ("exits", "raised SystemExit"),
        ("no json", "response that is no JSON"),
        ("no number", "infinite or not a number"),
        ("unknown", "nothing handles"),
    ],
)
def test_a_handler_that_fails_writes_nothing_and_the_queue_goes_on(
    bank: Bank, worker: CommandWorker, name: str, says: str
) -> None:
    asked = [worker.submit(bank.command(one, amount=1)) for one in ("deposit", name, "deposit")]
    assert answer(asked[0]).version == 1
    with pytest.raises(HandlerFailedError, match=says) as raised:
        answer(asked[1])
    assert "nobody should read" not in str(raised.value)
    assert answer(asked[2]).response == {"balance": 2}
    assert len(bank.events()) == 2


@pytest.mark.parametrize("wrong", [None, 5, [1, 2], {"a": 1}])
def test_a_handler_must_return_a_response_and_a_state(bank: Bank, worker: CommandWorker, wrong: Any) -> None:
    with pytest.raises(HandlerFailedError, match="not a tuple"):
        answer(worker.submit(bank.command("answers", answer=wrong)))
    assert bank.events() == []


def test_what_mysql_refuses_is_the_failure_of_its_command_alone(bank: Bank, worker: CommandWorker) -> None:
    deep: Any = 1
    for _ in range(110):
        deep = [deep]
    answer(worker.submit(bank.command(amount=1)))
    asked = [worker.submit(bank.command("answers pair", answer=one)) for one in ("fine", deep, "fine")]
    assert answer(asked[0]).response == answer(asked[2]).response == "fine"
    with pytest.raises(HandlerFailedError, match="MySQL refused"):
        answer(asked[1])
    assert len(bank.events()) == 3
    answers: list[Any] = ["once"]
    worker._handlers["answers pair"] = lambda state, _: (answers[-1], state)
    once = bank.command("answers pair")
    assert answer(worker.submit(once)).response == "once"
    answers.append(deep)
    assert answer(worker.submit(once)).response == "once", "MySQL refuses it before it comes to its key"


def test_a_handler_that_hangs_is_given_up_and_writes_nothing_later(bank: Bank) -> None:
    with bank.accounts.worker(hangs_after_s=2) as worker:
        asked = [worker.submit(bank.command(one, amount=1)) for one in ("deposit", "hangs", "deposit")]
        with pytest.raises(HandlerFailedError, match="did not return within 2 s"):
            answer(asked[1])
        assert answer(asked[2]).response == {"balance": 2}
        bank.hanging.set()
        time.sleep(0.5)
        assert [name for name, _, _ in bank.events()] == ["ada", "ada"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events were sent, each time."""
    counted: list[int] = []
    send = EventTable.send

    def counting(table: EventTable, flight: Flight, events: Collection[Event]) -> None:
        counted.append(len(events))
        send(table, flight, events)

    monkeypatch.setattr(EventTable, "send", counting)
    return counted


@pytest.fixture
def ahead(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The same; small batches are built on each other, however slow their handlers are."""
    monkeypatch.setattr("viewtail.entities.worker.FEW_COMMANDS", 2)
    monkeypatch.setattr(batches, "QUICK_S", 60)
    built: list[Batches] = []
    between = Batches._between

    def counting(one: Batches) -> Callable[[], None]:
        built.append(one)
        return between(one)

    monkeypatch.setattr(Batches, "_between", counting)
    yield sent
    assert built


COPIES = (
    "INSERT INTO bank.account (entity_id, version, command_id, command_name, request, response, state) "
    "SELECT entity_id, version + n, CONCAT('other', n), 'x', '1', '1', '{\"balance\": 99, \"last\": \"theirs\"}' "
    "FROM bank.account JOIN (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5) t"
)


def soon() -> float:
    return time.monotonic() + 60


def raises(*_: Any) -> Any:
    raise RuntimeError("so it is not tried again")


def together(bank: Bank, worker: CommandWorker, commands: Sequence[Command]) -> list[Future[Answer]]:
    """They wait until all are there, so that they are one batch."""
    first, *asked = behind_one_that_hangs(bank, worker, commands)
    answer(first)
    return asked


def with_both_sessions(worker: CommandWorker) -> None:
    """Of each lane; else the first batch that follows another one opens the second, and is not built on it."""
    for lane in worker._lanes:
        wait_for("its thread runs", lambda lane=lane: lane.turn.batches)  # type: ignore[misc]
        assert lane.turn.batches is not None
        lane.turn.batches._open_session(1)


@contextmanager
def another_owner_under_way(bank: Bank, which: str = "") -> Iterator[tuple[CommandWorker, Connection]]:
    """A worker whose entity has one event, and a session that wrote the next ones (COPIES) and has not ended."""
    with bank.accounts.worker(hangs_after_s=60) as worker, closing(bank.session()) as other:
        answer(worker.submit(bank.command(amount=1)))
        with_both_sessions(worker)
        with other.cursor() as cursor:
            cursor.execute(COPIES + which)
        yield worker, other


def behind_one_that_hangs(bank: Bank, worker: CommandWorker, commands: Sequence[Command]) -> list[Future[Answer]]:
    """That is the batch before, alone."""
    first = worker.submit(bank.command("hangs"))
    wait_for("it is called", lambda: not worker.waiting_count)
    asked = [first, *map(worker.submit, commands)]
    bank.hanging.set()
    return asked


def test_batches_are_built_on_those_under_way(bank: Bank, ahead: list[int]) -> None:
    """While the server waits for a lock, the next batch's handlers are called, and nothing of it is sent."""
    called: list[int] = []

    def notes(state: Any, request: Any) -> tuple[Any, Any]:
        called.append(request["amount"])
        return deposit(state, request)

    bank.accounts.handlers["notes"] = notes
    with another_owner_under_way(bank) as (worker, other):
        asked = behind_one_that_hangs(bank, worker, [bank.command("notes", amount=1) for _ in range(4)])
        wait_for("handlers behind it are called", lambda: len(called) == 3)
        assert not any(one.done() for one in asked) and ahead == [1, 1]
        other.rollback()
        assert [answer(one).version for one in asked] == [2, 3, 4, 5, 6]
    assert called == [1, 1, 1, 1]
    assert [version for _, version, _ in bank.events()] == [1, 2, 3, 4, 5, 6]


def test_where_another_owner_was_first_the_next_batch_is_handled_again(bank: Bank, ahead: list[int]) -> None:
    states: list[Any] = []

    def notes(state: Any, request: Any) -> tuple[Any, Any]:
        states.append(state)
        return deposit(state, request)

    bank.accounts.handlers["notes"] = notes
    with another_owner_under_way(bank, " WHERE n = 1") as (worker, other):
        asked = behind_one_that_hangs(bank, worker, [bank.command("notes", amount=1) for _ in range(2)])
        wait_for("both are handled", lambda: len(states) == 2)
        other.commit()
        assert [answer(one).version for one in asked] == [3, 4, 5]
    assert states == [
        {"balance": 1, "last": None},
        {"balance": 2, "last": None},
        {"balance": 99, "last": "theirs"},
        {"balance": 100, "last": None},
    ]
    assert [version for _, version, _ in bank.events()] == [1, 2, 3, 4, 5]


def test_a_batch_under_way_is_finished_where_a_handler_of_the_next_hangs(bank: Bank, ahead: list[int]) -> None:
    waiting = threading.Event()
    bank.accounts.handlers["waits"] = lambda state, _: (waiting.wait(100), (None, state))[1]
    names = ["deposit"] * 5 + ["waits"] + ["deposit"] * 3
    with bank.accounts.worker(hangs_after_s=2) as worker:
        asked = together(bank, worker, [bank.command(name, amount=1) for name in names])
        with pytest.raises(HandlerHungError):
            answer(asked.pop(5))
        assert [answer(one).version for one in asked] == [*range(2, 10)]
        waiting.set()
    assert ahead[1] == 5 and [version for _, version, _ in bank.events()] == [*range(1, 10)]


def test_a_refusal_is_looked_up_behind_the_batch_that_was_under_way(bank: Bank, ahead: list[int]) -> None:
    """The command that was taken is in the batch before, or in another worker's."""
    with bank.accounts.worker() as one, bank.accounts.worker(hangs_after_s=60) as other:
        answer(one.submit(bank.command(amount=9)))
        taken = answer(one.submit(bank.command(amount=-9, command_id="once")))
        commands = [bank.command(amount=1) for _ in range(5)]
        commands[3:3] = [bank.command(amount=-50), bank.command(amount=-9, command_id="once")]
        commands.insert(0, bank.command(amount=1, command_id="here"))
        commands += [bank.command(amount=-6, command_id="all")] * 2
        asked = together(bank, other, commands)
        with pytest.raises(RefusedError):
            answer(asked.pop(4))
        again = answer(asked.pop(4))
        assert (again.response, again.is_repeated) == (taken.response, True)
        found = [answer(each) for each in asked]
        assert [each.response["balance"] for each in found] == [1, 2, 3, 4, 5, 6, 0, 0]
        assert [each.is_repeated for each in found] == [False] * 7 + [True]


def test_batches_that_were_given_up_leave_no_answer_to_the_next(bank: Bank, ahead: list[int]) -> None:
    is_given_up: list[bool] = []
    told: list[Outcome] = []

    def look(at: int | None) -> None:
        if at == 7 and not is_given_up:  # of the second batch, while the first is under way
            is_given_up.append(True)
            raise GivenUpError

    one = Batches(
        table=bank.accounts.table,
        handlers={"deposit": deposit},
        open_session=bank.session,
        look=look,
        tell=told.extend,
    )
    one.commit([bank.command(amount=1)], soon())
    one._open_session(1)
    commands = [bank.command(amount=1) for _ in range(9)]
    assert one.handle(commands[:5], soon(), 1) == 5
    with pytest.raises(GivenUpError):
        one.handle(commands[5:], soon(), 6)
    one.close()
    told.clear()
    assert one.handle(commands, soon(), 10) == 9
    one.finish()
    one.close()
    assert [each.version for each in told if isinstance(each, Answer)] == [*range(2, 11)]
    assert [version for _, version, _ in bank.events()] == [*range(1, 11)]


def test_a_batch_under_way_is_not_held_behind_slow_handlers(
    bank: Bank, ahead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_rows_modified > 0"
    held: list[int] = []

    def slow(state: Any, request: Any) -> tuple[Any, Any]:
        time.sleep(0.2)
        held.append(ask(bank.server, writes)[0][0])
        return deposit(state, request)

    bank.accounts.handlers["slow"] = slow
    with bank.accounts.worker() as worker:
        with_both_sessions(worker)
        asked = [worker.submit(bank.command(name, amount=1)) for name in ["deposit"] * 4 + ["slow"] * 8]
        assert [answer(one).response["balance"] for one in asked] == [*range(1, 13)]
        assert len(held) == 8 and sum(held) <= len(ahead), "one handler of each batch"
        held.clear()
        monkeypatch.setattr(batches, "QUICK_S", 0.01)
        asked = [worker.submit(bank.command("slow", amount=1)) for _ in range(5)]
        assert [answer(one).response["balance"] for one in asked] == [*range(13, 18)]
    assert held == [0] * 5, "behind slow handlers none is left under way"


@pytest.mark.parametrize("amounts", [(5, 6), (-5, 5)])
def test_an_id_that_comes_twice_in_a_batch_has_nothing_looked_up(
    bank: Bank, looked_up: list[str], amounts: tuple[int, int]
) -> None:
    """The second is another command under a used id; or the first was refused."""
    with bank.accounts.worker(hangs_after_s=60) as worker:
        asked = together(bank, worker, [bank.command(amount=each, command_id="twice") for each in amounts])
        errors = [each.exception(60) for each in asked]
    assert [type(error) for error in errors] == (
        [type(None), UsedCommandIdError] if amounts[0] > 0 else [RefusedError, type(None)]
    )
    assert looked_up == []


def test_a_lock_that_is_not_given_is_waited_for_once(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first statement; those that were sent behind it do not wait as long each."""
    monkeypatch.setattr("viewtail.entities.event_table.BYTES_A_STATEMENT", 100)
    took: list[float] = []

    def timed(flight: Flight, *, asked: bool = False) -> pymysql.err.MySQLError | None:
        began = time.monotonic()
        try:
            return landed(flight, asked=asked)
        finally:
            took.append(time.monotonic() - began)

    monkeypatch.setattr(batches, "landed", timed)
    one = Batches(table=bank.accounts.table, handlers={"deposit": deposit}, open_session=bank.session)
    with closing(one), closing(bank.session()) as other:
        one.commit([bank.command(amount=1)], soon())
        took.clear()
        with other.cursor() as cursor:
            cursor.execute(COPIES)
        monkeypatch.setattr(one, "_tried_again", raises)
        with pytest.raises(RuntimeError):
            one.commit([bank.command(amount=1) for _ in range(9)], soon())
        other.rollback()
    assert len(took) == 1 and 4 < took[0] < 8, "innodb_lock_wait_timeout is 5 s"


@pytest.mark.parametrize("at", [0, 1, 3, 6])
def test_a_command_that_comes_again_in_the_midst_of_batches_under_way(bank: Bank, ahead: list[int], at: int) -> None:
    with bank.accounts.worker(hangs_after_s=60) as worker:
        first = answer(worker.submit(bank.command(amount=100, command_id="once")))
        commands = [bank.command(amount=1) for _ in range(6)]
        commands.insert(at, bank.command(amount=100, command_id="once"))
        asked = together(bank, worker, [*commands, commands[0]])
        assert answer(asked.pop(at)) == Answer(response=first.response, version=1, is_repeated=True)
        last = answer(asked.pop())
        assert last.is_repeated and last.version == (1 if at == 0 else 3)
        assert [answer(one).response["balance"] for one in asked] == [101, 102, 103, 104, 105, 106]
    assert len(bank.events()) == 8


@pytest.mark.parametrize("which", [slice(None), slice(0, 1), slice(1, None)], ids=["all", "first", "second"])
def test_a_session_that_is_lost_under_a_batch(bank: Bank, ahead: list[int], which: slice) -> None:
    """In the midst of the next one's handlers."""
    killed: list[int] = []

    def kills(state: Any, request: Any) -> tuple[Any, Any]:
        if not killed:
            mine = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'"
            killed.extend([session for (session,) in ask(bank.server, f"{mine} ORDER BY id")][which])
            for session in killed:
                ask(bank.server, f"KILL {session}")
        return deposit(state, request)

    bank.accounts.handlers["kills"] = kills
    names = ["deposit"] * 5 + ["kills"] + ["deposit"] * 3
    with bank.accounts.worker() as worker:
        together(bank, worker, [bank.command(amount=0) for _ in range(9)])[-1].result(60)  # both are open
        bank.hanging.clear()
        asked = together(bank, worker, [bank.command(name, amount=1) for name in names])
        assert [answer(one).response["balance"] for one in asked] == [*range(1, 10)]
    assert killed and [version for _, version, _ in bank.events()] == [*range(1, 21)]


def test_a_commit_without_an_answer_while_the_next_batch_is_written(
    bank: Bank, ahead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one is rolled back, and handled again behind what became of the first."""
    lost: list[int] = []
    send = EventTable.send

    with bank.accounts.worker() as worker:
        answer(worker.submit(bank.command(amount=1)))
        with_both_sessions(worker)
        lane = next(lane for lane in worker._lanes if lane.turn.batches and lane.turn.batches._sessions[0])

        def breaks(table: EventTable, flight: Flight, events: Collection[Event]) -> None:
            send(table, flight, events)
            assert lane.turn.batches is not None
            if (before := lane.turn.batches._under_way) and not lost:
                assert before[0].is_committing
                lost.append(len(events))
                flight.flush()
                lane.turn.batches._sessions[before[0].which]._force_close()  # type: ignore[union-attr]

        monkeypatch.setattr(EventTable, "send", breaks)
        began = time.monotonic()
        asked = together(bank, worker, [bank.command(amount=1) for _ in range(6)])
        assert [answer(one).version for one in asked] == [*range(3, 9)]
        assert time.monotonic() - began < 4, "nothing waits for locks of what is not committed"
    assert lost and [version for _, version, _ in bank.events()] == [*range(1, 9)]


def test_a_question_that_ended_the_transaction_has_the_batch_tried_again(
    bank: Bank, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that finds out about a conflict at the next statement."""
    question = Archive.question
    asked = [b"SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213"]
    monkeypatch.setattr(Archive, "question", property(lambda one: asked.pop() if asked else question.fget(one)))  # type: ignore[attr-defined]
    with bank.accounts.worker() as worker:
        answer(worker.submit(bank.command(amount=1)))  # it is read, so nothing is asked along
        assert answer(worker.submit(bank.command(amount=1))).version == 2
    assert not asked and sent == [1, 1, 1]
    assert [version for _, version, _ in bank.events()] == [1, 2]


def test_a_slow_handler_keeps_nothing_locked(bank: Bank, sent: list[int]) -> None:
    seen: list[list[tuple[Any, ...]]] = []

    def slow(state: Any, request: Any) -> tuple[Any, Any]:
        time.sleep(0.3)
        seen.append(ask(bank.server, "SELECT trx_rows_modified FROM information_schema.innodb_trx"))
        return deposit(state, request)

    bank.accounts.handlers["slow"] = slow
    with bank.accounts.worker() as worker:
        asked = together(bank, worker, [bank.command("slow", amount=1) for _ in range(5)])
        assert [answer(one).response["balance"] for one in asked] == [*range(1, 6)]
    assert len(seen) == 5 and not any(seen)
    assert sent == [1, 5]


def test_several_handlers_that_hang_are_each_told_in_turn(bank: Bank) -> None:
    with bank.accounts.worker(hangs_after_s=1, patience_s=20) as worker:
        began = time.monotonic()
        asked = [worker.submit(bank.command("hangs")) for _ in range(3)]
        for number, one in enumerate(asked, 1):
            with pytest.raises(HandlerHungError):
                answer(one)
            assert number <= time.monotonic() - began < number + 1.5, number


def test_entities_of_the_other_lane_do_not_wait_for_a_slow_handler(bank: Bank) -> None:
    names = [f"e{at}" for at in range(100)]
    of_lane = [next(name for name in names if hash(name) % LANES == lane) for lane in range(LANES)]
    with bank.accounts.worker(hangs_after_s=60) as worker:
        slow = worker.submit(bank.command("hangs", of_lane[0]))
        behind = worker.submit(bank.command(entity=of_lane[0], amount=1))
        assert worker.submit(bank.command(entity=of_lane[1], amount=1)).result(20).version == 1
        assert not slow.done() and not behind.done()
        bank.hanging.set()
        assert (answer(slow).version, answer(behind).version) == (1, 2)


def test_a_server_that_is_away_is_waited_for_and_then_told(bank: Bank) -> None:
    table, handlers = bank.accounts.table, bank.accounts.handlers
    is_away, was_asked = threading.Event(), threading.Event()
    is_away.set()
    open_session = bank.accounts._open()

    def opened() -> Connection:
        if is_away.is_set():
            was_asked.set()
            raise StoreUnavailableError("it is away")
        return open_session()

    with CommandWorker(table, handlers, opened, patience_s=0.5) as worker, pytest.raises(StoreUnavailableError):
        answer(worker.submit(bank.command(amount=1)))
    was_asked.clear()
    with CommandWorker(table, handlers, opened, patience_s=100) as worker:
        waits = worker.submit(bank.command(amount=1))
        assert was_asked.wait(60)
        is_away.clear()
        assert answer(waits).version == 1


def test_no_caller_waits_longer_than_its_own_patience_for_a_server_that_is_away(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind a batch that is given up have waited as long as it."""
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    for module in ("worker", "batches"):
        monkeypatch.setattr(f"viewtail.entities.{module}.time", clock)

    def opened() -> Connection:
        raise StoreUnavailableError("it is away")

    with CommandWorker(bank.accounts.table, bank.accounts.handlers, opened, patience_s=2.0) as worker:
        try:
            asked = [worker.submit(bank.command(amount=1))]
            wait_for("it is tried", lambda: not worker.waiting_count)
            for _ in range(3):
                now += 0.2
                asked.append(worker.submit(bank.command(amount=1)))
            now = 0.9  # a batch ends up to a second early, where it would else pause
            time.sleep(0.5)
            assert not any(one.done() for one in asked)
            for at, one in enumerate(asked):
                now = 2.01 + 0.2 * at
                with pytest.raises(StoreUnavailableError):
                    one.result(20)
        finally:
            now = 1_000.0


def test_a_caller_hears_in_time_while_the_server_says_nothing(bank: Bank) -> None:
    stuck = threading.Event()

    def opened() -> Connection:
        stuck.wait(100)
        raise StoreUnavailableError("it is away")

    with CommandWorker(bank.accounts.table, bank.accounts.handlers, opened, patience_s=0.5) as worker:
        try:
            with pytest.raises(StoreUnavailableError, match="send it again under its id"):
                worker.submit(bank.command(amount=1)).result(20)
        finally:
            stuck.set()


def test_what_waits_is_bounded_and_the_caller_above_is_told(bank: Bank) -> None:
    is_open, open_session = threading.Event(), bank.accounts._open()

    def opened() -> Connection:
        is_open.wait(100)
        return open_session()

    with CommandWorker(bank.accounts.table, bank.accounts.handlers, opened, most_waiting_bytes=10_000) as worker:
        under_way = worker.submit(bank.command(amount=1))
        wait_for("it is handled", lambda: not worker.waiting_count)
        waiting = [worker.submit(bank.command(amount=1, note="n" * 3_000)) for _ in range(2)]
        with pytest.raises(WorkerBusyError, match="2 commands wait already"):
            worker.submit(bank.command(amount=1, note="n" * 3_000)).result(1)
        is_open.set()
        assert [answer(one).version for one in (under_way, *waiting)] == [1, 2, 3]
        assert answer(worker.submit(bank.command(amount=1, note="n" * 20_000))).version == 4, "one alone is taken"


def once_closed(worker: CommandWorker, event: threading.Event) -> None:
    try:
        wait_for("it is closed", lambda: worker._is_closed)
    finally:
        event.set()


def test_a_closed_worker_finishes_its_batch_and_tells_the_others(bank: Bank) -> None:
    with bank.accounts.worker(hangs_after_s=60) as worker:
        under_way = worker.submit(bank.command("hangs"))
        wait_for("it is handled", lambda: not worker.waiting_count)
        waiting = worker.submit(bank.command(amount=1))
        let_go = threading.Thread(target=once_closed, args=(worker, bank.hanging))
        let_go.start()
    let_go.join()
    assert answer(under_way).version == 1
    for one in (waiting, worker.submit(bank.command(amount=1))):
        with pytest.raises(WorkerEndedError):
            answer(one)


@pytest.mark.parametrize(
    "wrong",
    [
        {"entity_id": ""},
        {"entity_id": "a" * 191},
        {"entity_id": "a\0b"},
        {"command_id": "\ud800"},
        {"command_id": 5},
        {"name": "n" * 65},
        {"request": object()},
        {"request": {"n": float("inf")}},
        {"request": 1 << 70},
    ],
)
def test_a_command_that_no_table_could_hold_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(MisuseError):
        Command(**{"entity_id": "ada", "command_id": "1", "name": "deposit", **wrong})


def test_ids_that_differ_in_a_blank_are_two(bank: Bank, worker: CommandWorker) -> None:
    for entity, command_id in (("ada", "1"), ("ada ", "1"), ("ada", "1 "), ("Ada", "1")):
        assert not answer(worker.submit(bank.command(entity=entity, command_id=command_id, amount=1))).is_repeated
    assert len(bank.events()) == 4


def test_numbers_come_back_as_they_were(bank: Bank, worker: CommandWorker) -> None:
    numbers = [99.99 * 1.19, 0.9452706955539223, 5e-324, 1.7976931348623157e308, -0.0, (1 << 64) - 1, -(1 << 63), 1.0]
    commands = [bank.command("answers pair", answer=number) for number in numbers]
    first = [answer(worker.submit(one)).response for one in commands]
    again = [answer(worker.submit(one)) for one in commands]
    assert list(map(repr, first)) == list(map(repr, numbers)) == [repr(one.response) for one in again]
    assert all(one.is_repeated for one in again)


def test_large_events_are_written_and_too_large_ones_are_refused(bank: Bank, worker: CommandWorker) -> None:
    asked = [worker.submit(bank.command("answers pair", answer="x" * size)) for size in (3 << 20, 3 << 20, 9 << 20, 5)]
    assert [len(answer(asked[at]).response) for at in (0, 1, 3)] == [3 << 20, 3 << 20, 5]
    with pytest.raises(HandlerFailedError, match="larger than 8 MiB"):
        answer(asked[2])


def test_events_that_are_large_are_committed_a_few_at_a_time(
    bank: Bank, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its own answer, in the order in which they came."""
    monkeypatch.setattr(handling, "BATCH_BYTES", 10_000)
    with bank.accounts.worker() as worker:
        asked = [worker.submit(bank.command(amount=1, note="n" * 3_000)) for _ in range(50)]
        assert [answer(one).version for one in asked] == [*range(1, 51)]
    assert sum(sent) == 50 and max(sent) == 2


def test_where_too_many_handlers_hang_no_command_is_taken(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viewtail.entities.worker.MOST_HUNG", 2)
    sessions = "SELECT COUNT(*) FROM information_schema.processlist WHERE command = 'Sleep'"
    (before,) = ask(bank.server, sessions)
    with bank.accounts.worker(hangs_after_s=0.5) as worker:
        for _ in range(2):
            with pytest.raises(HandlerHungError):
                worker.submit(bank.command("hangs")).result(60)
        with pytest.raises(WorkerBusyError, match="2 handlers hang"):
            worker.submit(bank.command(amount=1)).result(60)
        wait_for("they keep no session", lambda: ask(bank.server, sessions)[0][0] <= before[0] + 1)
        bank.hanging.set()
        wait_for("they have returned", lambda: not any(thread.is_alive() for thread in worker._hung))
        assert answer(worker.submit(bank.command(amount=1))).version == 1
