"""A replaced operator's call: ksieve serves it, the engine's own does where ksieve refuses, and a share is compared."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ksieve.adapters import _signatures, _verify
from ksieve.adapters._operators import Operator
from ksieve.adapters._select import Declined
from ksieve.adapters._tally import TALLY
from ksieve.core.errors import ArgumentError, KsieveError

_log = logging.getLogger("ksieve.adapters")
_said: set[str] = set()
_random = random.Random()
share = 0.0
"""Share of the calls that are compared; set by `ksieve.adapters._switch`."""


def share_of(given: float | None) -> float:
    """Return the share of calls to compare, from an argument or the environment."""
    text: Any = os.environ.get("KSIEVE_VERIFY", "") or 0 if given is None else given
    with contextlib.suppress(ValueError, TypeError):
        if 0 <= (value := float(text)) <= 1:
            return value
    raise ArgumentError("KSIEVE_VERIFY" if given is None else "verify", repr(text), "a share of calls, from 0 to 1")


@contextlib.contextmanager
def engine_s_own() -> Iterator[None]:
    """Inside, calls of this thread reach the engine's own operators."""
    running = TALLY.running
    before, running.own = running.own, True
    try:
        yield
    finally:
        running.own = before


class Replacement:
    """The function in an operator's place; after `restore` a reference kept elsewhere calls the engine's own."""

    def __init__(self, operator: Operator) -> None:
        self.operator, self.owner, self.on = operator, _signatures.owner_of(operator), True
        self.direct = operator.attribute in vars(self.owner)  # otherwise inherited, or made by a module's __getattr__
        self.own: Callable[..., Any] = getattr(self.owner, operator.attribute)
        # Methods are looked up in classes, so that what takes a function's place has to be one.
        self.call = self._function()
        setattr(self.owner, operator.attribute, self.call)

    def restore(self) -> None:
        self.on = False
        if self.direct:
            setattr(self.owner, self.operator.attribute, self.own)
        else:
            delattr(self.owner, self.operator.attribute)

    def _function(self) -> Callable[..., Any]:
        function, name, running = _signatures.adapter_of(self.operator), self.operator.name, TALLY.running

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            if not self.on or running.own:
                return self.own(*args, **kwargs)
            running.operator = name
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # also a fault of ksieve, or no memory: a request does not fail for it
                if not isinstance(error, Declined):
                    TALLY.fell_back(name, error)
                    if name not in _said:
                        _said.add(name)
                        if isinstance(error, KsieveError):
                            _log.warning("%s: the engine's own serves calls that ksieve refuses: %s", name, str(error))
                        else:
                            _log.exception("%s: ksieve failed, and the engine's own serves the call", name)
                with engine_s_own():
                    return self.own(*args, **kwargs)
            finally:
                asked = running.asked
                running.operator = running.asked = None  # a reference would keep the scores in memory
            if share and _random.random() < share:
                with engine_s_own():
                    _verify.compare(self.operator, self.own, args, kwargs, result, asked)
            return result

        if hasattr(self.own, "default"):
            # An operator of torch.ops, and its one overload.
            call.__name__ = call.__qualname__ = self.operator.attribute
            call.default = call  # type: ignore[attr-defined]
            call._schema = self.own.default._schema  # type: ignore[attr-defined]
            return call
        return functools.wraps(self.own)(call)
