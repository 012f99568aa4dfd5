"""Modules and operators that tests of a framework find in place of the framework's own."""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

CALLS: Counter[str] = Counter()
"""Calls of ksieve by the name of the operator that it replaces."""


def redirect(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which then counts its calls under the operator's name."""
    CALLS[name] += 0

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        CALLS[name] += 1
        return function(*args, **kwargs)

    return counted


def module(name: str, path: str | None = None, **attributes: Any) -> ModuleType:
    """Put a module in place of a framework's, with parents; `path` is where real submodules lie, if any are used."""
    parent, _, leaf = name.rpartition(".")
    if parent and parent not in sys.modules:
        module(parent)
    made = sys.modules.get(name)
    if made is None:
        made = ModuleType(name)
        made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        made.__path__ = []
        sys.modules[name] = made
        if parent:
            setattr(sys.modules[parent], leaf, made)
    if path is not None:
        made.__path__ = [path]
    for key, value in attributes.items():
        setattr(made, key, value)
    return made
