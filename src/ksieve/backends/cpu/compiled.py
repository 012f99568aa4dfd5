"""Numba functions whose machine code is kept on disk, in ksieve's own cache.

Numba's own cache unpickles any file next to the package. This one stores the same bytes in a checked
`ksieve.backends.code_cache.Store`. Numba's dispatcher calls two methods of its cache: `load_overload` before it
compiles a signature, and `save_overload` afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from ksieve._version import __version__
from ksieve.backends.code_cache import Code, Store, say_once
from ksieve.backends.cpu.jit import numba

_F = TypeVar("_F", bound=Callable[..., Any])
_log = logging.getLogger(__name__)

try:
    import llvmlite
    from numba.core import caching, compiler, serialize

    _Base: Any = caching._Cache
    _reduce, _rebuild, _dumps = compiler.CompileResult._reduce, compiler.CompileResult._rebuild, serialize.dumps
    _unfit = None
except (ImportError, AttributeError) as error:  # these names are not public in Numba
    _Base, _unfit = object, str(error)


def cached_jit(function: _F) -> _F:
    """Compile without the GIL when first called, and keep the machine code of each signature on disk.

    The cache key covers the function's bytecode and the values that it closes over. Code that it depends on beyond
    these, such as the functions that it calls, must enter as a closed-over digest of their source texts.
    """
    dispatcher = numba.njit(nogil=True)(function)
    if _unfit is None and hasattr(dispatcher, "_cache") and hasattr(dispatcher, "compile"):
        cache = _KernelCache(function)
        compile_signature = dispatcher.compile

        def compile_alone(signature: Any) -> Any:
            try:
                return compile_signature(signature)
            finally:
                cache.release()  # also after an exception or Ctrl-C

        dispatcher._cache, dispatcher.compile = cache, compile_alone
    else:
        say_once(
            f"compiled CPU kernels cannot be cached with Numba {numba.__version__} ({_unfit or 'other dispatcher'}); "
            "each process compiles them again"
        )
    return cast(_F, dispatcher)


class _KernelCache(_Base):  # type: ignore[misc]
    """Cache object for Numba's dispatcher; it holds the entry's lock from a miss to the end of the compilation."""

    def __init__(self, function: Callable[..., Any]) -> None:
        code = function.__code__
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self._name = function.__name__
        self._static = {
            "kernel": function.__name__,
            "module": function.__module__,
            "bytecode": _digest(code.co_code, repr(code.co_consts if not cells else ()).encode()),
            "closure": _digest(_dumps(cells)),
            "compiler": f"numba {numba.__version__}",
            "llvmlite": llvmlite.__version__,
            "numpy": np.__version__,
            "python": sys.implementation.cache_tag + getattr(sys, "abiflags", ""),
            "ksieve": __version__,
        }
        self._pending = threading.local()

    @property
    def cache_path(self) -> str:
        return str(Store("cpu").folder)

    def enable(self) -> None:
        """Do nothing: the cache cannot be disabled."""

    disable = flush = enable

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Return the stored code, or None with the entry's lock held."""
        target_context.refresh()
        store, facts = Store("cpu"), self._facts(signature, target_context.codegen())
        if (found := self._load(store, facts, target_context)) is not None:
            return found
        stack = contextlib.ExitStack()
        self._pending.stack = stack
        stack.enter_context(store.alone(facts))
        found = self._load(store, facts, target_context)
        if found is None:
            _log.warning("compiling the CPU kernels (%s), once per machine and version: 10 to 20 seconds", self._name)
            self._pending.began = time.perf_counter()
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store the compiled code."""
        took = time.perf_counter() - getattr(self._pending, "began", time.perf_counter())
        _log.info("compiled the CPU kernels (%s) in %.1f s", self._name, took)
        if result.lifted or result.library.has_dynamic_globals:  # addresses of this process are compiled in
            return
        try:
            code = Code(_dumps(_reduce(result)), f"compiled in {took:.1f} s")
        except Exception as error:
            say_once(f"compiled CPU kernels cannot be kept ({type(error).__name__}: {error})")
            return
        Store("cpu").keep(self._facts(signature, result.codegen), code)

    def release(self) -> None:
        """Release the entry's lock, on which other processes wait."""
        stack = self._pending.__dict__.pop("stack", None)
        if stack is not None:
            stack.close()

    def _facts(self, signature: Any, codegen: Any) -> dict[str, Any]:
        target = [str(part) for part in codegen.magic_tuple()]
        return self._static | {"signature": str(signature), "arch": target[1] or target[0], "target": target}

    def _load(self, store: Store, facts: dict[str, Any], target_context: Any) -> Any:
        found = store.load(facts)
        if found is None:
            return None
        try:
            return _rebuild(target_context, *pickle.loads(found.code))
        except Exception as error:
            say_once(f"compiled code in {store.path(facts)} is not used ({error!r}); it is compiled again")
            return None


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
