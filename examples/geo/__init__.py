"""The world's cities and countries: declarations in views.py, run by examples/demo."""
