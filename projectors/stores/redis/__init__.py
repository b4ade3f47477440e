"""Hashes and JSON documents in Redis."""
