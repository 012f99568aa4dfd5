"""One module for each framework: stand-ins of what its tests import, with its operators redirected to ksieve.

Each has `install(folder, device)`, which is called before its tests are imported.
"""
