"""Holds a schema, or a migration, against a guideline: rules with codes, each data and a function.

Begin with `rules.py` (what a rule is) and `linting.py` (how files and schemas are held against all of them).
"""
