"""Entry points of the engines' plugin loaders: `ksieve` in ``vllm.general_plugins`` and ``sglang.srt.plugins``.

Without the engine's variable they do nothing and import neither PyTorch nor an engine. They never raise: an engine
starts with its own operators if ksieve cannot take their place, and an error is logged.
"""

from __future__ import annotations

import importlib
import logging
import os


def vllm() -> None:
    """Replace vLLM's operators if ``KSIEVE_VLLM`` is 1."""
    _switch_on("vllm", "KSIEVE_VLLM")


def sglang() -> None:
    """Replace SGLang's operators if ``KSIEVE_SGLANG`` is 1."""
    _switch_on("sglang", "KSIEVE_SGLANG")


def _switch_on(engine: str, variable: str) -> None:
    if os.environ.get(variable, "") in ("", "0"):
        return
    try:
        importlib.import_module(f"ksieve.adapters.{engine}").install()
    except Exception as error:  # an engine that cannot use ksieve has to start nevertheless
        logging.getLogger("ksieve.adapters").error("%s is set, and ksieve is off: %s", variable, error)
