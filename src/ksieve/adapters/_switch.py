"""The switch of an engine: replacing its operators, putting everything back, and loading its kernels.

An operator is an attribute: of a module, of a namespace of ``torch.ops``, or of a class. `install` sets another
function there, and in every module of the engine that holds the same object under any name. Modules that are not yet
imported are never imported here (some start CUDA): a finder on ``sys.meta_path`` waits for them.
"""

from __future__ import annotations

import importlib.abc
import logging
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from ksieve._version import __version__
from ksieve.adapters import _calls, _forms, _select, _signatures
from ksieve.adapters._operators import HOMES, OPERATORS, Operator
from ksieve.adapters._tally import TALLY, announce
from ksieve.backends import cuda
from ksieve.backends.code_cache import Store
from ksieve.backends.cuda.jit import bundle, cache
from ksieve.core.errors import BackendError

_log = logging.getLogger("ksieve.adapters")
_lock = threading.RLock()
_installed: dict[str, tuple[Operator, ...]] = {}
_replaced: dict[str, _calls.Replacement] = {}


class Engine:
    """One engine, by its name in `ksieve.adapters._operators`; its methods are functions of the adapter's module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def install(self, verify: float | None = None) -> tuple[str, ...]:
        """Replace the engine's operators by the functions of this module, in this process, until `uninstall`.

        Modules that are not imported yet are waited for. The engine's own operators serve the calls that ksieve
        refuses, and those through a function that was kept beyond `uninstall`. A second call changes `verify` alone.

        Parameters
        ----------
        verify : float, optional
            Share of the calls, from 0 to 1, that are compared with the engine's own operator and judged by
            `ksieve.verify`. Default: ``KSIEVE_VERIFY``, or none.

        Returns
        -------
        tuple of str
            Names of the operators that are replaced now.

        Raises
        ------
        BackendError
            The engine, a package or the driver is missing, PyTorch is built for ROCm, or no operator has a known
            signature. Nothing is replaced. Where some have another signature, a warning names them, and the others are
            replaced.
        ArgumentError
            `verify`, or ``KSIEVE_VERIFY``, is no share.
        """
        engine = self.name
        with _lock:
            share = _calls.share_of(verify)
            operators = OPERATORS[engine]
            if engine not in _installed:
                if not _signatures.installed(engine):
                    raise BackendError(f"{engine} is not installed: there is nothing to replace")
                if torch.version.hip is not None:
                    raise BackendError(
                        f"PyTorch is built for ROCm, for which ksieve has no kernels: {engine} stays as it is"
                    )
                if (problem := _signatures.cuda_problem()) is not None:
                    raise BackendError(problem)
                waiting = {operator.source for operator in operators if not _signatures.imported(operator)}
                later = sorted(name for name in waiting if _signatures.exists(name.partition(".")[0]))
                refused = _replace(engine, [operator for operator in operators if _signatures.imported(operator)])
                if refused is not None and not later and not _names(engine):
                    raise BackendError(refused)
                _installed[engine] = operators
                _FINDER.watch()
                announce(
                    "ksieve %s replaces in %s: %s%s%s", __version__, engine, ", ".join(_names(engine)) or "nothing yet",
                    f"; when they are imported, those of {', '.join(later)}" if later else "",
                    f"; {share:g} of the calls are compared with the engine's own" if share else "",
                )  # fmt: skip
                if refused is not None:
                    _log.warning("%s", refused)
            _calls.share = share
            return _names(engine)

    def uninstall(self) -> None:
        """Put the engine's operators back exactly as they were; without `install` it does nothing."""
        with _lock:
            if _installed.pop(self.name, None) is None:
                return
            kept = {operator.name for operators in _installed.values() for operator in operators}
            ended = [_replaced.pop(name) for name in list(_replaced) if name not in kept]
            _rename({id(each.call): each.own for each in ended})
            for each in ended:
                each.restore()
            if not _replaced:
                _select.observer = None
            _FINDER.watch()

    def warm_up(
        self,
        k: int | Sequence[int] = 2048,
        max_rows: int = 16_384,
        max_width: int = 262_144,
        dtypes: Sequence[str] = ("float32",),
    ) -> int:
        """Compile and load the kernels of the engine's calls on the current CUDA device: none waits for a compiler.

        The kernels serve every call of this module with scores up to that size. Compiled ones come from the cache,
        which ``ksieve build --for`` fills; others are compiled on all processors, which takes minutes.

        Parameters
        ----------
        k : int or sequence of int
            Slots per row.
        max_rows, max_width : int
            Largest shape of the scores.
        dtypes : sequence of str
            "float32", "float16" or "bfloat16".

        Returns
        -------
        int
            Number of kernels.

        Raises
        ------
        ArgumentError
            A number is out of range.
        BackendError
            There is no usable GPU, or a kernel cannot be compiled.
        """
        index = torch.cuda.current_device() if torch.cuda.is_available() else 0
        ks = (k,) if isinstance(k, int) else tuple(k)
        device = cuda.device_info(index)
        wanted = _forms.needed(self.name, device, ks=ks, max_rows=max_rows, max_width=max_width, dtypes=dtypes)
        if Store("cuda").writable():  # otherwise the kernels of other processes would be lost
            for _, made in cache.compile_all(bundle.missing(wanted)):
                if isinstance(made, BackendError):
                    raise made
        for plan in wanted.values():
            cuda.prepare(plan)
        return len(wanted)


def _names(engine: str) -> tuple[str, ...]:
    return tuple(operator.name for operator in OPERATORS[engine] if operator.name in _replaced)


def _replace(engine: str, operators: Sequence[Operator]) -> str | None:
    """Replace the operators whose signatures are known; return words for the others, None if there are none."""
    fresh = [operator for operator in operators if operator.name not in _replaced]
    findings = [_signatures.finding(operator) for operator in fresh]
    fitting = [o for o, found in zip(fresh, findings, strict=True) if found.found is not None and found.fits]
    made = [_calls.Replacement(operator) for operator in fitting]
    _select.observer = TALLY.see if made or _replaced else None
    _replaced.update({each.operator.name: each for each in made})
    _rename({id(each.own): each.call for each in made})
    return _signatures.refused(engine, findings)


def _rename(objects: dict[int, Any]) -> None:
    """Put other objects in place of some in all modules of the engines."""
    if not objects:
        return
    packages = {package for packages in HOMES.values() for package in packages}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                if id(value) in objects:
                    setattr(module, key, objects[id(value)])


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for modules that bring operators."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def watch(self) -> None:
        """Wait for the modules of the installed engines; without any this finder is not asked."""
        waiting = {o.source for operators in _installed.values() for o in operators if not _signatures.imported(o)}
        self.modules = waiting
        if waiting and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        elif not waiting and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.modules:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None
            if finder is not self and find is not None:
                spec = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, then replaces the operators that it brings."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        module.__loader__ = self.own
        self.own.exec_module(module)
        _loaded(module.__name__)


def _loaded(name: str) -> None:
    with _lock:
        for engine, operators in list(_installed.items()):
            before = set(_replaced)
            brought = [operator for operator in operators if operator.source == name]
            try:
                refused = _replace(engine, brought)
                if fresh := [each for each in _replaced if each not in before]:
                    announce("ksieve replaces in %s: %s", engine, ", ".join(fresh))
                if refused is not None:
                    _log.warning("%s", refused)
                elif brought and not any(operator.name in _replaced for operator in brought):
                    names = ", ".join(operator.name for operator in brought)
                    _log.warning("ksieve finds no operator that it knows in %s of %s: %s", name, engine, names)
            except Exception as error:  # the import of an engine's module never fails for this
                _log.error("ksieve replaces nothing of %s in %s: %s: %s", name, engine, type(error).__name__, error)
        _FINDER.watch()


_FINDER = _Finder()
