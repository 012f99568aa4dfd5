"""Commands of the library. Thin: they parse, call and print; everything they say is computed elsewhere."""
