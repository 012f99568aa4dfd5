"""Measurements: each module has a ``run`` that returns a payload for `ksieve.bench.record.write_json`."""
