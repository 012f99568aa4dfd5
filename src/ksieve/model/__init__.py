"""The NumPy model of the selection: every backend must equal its indices, routes and counts."""
