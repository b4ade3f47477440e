"""Whether a view shows what its table says, and writing single entities of it again: beside the pipeline, not in it."""
