"""What every other part of the library stands on: scores, keys, options, problems, errors. It imports none of them."""
