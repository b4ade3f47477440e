"""Views, the projections from rows to their writes, the sinks, and the pipeline that joins them."""
