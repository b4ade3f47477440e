"""Schema-less entities over MySQL shards, as FriendFeed described them: a bag of properties, and indexes beside it.

`put` writes the canonical entity and nothing else. The indexes are views that `viewtail run` keeps, fills and mends.
"""

from viewtail.entities.datastore.indexes import Index
from viewtail.entities.datastore.store import DataStore

__all__ = ["DataStore", "Index"]
