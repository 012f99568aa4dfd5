"""The `ksieve` command line. Thin: it parses, calls and prints; everything it says is computed elsewhere."""

from ksieve.cli.app import app, main

__all__ = ["app", "main"]
