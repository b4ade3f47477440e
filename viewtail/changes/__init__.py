"""The data that flows: tables, columns, changes, versions, positions, values and their rendering.

This is the lowest package: it imports none of the others and talks to no server."""
