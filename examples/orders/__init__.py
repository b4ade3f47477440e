"""Real orders, each with all that eight tables know of it, as a search document, a Redis value and an index table."""
