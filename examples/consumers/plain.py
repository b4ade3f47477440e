"""The newest row of each key of a topic, with confluent-kafka alone.

    pip install confluent-kafka
    python plain.py BROKER:9092 shop.orders
    python plain.py BROKER:9092 shop.orders read_uncommitted

The second is for a topic that is delivered at least once: it does not wait for commits, and drops what comes twice.

Reads every partition from its beginning to its present end and prints each row as a line of JSON. To keep the rows up
to date, go on reading where the loop ends.
"""

import json
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition


def newest_rows(brokers, topic, isolation="read_committed"):
    """The newest row of each key, by the key as it is in the topic."""
    consumer = Consumer({
        "bootstrap.servers": brokers,
        "group.id": "plain",  # the client wants a name; nothing is committed under it
        "enable.auto.commit": False,
        "isolation.level": isolation,  # read_committed: each change once
        "enable.partition.eof": True,  # say where the end is
    })  # fmt: skip
    unread = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in unread])
    versions, rows = {}, {}
    while unread:
        message = consumer.poll()
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            unread.discard(message.partition())
            continue
        key, version = message.key(), int(dict(message.headers())["viewtail_version"])
        if version < versions.get(key, 0):
            continue  # a newer one is known, or it came before
        versions[key] = version
        content = {} if message.value() is None else json.loads(message.value())  # None: a tombstone
        row = content.get("payload", content).get("after")  # "payload" where the topic has schemas=True
        if row is None:
            rows.pop(key, None)
        else:
            rows[key] = row
    consumer.close()
    return rows


if __name__ == "__main__":
    for found in newest_rows(*sys.argv[1:]).values():
        print(json.dumps(found, ensure_ascii=False))
