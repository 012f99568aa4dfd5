"""Measurements: each module has a ``run`` that returns a payload for `ksieve.lab.bench.record.write_json`."""
