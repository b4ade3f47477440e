"""What a reader of a Redis view is told: which errors go by themselves, and which an operator must mend."""

from __future__ import annotations

import pytest
from redis import Redis, exceptions

from projectors.stores.redis.unanswered import reading
from viewtail.changes.errors import StoreError, StoreUnavailableError

CLIENT = Redis(host="127.0.0.1", port=1)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (exceptions.ResponseError("BUSY Redis is busy running a script."), StoreUnavailableError),
        (exceptions.ResponseError("MASTERDOWN Link with MASTER is down"), StoreUnavailableError),
        (exceptions.ConnectionError("Connection refused"), StoreUnavailableError),
        (exceptions.NoPermissionError("this user has no permissions"), StoreError),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), StoreError),
    ],
)
def test_a_server_that_will_answer_soon_is_asked_again(error: Exception, told: type[Exception]) -> None:
    with pytest.raises(told) as raised, reading(CLIENT, "redis:user"):
        raise error
    assert type(raised.value) is told
