"""FriendFeed's store: entities without a schema on two shards, and indexes that viewtail keeps."""
