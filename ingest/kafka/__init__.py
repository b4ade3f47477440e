"""The Kafka source: reads the partitions of topics that hold the changes of tables."""
