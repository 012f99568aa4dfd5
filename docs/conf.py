"""The documentation as a site: ``make site``. Everything it needs lies in the repository; nothing is downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import ksieve

DOCS = Path(__file__).parent

project = "ksieve"
author = "the ksieve authors"
copyright = "the ksieve authors"  # noqa: A001 - the name that Sphinx reads
version = release = ksieve.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["_build", "_templates", "reference/generated/cli.md", "reference/generated/options.md"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # types stand in the docstrings, with shapes and units
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]  # of the adapters
default_role = "code"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = f"ksieve {version}"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}


def _write_generated(_: Any) -> None:
    """Write what pages of the reference include, and the page of benchmarks with its figures."""
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS.parent / "scripts" / "generate_docs.py")
    if spec is None or spec.loader is None:
        raise RuntimeError("scripts/generate_docs.py cannot be loaded")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    generator.site(DOCS / "reference" / "generated")


def setup(app: Any) -> None:
    """Connect what the build generates."""
    app.connect("builder-inited", _write_generated, priority=100)
