"""Operators of the engines that are here, before and after the switch replaces them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ksieve.core.errors import ArgumentError, BackendError
from ksieve_lab.bench.engine_calls import CALLS, NOT_TIMED, Call, UnsupportedError, own_of
from ksieve_lab.bench.shape_lists import words

ENGINES = ("vllm", "sglang", "flashinfer", "tensorrt_llm")


def engines_of(text: str) -> tuple[list[str], list[Any]]:
    """Read names of engines."""
    names = list(ENGINES) if text == "all" else words(text)
    if not names or set(names) - set(ENGINES):
        raise ArgumentError("peers", repr(text), f"some of {', '.join(ENGINES)}")
    return names, []


def names_of(engines: Sequence[str]) -> list[str]:
    """Full names of the engines' operators."""
    from ksieve.adapters._operators import OPERATORS

    return list(dict.fromkeys(operator.name for engine in engines for operator in OPERATORS[engine]))


@dataclass(frozen=True)
class Replaced:
    """An operator before and after the switch: `own` is what the engine had, and `served` what it has now."""

    operator: Any
    call: Call
    own: Callable[..., Any]
    served: Callable[..., Any]

    @property
    def name(self) -> str:
        """Its full name."""
        return str(self.operator.name)

    @property
    def engine(self) -> str:
        """The engine that it belongs to; others may call it too."""
        return str(self.operator.adapter.partition(".")[0])


@contextlib.contextmanager
def installed(
    engines: Sequence[str], names: Container[str]
) -> Iterator[tuple[list[Replaced], dict[str, str], dict[str, str]]]:
    """Import operators of some engines, by their full names, and replace them until the end.

    Yields the operators, each once although engines share some; by name why others are not measured; and the versions
    of the engines' distributions. Raises `BackendError` if there is no operator to measure.
    """
    from ksieve.adapters import _signatures, _switch
    from ksieve.adapters._operators import OPERATORS

    absent: dict[str, str] = {}
    own: dict[str, Any] = {}
    for operator in (operator for engine in engines for operator in OPERATORS[engine]):
        if operator.name not in names or operator.name in own or operator.name in absent:
            continue
        try:
            if (reason := NOT_TIMED.get(operator.adapter)) is not None:
                raise UnsupportedError(reason)
            own[operator.name] = own_of(operator)
        except UnsupportedError as error:
            absent[operator.name] = str(error)
    found: dict[str, Replaced] = {}
    switched: list[str] = []
    try:
        for engine in engines:
            known = [operator for operator in OPERATORS[engine] if operator.name in own]
            if not known:
                continue
            try:
                _switch.Engine(engine).install(0.0)
            except BackendError as error:
                absent |= {operator.name: str(error) for operator in known if operator.name not in found}
                continue
            switched.append(engine)
            for operator in known:
                served = _signatures.own(operator)
                if operator.name not in found and served is not own[operator.name]:
                    call = CALLS[operator.adapter]
                    found[operator.name] = Replaced(operator, call, own[operator.name], served)
        if not found:
            reasons = "; ".join(dict.fromkeys(absent.values()))
            raise BackendError(f"no operator of {', '.join(engines)} to measure: {reasons}")
        versions = {name: v for engine in engines for name, v in _signatures.versions(engine).items()}
        yield list(found.values()), {n: why for n, why in absent.items() if n not in found}, versions
    finally:
        for engine in switched:
            _switch.Engine(engine).uninstall()
