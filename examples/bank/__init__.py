"""Accounts whose every change is a command, and views of them."""
