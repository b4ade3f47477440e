"""Schema-less entities over MySQL shards, as FriendFeed described them: a bag of properties, and indexes beside it."""

from viewtail.entities.datastore import DataStore, Index

__all__ = ["DataStore", "Index"]
