"""Topics: every change of an entity, published once and in order."""
