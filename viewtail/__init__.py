"""viewtail keeps views of MySQL tables."""

from projectors.views import Entity, IndexTable, RedisHash, RedisJson, SearchIndex

__all__ = ["Entity", "IndexTable", "RedisHash", "RedisJson", "SearchIndex"]
