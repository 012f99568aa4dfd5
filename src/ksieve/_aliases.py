"""Former names of modules, which still import, with a `DeprecationWarning`."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

REMOVED_IN = "0.3"

NAMES = {
    "bench": "lab.bench",
    "chain": "lab.chain",
    "devices": "planning.devices",
    "errors": "core.errors",
    "keys": "core.keys",
    "options": "core.options",
    "planner": "planning.plan",
    "policy": "core.policy",
    "recorder": "captures.recorder",
    "reference": "model.reference",
    "replay": "lab.traces.replay",
    "stats": "core.stats",
    "study": "lab.study",
    "verdict": "checking.verdict",
    "workloads": "lab.workloads",
    "workloads.capture": "captures.format",
    "workloads.factors": "captures.factors",
    "workloads.importers": "captures.importers",
    "workloads.sources": "captures.sources",
    "workloads.writer": "captures.writer",
}
"""Former name -> current name, both below ``ksieve``; the longest entry that is a prefix of a module's name applies."""


class _Finder(MetaPathFinder, Loader):
    """Import the current module under its former name: both names refer to one module object."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _today(fullname) else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        today = _today(name)
        message = f"{name} is now {today}; the former name will be removed in {REMOVED_IN}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)  # the import statement: warnings skip importlib
        sys.modules[name] = importlib.import_module(today)


def _today(fullname: str) -> str:
    package, _, name = fullname.partition(".")
    if package != "ksieve" or not name:
        return ""
    head, rest = name, ""
    while head and head not in NAMES:
        head, _, last = head.rpartition(".")
        rest = f".{last}{rest}"
    return f"ksieve.{NAMES[head]}{rest}" if head else ""


def install() -> None:
    """Register the finder of former names. It comes first: a former folder may still hold stale ``__pycache__``."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
