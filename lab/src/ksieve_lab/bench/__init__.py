"""Measurements: each module has a ``run`` that returns a payload for `ksieve_lab.bench.record.write_json`."""
