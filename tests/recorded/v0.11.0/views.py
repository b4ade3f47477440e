"""The views of the recorded deployment. Their declarations must stay as they are: viewtail has hashed them."""

from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

user = Entity("shop.user")


def document(row):
    return {"email": row["email"], "n": row["n"], "tag": (row["email"] or "")[:3]}


def is_even(row):
    return row["n"] % 2 == 0


views = [
    IndexTable("ix_email", user, value="email"),
    IndexTable("ix_even", user, value="n", where=is_even),
    IndexTable("ix_gone", Entity("shop.gone"), value="v"),  # halted: the column was dropped
    IndexTable("ix_half", Entity("shop.half_mysql"), value="v"),  # half filled
    RedisHash("user", user, fields=["email", "n"]),  # one key is parked
    RedisJson("document", user, document=document),
    RedisHash("moved", Entity("shop.moved"), fields=["v"]),  # halted: the column was renamed, and renamed back
    RedisHash("half", Entity("shop.half_redis"), fields=["v"]),  # half filled
    SearchIndex("user", user, fields={"email": "keyword", "n": "integer"}),
    SearchIndex(
        "even",
        user,
        fields={"email": "keyword", "n": "integer", "tag": "keyword"},
        document=document,
        where=is_even,
    ),
    SearchIndex("half", Entity("shop.half_search"), fields={"v": "keyword"}),  # half filled
]
