"""Commands of the library. They parse arguments, call the library and print its results."""
