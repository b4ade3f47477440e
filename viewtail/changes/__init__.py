"""What flows: tables, columns, changes, versions, positions, values and their rendering.

The lowest package: it imports none of the others and talks to no server.
"""
