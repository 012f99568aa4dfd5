"""Signatures of an engine's operators as text, compared with those that the adapters take."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from ksieve.adapters._operators import DISTRIBUTIONS, OPERATORS, Operator


@dataclass(frozen=True, slots=True)
class Finding:
    """An operator of an installed engine.

    Attributes
    ----------
    operator : str
    found : str or None
        Its signature; None if the installed engine has no such operator, or the module cannot be imported.
    takes : tuple of str
        Signatures that the adapter takes.
    problem : str or None
        Why the module cannot be imported.
    """

    operator: str
    found: str | None
    takes: tuple[str, ...]
    problem: str | None = None

    @property
    def fits(self) -> bool:
        """Whether ksieve can replace the operator, or there is none to replace."""
        return self.problem is None and (self.found is None or self.found in self.takes)


def signature_of(function: Any) -> str:
    """Write a signature without annotations: a PyTorch operator's with the types of its schema."""
    schema = getattr(getattr(function, "default", None), "_schema", None)
    if schema is not None:
        return ", ".join(f"{argument.type} {argument.name}" for argument in schema.arguments)
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if isinstance(default, enum.IntEnum):
            default = int(default)
        parameters.append(parameter.replace(annotation=inspect.Parameter.empty, default=default))
    return str(inspect.Signature(parameters))[1:-1]


def names_of(signature: str) -> list[str]:
    """Parameter names of a signature in text, in order."""
    words = (part.partition("=")[0].split() for part in signature.split(", "))
    return [word[-1] for word in words if word != ["*"]]


def owner_of(operator: Operator) -> Any:
    """Return the object that has the operator as an attribute; its module is imported."""
    module, _, path = operator.owner.partition(":")
    return functools.reduce(getattr, path.split(".") if path else (), importlib.import_module(module))


def own(operator: Operator) -> Any:
    """Return what the engine has under the operator's name; None if it has nothing."""
    return getattr(owner_of(operator), operator.attribute, None)


def finding(operator: Operator) -> Finding:
    """Compare one operator, whose module is imported, with the adapter."""
    function = own(operator)
    return Finding(operator.name, None if function is None else signature_of(function), operator.signatures)


def versions(engine: str) -> dict[str, str]:
    """Return the installed distributions of an engine with their versions."""
    found = {}
    for package in DISTRIBUTIONS[engine]:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def examine(engine: str) -> list[Finding]:
    """Compare all operators of an engine, whose modules are imported."""
    findings = []
    for operator in OPERATORS[engine]:
        try:
            importlib.import_module(operator.source)
            findings.append(finding(operator))
        except Exception as error:  # an engine's import may fail in any way
            missing = isinstance(error, ModuleNotFoundError) and _is_part(error.name, operator.source)
            problem = None if missing else f"{operator.source}: {type(error).__name__}: {error}"
            findings.append(Finding(operator.name, None, operator.signatures, problem))
    return findings


def _is_part(missing: str | None, module: str) -> bool:
    return missing is not None and (module == missing or module.startswith(f"{missing}."))


def refused(engine: str, findings: list[Finding]) -> str | None:
    """Words for the operators that do not fit, with the versions; None if all fit."""
    wrong = [f for f in findings if not f.fits]
    if not wrong:
        return None
    installed = " ".join(f"{name} {version}" for name, version in versions(engine).items()) or engine
    listed = "; ".join(f"{f.operator}({f.found}), for which it takes ({' or '.join(f.takes)})" for f in wrong)
    return f"ksieve does not know {installed} and leaves its operators alone: {listed}"


def imported(operator: Operator) -> bool:
    """Whether the module that brings an operator has been imported, completely."""
    module = sys.modules.get(operator.source)
    return module is not None and not getattr(module.__spec__, "_initializing", False)
