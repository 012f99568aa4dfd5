"""Base package: keys, arrays, options, problems, policies, errors. It imports no other package of the library."""
