"""Customers who use the application all the time, and remember what it told them: no request may fail, or show else."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

from examples.unshatter import tables
from examples.unshatter.application import Application, Stopped
from examples.unshatter.tables import KINDS, Row, Rows
from stack.server import Server
from viewtail.demo.process import DemoError

CUSTOMERS = 4
PAUSE_S = 0.02  # between two requests of one of them
ACCOUNTS_EVERY_S = 4.0  # one of them opens an account, or closes one


class Customer(threading.Thread):
    """Has accounts that nobody else uses, and what is in them."""

    def __init__(self, server: Server, seed: int, accounts: Sequence[int], next_account: int) -> None:
        super().__init__(name=f"customer {seed}")
        self._stop_asked = threading.Event()
        self._application = Application(server, self._stop_asked)
        self._chance = random.Random(seed)
        self._next_account = next_account
        self._next_account_at = time.monotonic()
        self.rows = {account: tables.first_rows(account) for account in accounts}
        self.done: Counter[str] = Counter()
        self.failure: str | None = None

    def run(self) -> None:
        with closing(self._application):
            while not self._stop_asked.wait(PAUSE_S):
                request = self._next_request()
                try:
                    request(self)
                except Stopped:
                    return
                except Exception as error:  # whatever it is: a user would see it
                    self.failure = f"{request.__name__}: {error!r}"
                    return
                self.done[request.__name__] += 1

    def _next_request(self) -> Callable[[Customer], None]:
        if time.monotonic() < self._next_account_at:
            return self._chance.choices(*_REQUESTS)[0]
        self._next_account_at = time.monotonic() + ACCOUNTS_EVERY_S
        return self._chance.choice((Customer.open_account, Customer.close_account))

    def ask_to_stop(self) -> None:
        self._stop_asked.set()

    @property
    def longest_wait_s(self) -> dict[str, float]:
        return {**self._application.longest_wait_s}

    # -- requests ------------------------------------------------------------------------------------------------

    def read(self) -> None:
        account, kind, mine = self._some()
        shown = self._application.read(account, kind)
        if shown != mine:
            raise LookupError(
                f"{kind} of account {account} has {len(shown)} rows, which are not the {len(mine)} put there"
            )

    def add(self) -> None:
        account, kind, mine = self._some()
        row = self._application.add(account, kind, self._chance)
        if row[0] in mine:
            raise LookupError(f"{kind} {row[0]} of account {account} was given out twice")
        mine[row[0]] = row

    def change(self) -> None:
        account, kind, mine = self._some()
        if mine:
            number = self._chance.choice([*mine])
            mine[number] = self._application.change(account, kind, number, self._chance)

    def remove(self) -> None:
        account, kind, mine = self._some()
        if mine:
            number = self._chance.choice([*mine])
            self._application.remove(account, kind, number)
            del mine[number]

    def open_account(self) -> None:
        account = self._next_account
        self._application.open_account(account)
        self._next_account += CUSTOMERS
        self.rows[account] = {kind: {} for kind in KINDS}
        for kind in KINDS:
            row = self._application.add(account, kind, self._chance)
            self.rows[account][kind][row[0]] = row

    def close_account(self) -> None:
        if len(self.rows) > 1:
            account = self._chance.choice([*self.rows])
            self._application.close_account(account)
            del self.rows[account]

    def _some(self) -> tuple[int, str, dict[int, Row]]:
        account, kind = self._chance.choice([*self.rows]), self._chance.choice([*KINDS])
        return account, kind, self.rows[account][kind]


_REQUESTS: tuple[list[Callable[[Customer], None]], list[int]] = (
    [Customer.read, Customer.add, Customer.change, Customer.remove],
    [50, 20, 20, 10],
)


class Customers:
    """All of them; a context manager."""

    def __init__(self, server: Server, accounts: int) -> None:
        self._all = [
            Customer(server, n, range(n, accounts + 1, CUSTOMERS), _next(accounts, n)) for n in range(1, CUSTOMERS + 1)
        ]

    def __enter__(self) -> Customers:
        for customer in self._all:
            customer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for customer in self._all:
            customer.ask_to_stop()
        for customer in self._all:
            customer.join()

    def require_no_failure(self) -> None:
        """Raises DemoError with the first request that failed, or was answered with other rows than it put there."""
        for customer in self._all:
            if customer.failure is not None:
                raise DemoError(f"{customer.name}'s request failed: {customer.failure}")

    def rows(self, kind: str) -> Rows:
        """What they know of all tables of a kind, once they have stopped."""
        return {
            (account, number): row
            for customer in self._all
            for account, of_kinds in customer.rows.items()
            for number, row in of_kinds[kind].items()
        }

    def accounts(self) -> set[int]:
        return {account for customer in self._all for account in customer.rows}

    def done(self) -> Counter[str]:
        return sum((customer.done for customer in self._all), Counter[str]())

    def longest_wait_s(self, what: str) -> float:
        return max(customer.longest_wait_s[what] for customer in self._all)


def _next(accounts: int, number: int) -> int:
    """The first account that this customer opens."""
    return accounts + 1 + (number - accounts - 1) % CUSTOMERS
