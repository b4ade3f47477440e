"""The polling source: reads tables to which rows are only added, in the order of their ids, and misses none."""
