"""Schema-less entities over MySQL shards, as FriendFeed described them: a bag of properties, and indexes beside it.

`put` writes the canonical entity and nothing else. The indexes are views that `viewtail run` keeps, fills and mends.
"""

from viewtail.datastore.indexes import Index
from viewtail.datastore.store import DataStore

__all__ = ["DataStore", "Index"]
