"""The `ksieve` command line: commands of the laboratory beside those of the library."""
