"""Messages to people: what is not well, each incident once, and when it is over."""
