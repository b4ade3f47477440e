"""Which view is meant by a name that several stores have."""

from __future__ import annotations

import pytest

from projectors.views import View
from viewtail import Entity, IndexTable, RedisHash, SearchIndex, Topic
from viewtail.changes.errors import MisuseError
from viewtail.operations.reading import choose, is_found_in, is_searched

PERSON = Entity("shop.person")
VIEWS: list[View] = [
    IndexTable("person", PERSON, value="email"),
    RedisHash("person", PERSON, fields=["name"]),
    SearchIndex("person", PERSON, fields={"name": "text"}),
    Topic("person", PERSON),
]


def test_a_question_is_asked_of_the_view_that_can_answer_it() -> None:
    assert choose(VIEWS, "person", is_searched).id == "elasticsearch:person"
    assert choose(VIEWS, "person", is_found_in).id == "mysql:person"


def test_where_several_can_or_none_can_it_is_asked_which_is_meant() -> None:
    with pytest.raises(MisuseError, match="say which: mysql:person, redis:person, elasticsearch:person, kafka:person"):
        choose(VIEWS, "person")
    with pytest.raises(MisuseError, match="say which: redis:person, kafka:person"):
        choose([VIEWS[1], VIEWS[3]], "person", is_searched)
    assert choose(VIEWS, "redis:person", is_searched).id == "redis:person", "what is named is what is refused"
