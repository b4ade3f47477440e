"""A handler that declares its request is never called with another one, and whoever sent it is told the fields."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from viewtail.changes.errors import MisuseError
from viewtail.entities import Command, EventSourced, HandlerFailedError, InvalidRequestError
from viewtail.entities.commands import Handler, handled
from viewtail.entities.serving import docs_page, openapi, problems

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


class Line(BaseModel):
    sku: str
    count: int = Field(gt=0)


class Order(BaseModel):
    lines: list[Line]
    on: date | None = None


class Deposit(TypedDict):
    amount: int


@dataclass
class Transfer:
    amount: int


def order(state: Any, request: Order) -> tuple[Any, Any]:
    """Orders <b>some</b> lines."""
    return [len(request.lines), str(request.on)], state


def deposit(state: Any, request: Deposit) -> tuple[Any, Any]:
    return request["amount"], state


def transfer(state: Any, request: Transfer) -> tuple[Any, Any]:
    return request.amount, state


def free(state, request):  # type: ignore[no-untyped-def]
    return request, state


def any_dict(state: Any, request: dict[str, Any]) -> tuple[Any, Any]:
    return request, state


def adds(state: Any, request: Any) -> tuple[Any, Any]:
    return request["amount"] + 1, state


def sent(handler: Handler, request: Any) -> Any:
    command = Command(entity_id="ada", command_id="1", name="go", request=request)
    return json.loads(handled(handler, command, b"null")[0])


@pytest.mark.parametrize(
    ("handler", "request_", "says"),
    [
        (deposit, {"amount": "x"}, ["amount: Input should be a valid integer"]),
        (deposit, {"amount": "5"}, ["amount: Input should be a valid integer"]),
        (deposit, {"amount": True}, ["amount: "]),
        (deposit, {}, ["amount: Field required"]),
        (deposit, [], ["the request: Input should be an object"]),
        (transfer, {"amount": None}, ["amount: Input should be a valid integer"]),
        (
            order,
            {"lines": [{"sku": "a", "count": 0}, {"sku": 5}]},
            ["lines.0.count: ", "lines.1.sku: ", "lines.1.count: "],
        ),
        (order, {"lines": [], "on": "cAnArY"}, ["on: Input should be a valid date"]),
    ],
)
def test_a_request_that_is_not_as_declared_names_its_fields_and_no_value(
    handler: Handler, request_: Any, says: list[str]
) -> None:
    with pytest.raises(InvalidRequestError, match=r"^the request of go is not valid\. ") as caught:
        sent(handler, request_)
    for one in says:
        assert one in str(caught.value)
    assert "cAnArY" not in str(caught.value)
    assert problems.of(caught.value, "go").kind is problems.INVALID


def test_a_handler_gets_its_request_in_the_type_that_it_declares() -> None:
    assert sent(deposit, {"amount": 5}) == sent(transfer, {"amount": 5}) == 5
    assert sent(order, {"lines": [{"sku": "a", "count": 1}], "on": "2026-01-02"}) == [1, "2026-01-02"]
    for handler in (free, any_dict):
        assert sent(handler, {"any": [1, {"thing": None}]}) == {"any": [1, {"thing": None}]}
    assert sent(free, [1]) == [1]


def test_what_a_handler_raises_itself_stays_a_failure_without_values() -> None:
    with pytest.raises(HandlerFailedError, match="raised TypeError; nothing was written") as caught:
        sent(adds, {"amount": "cAnArY"})
    assert "cAnArY" not in str(caught.value)
    assert problems.of(caught.value, "go").kind is problems.HANDLER_FAILED


def test_a_type_hint_that_cannot_be_read_is_refused_with_the_handler() -> None:
    def hidden(state: Any, request: Unknown) -> tuple[Any, Any]:
        return request, state

    def of_no_json(state: Any, request: HandlerFailedError) -> tuple[Any, Any]:
        return request, state

    for handler, says in ((hidden, "'Unknown', cannot be found"), (of_no_json, "cannot be read as one of JSON")):
        with pytest.raises(MisuseError, match=f"{handler.__name__}.*{says}"):
            EventSourced("bank.account", {"go": handler})


def test_the_document_and_its_page_have_what_is_declared() -> None:
    handlers = {"order": order, "deposit": deposit, "free": free, "an order": order}
    document = openapi.document([EventSourced("bank.account", handlers)])
    schemas = document["components"]["schemas"]
    for command, name in (("order", "bank.account.order"), ("deposit", "bank.account.deposit"), ("free", "Request")):
        posted = document["paths"][f"/bank.account/{{id}}/{command}"]["post"]
        reference = posted["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{name}"
    assert schemas["bank.account.deposit"]["properties"]["amount"]["type"] == "integer"
    assert schemas["bank.account.order"]["properties"]["lines"]["items"]["$ref"] in {
        f"#/components/schemas/{name}" for name in schemas
    }
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert name in schemas and re.fullmatch(r"[A-Za-z0-9._-]+", name)
    page = docs_page.page(document).decode()
    for says in (
        "POST /bank.account/{id}/an%20order",
        "exclusiveMinimum",
        "&lt;b&gt;some&lt;/b&gt;",
        "Idempotency-Key",
    ):
        assert says in page
    assert not re.search(r"<script|<link|src=|https?://|url\(", page), "nothing is loaded, and nothing runs"


def test_who_declares_nothing_does_not_load_the_checker() -> None:
    code = (
        "import sys\nfrom viewtail.entities.declared_requests import declared\n"
        "assert declared(lambda state, request: (1, 2)) is None\nprint('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stdout + done.stderr
