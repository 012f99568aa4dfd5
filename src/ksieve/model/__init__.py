"""The NumPy model of the selection: what every backend has to equal."""
