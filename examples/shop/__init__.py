"""The smallest declarations: the views.py of README.md, with the table they are of in shop.sql."""
