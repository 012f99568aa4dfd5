"""Measurements: each module has a ``run`` that returns a payload for `ksieve.planning.tune.record.write_json`."""
