"""The rules of the bank: plain functions of a state and a request."""

from __future__ import annotations

from typing import Any

from viewtail.entities import EventSourced, Refusal

TABLE = "bank.account"


def deposit(state: Any, request: Any) -> tuple[Any, Any]:
    """More money."""
    balance = (state or {"balance": 0})["balance"] + request["cents"]
    return {"balance": balance}, {"balance": balance}


def withdraw(state: Any, request: Any) -> tuple[Any, Any]:
    """Less money, never less than none."""
    balance = (state or {"balance": 0})["balance"] - request["cents"]
    if balance < 0:
        raise Refusal("not enough money")
    return {"balance": balance}, {"balance": balance}


def bank() -> EventSourced:
    """The accounts, on the server of the settings."""
    return EventSourced(TABLE, {"deposit": deposit, "withdraw": withdraw})


entities = [bank()]
