"""Shared helpers of the adapters: a call of `ksieve.topk` whose errors name the framework's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ksieve import api
from ksieve.core.errors import ArgumentError

_TIE_BREAKS = (None, "low", "high")
"""`tie_break` of FlashInfer's numbers 0 (none), 1 (smaller indices) and 2 (larger indices)."""

observer: Callable[[Any, Any, Any, dict[str, Any]], None] | None = None
"""Sees every selection while an engine's operators are replaced (`ksieve.adapters._tally`)."""


class Declined(Exception):  # noqa: N818 - no error
    """Raised by an adapter whose call is the engine's to serve, because its user named a kernel of the engine."""


def select(names: Mapping[str, str], scores: Any, lengths: Any = None, k: Any = None, **options: Any) -> Any:
    """Call `ksieve.topk`; an error names the argument as the framework does.

    Parameters
    ----------
    names : mapping
        Maps argument names of `ksieve.topk` to those of the framework's function.
    """
    try:
        if observer is not None and not torch.compiler.is_compiling():
            observer(scores, lengths, k, options)
        return api.topk(scores, lengths, k, **options)
    except ArgumentError as error:
        if error.argument not in names:
            raise
        raise type(error)(names[error.argument], error.got, error.takes) from None


def first(tensor: Any, count: int) -> Any:
    """Return the first `count` entries: the tensor itself if it has no more, since a slice costs microseconds."""
    return tensor if tensor.shape[0] == count else tensor[:count]


def require(good: bool, name: str, got: object, takes: str) -> None:
    """Raise `ArgumentError` unless a condition holds."""
    if not good:
        raise ArgumentError(name, got, takes)


def tie_break_of(number: Any) -> str | None:
    """Translate FlashInfer's number (or ``TopKTieBreak``) into `tie_break` of `ksieve.topk`."""
    value = int(number)
    require(0 <= value < len(_TIE_BREAKS), "tie_break", number, "0 (none), 1 (smaller indices) or 2 (larger indices)")
    return _TIE_BREAKS[value]
