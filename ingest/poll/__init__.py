"""The polling source: reads tables whose rows are only ever added, in the order of their ids, and misses none."""
