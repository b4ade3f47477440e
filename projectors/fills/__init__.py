"""Filling views from their tables, or from their topic: begin with filling.py."""
