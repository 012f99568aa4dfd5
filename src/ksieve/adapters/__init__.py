"""Call signatures of serving frameworks over `ksieve.topk`, and a switch that puts them into a running engine.

`ksieve.adapters.vllm`, `.sglang`, `.flashinfer` and `.tensorrt_llm` hold functions with the names, keywords, in-place
outputs and results of the framework's own. `install` puts them in place of the framework's operators, and `uninstall`
takes them out. ``KSIEVE_VLLM=1`` and ``KSIEVE_SGLANG=1`` do that in every process of the engine. They take PyTorch
tensors, on CUDA or on the CPU. `ksieve.ArgumentError` names an unusable argument by the framework's name.
The page on engines says what changes in which framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ksieve.adapters._tally import Calls, Report, Verified, report

__all__ = ["Calls", "Report", "Verified", "report"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: every process of an engine loads all plugins, most of them without ksieve.
    if name in __all__:
        return getattr(importlib.import_module("ksieve.adapters._tally"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
