"""Numba functions whose machine code is kept on disk, in ksieve's own cache.

Numba's own cache unpickles any file next to the package. This one stores the same bytes in a checked
`ksieve.backends.code_cache.Store`. Numba's dispatcher calls two methods of its cache: `load_overload` before it
compiles a signature, and `save_overload` afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ksieve._version import __version__
from ksieve.backends.code_cache import Code, Store, say_once
from ksieve.backends.cpu.jit import OPTIONS, numba
from ksieve.core import dtypes, keys, policy, stats
from ksieve.model import guess, logits

_F = TypeVar("_F", bound=Callable[..., Any])
_log = logging.getLogger(__name__)

types = numba.types

try:
    import llvmlite.binding
    from numba.core import caching, compiler, serialize

    _Base: Any = caching._Cache
    _reduce, _rebuild, _dumps = compiler.CompileResult._reduce, compiler.CompileResult._rebuild, serialize.dumps
    _unfit = None
except (ImportError, AttributeError) as error:  # these names are not public in Numba
    _Base, _unfit = object, str(error)


class Kernel:
    """A function of 64-bit integers, compiled alone.

    Kernels call each other through symbols of their machine code: none holds, optimises or emits another one again.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.name = function.__name__
        result = types.void if function.__annotations__["return"] == "None" else types.int64
        self.signature = result(*[types.int64] * function.__code__.co_argcount)
        self._symbol = f"ksieve_{self.name}_{source_digest()[:16]}"
        self._numba_type_ = types.ExternalFunction(self._symbol, self.signature)
        self.function = cached_jit(function, **options)
        self.address = 0
        """Of the machine code, once `prepare` has loaded it."""
        self._call: Callable[..., Any] = self._first_call

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python, without the GIL."""
        return self._call(*arguments)

    def _first_call(self, *arguments: Any) -> Any:
        prepare(self)
        return self._call(*arguments)

    @functools.cached_property
    def needed(self) -> dict[Kernel, None]:
        """The kernels that it calls, and itself last."""
        return _called(self.function.py_func, {}) | {self: None}

    def load(self) -> None:
        """Load the machine code, or compile it; kernels that it calls must be loaded."""
        self.function.compile(self.signature)
        self.function.disable_compile()
        (compiled,) = self.function.overloads.values()
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
        llvmlite.binding.add_symbol(self._symbol, address)
        self._call = self.function
        if self.function.targetoptions.get("no_cpython_wrapper"):
            result, *words = (ctypes.c_int64,) * (1 + len(self.signature.args))
            self._call = ctypes.CFUNCTYPE(None if self.signature.return_type == types.void else result, *words)(address)
        self.address = address


def _called(function: Any, found: dict[Kernel, None]) -> dict[Kernel, None]:
    """Add the kernels that a function needs to `found`, each after those that it needs itself."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, Kernel):
            found |= value.needed
        elif hasattr(value, "py_func"):
            _called(value.py_func, found)
    return found


def kernel(function: Callable[..., Any]) -> Kernel:
    """Make a `Kernel`."""
    return Kernel(function, no_cpython_wrapper=True)


def entry(function: Callable[..., Any]) -> Kernel:
    """Make a `Kernel` that Python calls."""
    return Kernel(function)


_preparing = threading.RLock()  # of one thread: Numba's own lock would let two compile different kernels in turn
_progress: Progress | None = None


def prepare(*kernels: Kernel) -> None:
    """Load or compile kernels, and the kernels that they call, so that later calls compile nothing."""
    global _progress
    if all(one.address for one in kernels):
        return
    with _preparing:
        wanted = dict.fromkeys(each for one in kernels for each in one.needed if not each.address)
        before, _progress = _progress, Progress(len(wanted))
        try:
            for each in wanted:
                if not each.address:  # a signal handler's call may have loaded it
                    each.load()
                _progress.done += 1
            _progress.end()
        finally:
            _progress = before


class Progress:
    """Says how far the kernels of a call are, from the first one that has to be compiled.

    At the start, and then every `SECONDS`, a warning, which Python prints where no logging is set up.
    """

    SECONDS = 3.0

    def __init__(self, total: int) -> None:
        self.total, self.done, self.compiled = total, 0, 0
        self._began = self._said = time.perf_counter()

    def compiling(self, name: str) -> None:
        """Note that the kernel of that name is compiled next."""
        now = time.perf_counter()
        if not self.compiled or now - self._said >= self.SECONDS:
            after = f" after {now - self._began:.1f} s" if self.compiled else ""
            text = "compiling the CPU kernels, once per machine and version: %d of %d are ready%s; next is %s"
            _log.warning(text, self.done, self.total, after, name)
            self._said = now
        self.compiled += 1

    def end(self) -> None:
        """Note that all are ready."""
        if self.compiled:
            _log.info("compiled %d CPU kernels in %.1f s", self.compiled, time.perf_counter() - self._began)


@functools.cache
def source_digest() -> str:
    """Digest of all sources that are compiled into a kernel."""
    files = [
        *sorted(Path(__file__).parent.glob("*.py")),
        *(Path(str(m.__file__)) for m in (dtypes, guess, keys, logits, policy, stats)),
    ]
    return _digest(*(file.read_bytes() for file in files))


def cached_jit(function: _F, **options: Any) -> Any:
    """Compile without the GIL when first called, and keep the machine code of each signature on disk.

    The cache key covers the function's bytecode, the values that it closes over, and all sources.
    """
    dispatcher = numba.njit(**OPTIONS | options)(function)
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
    return dispatcher


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
            "sources": source_digest(),
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
            (_progress or Progress(1)).compiling(self._name)
            self._pending.began = time.perf_counter()
        return found

    def save_overload(self, signature: Any, result: Any) -> None:
        """Store the compiled code."""
        if result.lifted or result.library.has_dynamic_globals:  # addresses of this process are compiled in
            return
        try:
            took = time.perf_counter() - self._pending.began
            code = Code(_dumps(_reduce(result)), f"compiled in {took:.2f} s")
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
