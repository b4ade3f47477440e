"""The store that the application uses, and that `viewtail run` keeps the indexes of."""

import os

from viewtail.datastore import DataStore, Index

by_user = Index(table="index_user_id", properties=["user_id"], shard_on="user_id")
by_link = Index(table="index_link", properties=["link"], shard_on="link")
by_kind = Index(table="index_kind_day", properties=["kind", "day"])

datastore = DataStore(mysql_shards=os.environ["FRIENDFEED_SHARDS"].split(), indexes=[by_user, by_link, by_kind])
