"""What the servers of stack/ can fail with: one tree, each message saying what happened, where, and what to do."""

from __future__ import annotations


class StackError(Exception):
    """A server of stack/ could not be installed, started or stopped."""


class ServerUnavailable(StackError):
    """This machine lacks something the server needs; the message says what and how to get it."""


class ServerFailed(StackError):
    """The server is installed but did not start, answer or stop; the message ends with its own last lines."""
