"""An account by every way in which its commands, owners and events may come and go, against a model in Python.

The model knows nothing of the library: of each account a list of what was committed, and by command id its answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from stack import Server
from tests.support.archived import COLUMNS, OldBank
from viewtail.entities import (
    Answer,
    Command,
    CommandWorker,
    EventSourced,
    HandlerFailedError,
    Refusal,
    RefusedError,
    UsedCommandIdError,
)
from viewtail.entities.archiving import Archiving
from viewtail.entities.restoring import Restoring

EXAMPLES = int(os.environ.get("VIEWTAIL_TEST_ACCOUNTS", "25"))
ACCOUNTS = 2
OWNERS = 2
NUMBERS = st.integers(-(2**63), 2**64 - 1)
NOTES = st.one_of(st.none(), NUMBERS, st.text('aé"\\ \n', max_size=4), st.lists(st.booleans()))

pytestmark = pytest.mark.mysql


def move(state: Any, request: Any) -> tuple[Any, Any]:
    balance = (0 if state is None else state["balance"]) + request["amount"]
    if balance < 0:
        raise Refusal("not enough")
    return {"balance": balance, "note": request["note"]}, {"balance": balance}


def break_down(state: Any, request: Any) -> tuple[Any, Any]:
    state["balance"] = 1_000_000
    raise ValueError


@dataclass
class Event:
    """Of the model."""

    command_id: str
    request: dict[str, Any]
    balance: int


@dataclass
class Account:
    """Of the model."""

    name: str
    events: list[Event] = field(default_factory=list)

    @property
    def balance(self) -> int:
        return self.events[-1].balance if self.events else 0

    def version_of(self, command_id: str) -> int | None:
        return next((at for at, one in enumerate(self.events, 1) if one.command_id == command_id), None)


class Bank:
    """The real one, with owners that all may take any command."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.old = OldBank(server, folder, entities=1, events=1)
        handlers = {"move": move, "break down": break_down}
        self.accounts = EventSourced("bank.account", handlers, settings=self.old.accounts._settings)
        self.owners: list[CommandWorker] = [self.accounts.worker() for _ in range(OWNERS)]
        self.examples = 0

    def restart(self, owner: int) -> None:
        self.owners[owner].close()
        self.owners[owner] = self.accounts.worker()

    def close(self) -> None:
        for one in self.owners:
            one.close()


class Accounts(RuleBasedStateMachine):
    bank: Bank

    @initialize()
    def begin(self) -> None:
        self.bank.examples += 1
        self.accounts = [Account(f"{self.bank.examples}.{number}") for number in range(ACCOUNTS)]
        self.sent = 0

    def submit(self, owner: int, account: Account, command_id: str, name: str, request: Any) -> Future[Answer]:
        command = Command(entity_id=account.name, command_id=command_id, name=name, request=request)
        return self.bank.owners[owner].submit(command)

    def new_id(self) -> str:
        self.sent += 1
        return f"c{self.sent}"

    @rule(
        owner=st.integers(0, OWNERS - 1),
        which=st.integers(0, ACCOUNTS - 1),
        amount=st.integers(-60, 50),
        note=NOTES,
        is_asked_again=st.booleans(),
    )
    def a_new_command(self, owner: int, which: int, amount: int, note: Any, is_asked_again: bool) -> None:
        account, command_id, request = self.accounts[which], self.new_id(), {"amount": amount, "note": note}
        for at in (owner, 1 - owner) if is_asked_again else (owner,):
            found = self.submit(at, account, command_id, "move", request)
            if account.balance + amount < 0 and account.version_of(command_id) is None:
                with pytest.raises(RefusedError, match="not enough"):
                    found.result(20)
                continue
            is_known = account.version_of(command_id) is not None
            if not is_known:
                account.events.append(Event(command_id, request, account.balance + amount))
            self.expect(found.result(20), account, command_id, is_known)

    def expect(self, answer: Answer, account: Account, command_id: str, is_repeated: bool) -> None:
        version = account.version_of(command_id)
        assert version is not None
        event = account.events[version - 1]
        assert answer == Answer(
            response={"balance": event.balance, "note": event.request["note"]}, version=version, is_repeated=is_repeated
        )

    @precondition(lambda self: any(one.events for one in self.accounts))
    @rule(owner=st.integers(0, OWNERS - 1), which=st.integers(0, ACCOUNTS - 1), at=st.integers(0), data=st.data())
    def one_that_was_answered_long_ago(self, owner: int, which: int, at: int, data: Any) -> None:
        account = self.accounts[which]
        assume(account.events)
        event = account.events[at % len(account.events)]
        if data.draw(st.booleans(), label="with another request"):
            request = {**event.request, "amount": event.request["amount"] + 1}
            with pytest.raises(UsedCommandIdError):
                self.submit(owner, account, event.command_id, "move", request).result(20)
        else:
            answer = self.submit(owner, account, event.command_id, "move", event.request).result(20)
            self.expect(answer, account, event.command_id, True)

    @rule(owner=st.integers(0, OWNERS - 1), which=st.integers(0, ACCOUNTS - 1))
    def a_handler_that_raises(self, owner: int, which: int) -> None:
        with pytest.raises(HandlerFailedError):
            self.submit(owner, self.accounts[which], self.new_id(), "break down", None).result(20)

    @rule(
        which=st.integers(0, ACCOUNTS - 1),
        sent=st.lists(st.tuples(st.integers(0, OWNERS - 1), st.integers(0, 9)), min_size=2, max_size=30),
    )
    def many_at_once_by_several_owners(self, which: int, sent: list[tuple[int, int]]) -> None:
        """Some of them twice. Their versions say in which order they were handled."""
        account, prefix = self.accounts[which], self.new_id()
        requests = {f"{prefix}.{number}": {"amount": number, "note": None} for _, number in sent}
        ids = [f"{prefix}.{number}" for _, number in sent]
        futures = [
            self.submit(owner, account, one, "move", requests[one]) for (owner, _), one in zip(sent, ids, strict=True)
        ]
        answers = [one.result(20) for one in futures]
        for version, one in sorted({(answer.version, one) for answer, one in zip(answers, ids, strict=True)}):
            account.events.append(Event(one, requests[one], account.balance + requests[one]["amount"]))
            assert version == len(account.events)
        for answer, one in zip(answers, ids, strict=True):
            self.expect(answer, account, one, answer.is_repeated)
        firsts = [one for answer, one in zip(answers, ids, strict=True) if not answer.is_repeated]
        assert len(firsts) == len(set(firsts))

    @rule(owner=st.integers(0, OWNERS - 1))
    def an_owner_is_another_process_from_now_on(self, owner: int) -> None:
        self.bank.restart(owner)

    @rule()
    def old_events_are_archived(self) -> None:
        with self.bank.old.steps(Archiving) as steps:
            steps.prepare(None)
            steps.into_table(steps.cutoff(0))

    @rule(which=st.integers(0, ACCOUNTS - 1), is_all=st.booleans())
    def they_come_back(self, which: int, is_all: bool) -> None:
        with self.bank.old.steps(Restoring) as steps:
            if steps.known_archive() is not None:
                steps.open_archive()
                steps.restore(None if is_all else self.accounts[which].name)

    @rule(which=st.integers(0, ACCOUNTS - 1), version=st.integers(1, 40))
    def a_state_of_before_is_asked(self, which: int, version: int) -> None:
        account = self.accounts[which]
        found = self.bank.accounts.state(account.name, version=version)
        expected = account.events[version - 1].balance if version <= len(account.events) else None
        assert (found and found.state["balance"]) == expected

    def teardown(self) -> None:
        """All that was committed is there once, in the table or in its archive, and nothing else."""
        rows = sorted([*self.bank.old.live(), *self.bank.old.archived()], key=lambda row: (row[1], row[2]))
        names = COLUMNS.split(", ")
        for account in getattr(self, "accounts", ()):
            found = [dict(zip(names, row, strict=True)) for row in rows if row[1] == account.name]
            assert [one["version"] for one in found] == list(range(1, len(account.events) + 1))
            assert [one["command_id"] for one in found] == [one.command_id for one in account.events]
            state = self.bank.accounts.state(account.name)
            assert (state and (state.state, state.version)) == (
                ({"balance": account.balance}, len(account.events)) if account.events else None
            )


@pytest.fixture
def bank(mysql_server: Server, tmp_path: Path) -> Iterator[Bank]:
    found = Bank(mysql_server, tmp_path)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.timeout(120 + 4 * EXAMPLES)
def test_accounts_are_what_a_model_says_whatever_comes_in_whatever_order(bank: Bank) -> None:
    machine = type("TheseAccounts", (Accounts,), {"bank": bank})
    few = settings(
        max_examples=EXAMPLES,
        stateful_step_count=20,
        phases=(Phase.reuse, Phase.generate),  # over a real server shrinking takes minutes
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(machine, settings=few)
