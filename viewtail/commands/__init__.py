"""Asks for what each command needs, and prints the result; the work is in operations/."""
