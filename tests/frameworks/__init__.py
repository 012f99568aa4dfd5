"""Runs the frameworks' own top-k tests against the adapters: `scripts/framework_tests.sh` is the way in.

`catalog.json` lists frameworks, their test files, and every test that is not run, with the reason. `sources` fetches
the files, `engines` stands in for the frameworks' modules and `devices` for a GPU, `plugin` runs in pytest, and
`__main__` reports. No file of a framework is part of this repository.
"""
