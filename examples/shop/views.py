from viewtail import Entity, IndexTable, RedisHash, SearchIndex, Topic

user = Entity("shop.user")  # a table of yours

views = [
    IndexTable("user_by_email", user, value="email"),  # MySQL: who has this address? One index answers alone
    RedisHash("user", user, fields=["username", "email"]),  # Redis: HGETALL user:7
    SearchIndex("users", user, fields={"username": "text"}, where=lambda row: row["is_active"]),  # Elasticsearch
    Topic("shop.user", user),  # Kafka: every change once, in order, in the form of Debezium's messages
]
