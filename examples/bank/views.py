"""Which accounts have how much, and each account as a JSON document in Redis."""

from viewtail import Entity, IndexTable, RedisJson

account = Entity(
    "bank.account", key="entity_id", version="version", append_only=True, order="event_id", body="state", codec="json"
)

views = [
    IndexTable("account_by_balance", account, values={"balance": "BIGINT"}, of=lambda row: row["state"]["balance"]),
    RedisJson(
        "account",
        account,
        document=lambda row: {"balance": row["state"]["balance"], "events": row["version"]},
        push=True,  # the worker shows an event at once, and the pipeline brings it too
    ),
]
