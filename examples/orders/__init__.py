"""Real orders as documents of eight tables: a search document, a Redis value and index tables that are right at once."""
