"""The documentation as a site: ``make site``. Everything it needs lies in the repository; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import ksieve

DOCS = Path(__file__).parent

project = "ksieve"
author = "the ksieve authors"
copyright = "the ksieve authors"  # noqa: A001 - the name that Sphinx reads
version = release = ksieve.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates", "reference/generated/options.md"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # types stand in the docstrings, with shapes and units
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]  # of the adapters
default_role = "code"
smartquotes_action = "q"  # `--next` keeps its hyphens
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = f"ksieve {version}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_context = {"default_mode": "auto"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}


def _write_generated(_: Any) -> None:
    """Write the pages of the commands, and the table of options."""
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS.parent / "scripts" / "generate_docs.py")
    if spec is None or spec.loader is None:
        raise RuntimeError("scripts/generate_docs.py cannot be loaded")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    generator.site(DOCS / "reference" / "generated")


def _tabs(_: Any, __: str, source: list[str]) -> None:
    """Show blocks of code under the names of libraries as tabs. GitHub shows the names."""
    tab = r"\*\*(NumPy|PyTorch|JAX)\*\*\n\n(```python\n[^`]*```\n)\n"
    source[0] = re.sub(
        f"(?:{tab})+",
        lambda run: "::::{tab-set}\n" + re.sub(tab, r":::{tab-item} \1\n\2:::\n", run[0]) + "::::\n\n",
        source[0],
    )


def setup(app: Any) -> None:
    """Connect what the build generates."""
    app.connect("source-read", _tabs)
    app.connect("builder-inited", _write_generated, priority=100)
