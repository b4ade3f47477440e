from viewtail import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

user = Entity("shop.user")  # a table of yours; its primary key is the entity's key


def card(row):
    """Any pure function of the row; None keeps the row out of the view."""
    return {"name": row["username"], "since": row["created_at"][:10], "is_new": row["order_count"] == 0}


views = [
    # MySQL: which users have this e-mail address? A table of (email, id) that answers alone.
    IndexTable("user_by_email", user, value="email"),
    # Redis: HGETALL user:7
    RedisHash("user", user, fields=["username", "email"]),
    # Redis: GET card:7 -> {"name": ..., "since": ..., "is_new": ..., "_version": ...}
    RedisJson("user_card", user, document=card, key="card:{id}"),
    # Elasticsearch: full text, of the rows that are to be found
    SearchIndex("users", user, fields={"username": "text"}, where=lambda row: row["is_active"]),
]
