"""Signatures of an engine's operators as text, compared with what the adapters take."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any

import torch

from ksieve.adapters._operators import DISTRIBUTIONS, HOMES, OPERATORS, SWITCHES, Operator
from ksieve.adapters.plugins import loaded, switched_on
from ksieve.backends import cuda
from ksieve.core.errors import BackendError
from ksieve.core.installation import version_of


@dataclass(frozen=True, slots=True)
class Finding:
    """An operator of an installed engine.

    `found`: its signature; None if the installed engine has no such operator, or the module cannot be imported.
    `takes`: signatures that the adapter takes. `problem`: why the module cannot be imported.
    """

    operator: str
    found: str | None
    takes: tuple[str, ...]
    problem: str | None = None

    @property
    def fits(self) -> bool:
        """Whether ksieve can replace the operator, or there is none to replace."""
        found = self.found
        return self.problem is None and (found is None or any(_is_call_of(found, taken) for taken in self.takes))


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What is installed of an engine, for `ksieve doctor --for`.

    `versions`: of its distributions. `registered`: whether its plugin loader finds ksieve; True where an engine has
    none. `loaded`: whether the engine's own variable lets it load ksieve. `on`: whether the variable of ksieve is set.
    `problem`: why no operator would be replaced, although this machine has a driver.
    """

    engine: str
    versions: dict[str, str]
    registered: bool
    loaded: bool
    on: bool
    operators: tuple[Finding, ...]
    problem: str | None

    @property
    def fits(self) -> bool:
        """Whether `install` would replace all operators that are there: at least one is."""
        found = any(f.found for f in self.operators) and all(f.fits for f in self.operators)
        return found and self.problem is None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of ``ksieve doctor --for ENGINE --json``."""
        operators = [{**asdict(f), "fits": f.fits} for f in self.operators]
        return {**asdict(self), "operators": operators, "fits": self.fits}


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


def _is_call_of(found: str, taken: str) -> bool:
    """Whether calls of a signature are calls of another, which may go on with arguments that have defaults."""
    # DeepSelect's default was both; the adapter does not use it.
    theirs = found.replace("abort_when_nan_found=True", "abort_when_nan_found=False").split(", ")
    ours, further = taken.split(", ")[: len(theirs)], taken.split(", ")[len(theirs) :]
    return theirs == ours and all(part == "*" or "=" in part for part in further)


def adapter_of(operator: Operator) -> Any:
    """Return the function that takes the operator's place."""
    module, _, name = operator.adapter.partition(".")
    return getattr(importlib.import_module(f"ksieve.adapters.{module}"), name)


def known(operator: Operator) -> tuple[str, ...]:
    """Return the signatures that the adapter takes; the first one has every argument."""
    return operator.schemas or (signature_of(adapter_of(operator)),)


def owner_of(operator: Operator) -> Any:
    """Return the object that has the operator as an attribute, None if there is none; its module is imported."""
    module, _, path = operator.owner.partition(":")
    owner: Any = importlib.import_module(module)
    for name in path.split(".") if path else ():
        owner = getattr(owner, name, None)
    return owner


def own(operator: Operator) -> Any:
    """Return what the engine has under the operator's name; None if it has nothing."""
    return getattr(owner_of(operator), operator.attribute, None)


def finding(operator: Operator) -> Finding:
    """Compare one operator, whose module is imported, with the adapter."""
    function = own(operator)
    return Finding(operator.name, None if function is None else signature_of(function), known(operator))


def versions(engine: str) -> dict[str, str]:
    """Return the installed distributions of an engine with their versions."""
    found = {package: version_of(package) for package in DISTRIBUTIONS[engine]}
    return {package: version for package, version in found.items() if version is not None}


def examine(engine: str) -> EngineReport:
    """Compare all operators of an engine, whose modules are imported."""
    group = SWITCHES[engine][1] if engine in SWITCHES else ""
    findings = [_examined(operator) for operator in OPERATORS[engine]]
    plugins = [entry.value.partition(":")[0] for entry in metadata.entry_points(group=group)] if group else []
    return EngineReport(
        engine,
        versions(engine),
        not group or "ksieve.adapters.plugins" in plugins,
        loaded(engine),
        switched_on(engine),
        tuple(_unregistered(OPERATORS[engine], findings)),
        cuda_problem(),
    )


def cuda_problem() -> str | None:
    """Return why PyTorch's CUDA tensors could not be selected from, None if they could or no GPU is there."""
    if torch.version.cuda is None:
        return None
    try:
        cuda.check_packages()
    except BackendError as error:
        return str(error)
    return None


def _unregistered(operators: tuple[Operator, ...], findings: list[Finding]) -> Iterator[Finding]:
    """Where a namespace of ``torch.ops`` has no operator at all, say that nothing is known of them."""
    pairs = list(zip(operators, findings, strict=True))
    known = {operator.owner for operator, found in pairs if found.found is not None or found.problem is not None}
    for operator, found in pairs:
        if (
            operator.owner.startswith("torch:")
            and operator.owner not in known
            and exists(operator.source.split(".")[0])
        ):
            problem = f"{operator.source} registered nothing in {operator.owner.replace(':', '.')}, as without a GPU"
            yield replace(found, problem=problem)
        else:
            yield found


def _examined(operator: Operator) -> Finding:
    try:
        importlib.import_module(operator.source)
        return finding(operator)
    except Exception as error:  # an engine's import may fail in any way
        missing = isinstance(error, ModuleNotFoundError) and f"{operator.source}.".startswith(f"{error.name}.")
        problem = None if missing else f"{operator.source}: {type(error).__name__}: {error}"
        return Finding(operator.name, None, known(operator), problem)


def refused(engine: str, findings: list[Finding]) -> str | None:
    """Words for the operators that do not fit, with the versions; None if all fit."""
    wrong = [f for f in findings if not f.fits]
    if not wrong:
        return None
    installed = " ".join(f"{name} {version}" for name, version in versions(engine).items()) or engine
    listed = "; ".join(f"{f.operator}({f.found}), for which it takes ({' or '.join(f.takes)})" for f in wrong)
    return f"ksieve leaves operators of {installed} alone, whose signatures it does not know: {listed}"


def exists(package: str) -> bool:
    """Whether a top-level package can be imported; it is not."""
    return package in sys.modules or importlib.util.find_spec(package) is not None


def installed(engine: str) -> bool:
    """Whether a package of an engine can be imported."""
    return any(map(exists, HOMES[engine]))


def imported(operator: Operator) -> bool:
    """Whether the module that brings an operator has been imported, completely."""
    module = sys.modules.get(operator.source)
    return module is not None and not getattr(module.__spec__, "_initializing", False)
