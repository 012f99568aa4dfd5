"""Score captures: files of scores, their importers, and the recorder of live calls.

The names below are imported when they are used: ``import ksieve`` needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksieve_lab.captures.format import Block, Capture, open_capture
    from ksieve_lab.captures.importers import import_scores
    from ksieve_lab.captures.writer import CaptureWriter, write_factors

__all__ = ["Block", "Capture", "CaptureWriter", "import_scores", "open_capture", "write_factors"]

_MODULES = {
    "Block": "format",
    "Capture": "format",
    "CaptureWriter": "writer",
    "import_scores": "importers",
    "open_capture": "format",
    "write_factors": "writer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
