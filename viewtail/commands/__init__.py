"""What each command asks for, and how it prints what it found; the work is in operations/."""
