"""Documents in Elasticsearch."""
