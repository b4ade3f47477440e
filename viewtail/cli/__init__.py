"""The command line: each command with its options and its help. What it does is in viewtail/commands/.

A module there is imported when its command is called: `--help` is quick, and no command pays for the clients of
another.
"""
