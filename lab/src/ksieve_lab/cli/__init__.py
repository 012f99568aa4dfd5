"""The `ksieve` command line: the commands of the laboratory, added to those of the library."""
