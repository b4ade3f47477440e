"""Index tables in MySQL."""
