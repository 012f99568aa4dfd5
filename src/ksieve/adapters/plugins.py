"""Entry points of the engines' plugin loaders: `ksieve` in ``vllm.general_plugins`` and ``sglang.srt.plugins``.

Without the engine's variable they do nothing and import neither PyTorch nor an engine. They never raise: an engine
starts with its own operators if ksieve cannot take their place, and an error is logged.
"""

from __future__ import annotations

import importlib
import logging
import os

from ksieve.adapters._operators import SWITCHES


def vllm() -> None:
    """Replace vLLM's operators if ``KSIEVE_VLLM`` is 1."""
    _switch_on("vllm")


def sglang() -> None:
    """Replace SGLang's operators if ``KSIEVE_SGLANG`` is 1."""
    _switch_on("sglang")


def switched_on(engine: str) -> bool:
    """Whether ksieve's variable of an engine is set, to anything but a word for off."""
    asked = {"vllm": os.environ.get("KSIEVE_VLLM", ""), "sglang": os.environ.get("KSIEVE_SGLANG", "")}
    return asked.get(engine, "").strip().lower() not in ("", "0", "false", "no", "off")


def loaded(engine: str) -> bool:
    """Whether an engine loads ksieve's plugin, given its own variable that names plugins."""
    named = {"vllm": os.environ.get("VLLM_PLUGINS"), "sglang": os.environ.get("SGLANG_PLUGINS") or None}
    listed = named.get(engine)
    return listed is None or "ksieve" in [name.strip() for name in listed.split(",")]


def _switch_on(engine: str) -> None:
    if not switched_on(engine):
        return
    try:
        importlib.import_module(f"ksieve.adapters.{engine}").install()
    except Exception as error:  # an engine that cannot use ksieve has to start nevertheless
        logging.getLogger("ksieve.adapters").error("%s is set, and ksieve is off: %s", SWITCHES[engine][0], error)
