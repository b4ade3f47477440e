"""`viewtail demo`: real servers, real rows, a real `viewtail run`, and a check of every row at the end.

It begins in play.py. Servers are those that settings name (given.py), or those that stack/ fetches (servers.py).
"""
