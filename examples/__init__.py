"""Declarations to learn from (shop/, geo/) and the demo that runs one of them on real servers (demo/)."""
