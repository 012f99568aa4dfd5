"""Single source of the package version; importing it pulls in nothing else."""

__version__ = "0.1.0"
