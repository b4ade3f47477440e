"""Quoted texts and names in SQL, as patterns: where the sql_mode has no NO_BACKSLASH_ESCAPES and no ANSI_QUOTES.

A doubled quote reads as two strings side by side, which is as good. What is not closed reaches to the end.
"""

from __future__ import annotations

SINGLE = r"'[^'\\]*+(?:\\.[^'\\]*+)*+'?"
DOUBLE = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
BACKTICK = r"`[^`]*+`?"
QUOTED = f"{SINGLE}|{DOUBLE}|{BACKTICK}"  # all with re.DOTALL
