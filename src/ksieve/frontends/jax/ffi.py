"""XLA's foreign function interface (FFI) in Python: what a custom call gets, and handlers of custom calls.

The structures come from ``xla/ffi/api/c_api.h``, which JAX ships (``jax.ffi.include_dir()``). Within a major version
XLA only appends to them.

XLA calls a handler with a C function pointer and reads the error that it returns. A ctypes callback alone is no such
function. Python delivers a signal, such as an interrupt, before the callback's first instruction, where no ``except``
clause can catch it. ctypes then returns an undefined pointer, which XLA would follow. A few instructions, made by
llvmlite, therefore stand between XLA and Python: without a mark that Python reached its end, they return an error.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Iterator
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any, ClassVar, NamedTuple

from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, BackendError

MAJOR = 0
"""Major version of the structures below."""

_INVALID_ARGUMENT, _INTERNAL, _CANCELLED = 3, 13, 1
_METADATA = 1
_INTERRUPTED = b"the call of ksieve was interrupted, or the interpreter is exiting"

DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    12: "float64", **{dtype.xla: name for name, dtype in SCORE_DTYPES.items()},
}  # fmt: skip
"""Names of XLA's dtypes, by number, as far as an array of a selection, or a mistaken one, can have them."""


class _Extended(Structure):
    """How most structures begin."""

    _fields_: ClassVar[Any] = (("struct_size", c_size_t), ("extension", c_void_p))


class _ApiVersion(_Extended):
    _fields_ = (("major", c_int), ("minor", c_int))


class _ErrorCreate(_Extended):
    _fields_ = (("message", c_char_p), ("code", c_int))


class _StreamGet(_Extended):
    _fields_ = (("context", c_void_p), ("stream", c_void_p))


class _OrdinalGet(_Extended):
    _fields_ = (("context", c_void_p), ("ordinal", c_int32))


# All functions of the table take the address of a structure, and return the address of an error or None.
_FUNCTION = CFUNCTYPE(c_void_p, c_void_p)


class _Api(_Extended):
    _fields_ = (
        ("version", _ApiVersion),
        ("internal", c_void_p),
        ("error_create", _FUNCTION),
        ("error_details", c_void_p),
        ("error_destroy", c_void_p),
        ("handler_register", c_void_p),
        ("stream_get", _FUNCTION),
        ("unused", c_void_p * 12),
        ("ordinal_get", _FUNCTION),
    )


class _Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("version", _ApiVersion), ("traits", c_uint32), ("state_type", c_int64))


class _Extension(Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", c_void_p))


class _Buffer(_Extended):
    _fields_ = (("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))


class _Buffers(_Extended):
    _fields_ = (("size", c_int64), ("types", c_void_p), ("items", POINTER(c_void_p)))


class _Attributes(_Extended):
    _fields_ = (("size", c_int64), ("types", c_void_p), ("names", c_void_p), ("items", POINTER(c_void_p)))


class _Span(Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))


class _CallFrame(_Extended):
    _fields_ = (
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
    )


class _Answer(Structure):
    """What the native part of a handler passes to Python, and gets back."""

    _fields_ = (("frame", c_void_p), ("error", c_void_p), ("done", c_int64))


class Buffer(NamedTuple):
    """A dense array of XLA: its address on the host or on a device, shape and dtype."""

    address: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 1 if self.dtype == "bool" else int(self.dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8

    def merged(self, batch: int) -> Buffer:
        """Join the first `batch` dimensions to the next one."""
        return self._replace(shape=(math.prod(self.shape[: batch + 1]), *self.shape[batch + 1 :]))

    def pieces(self, batch: int) -> Iterator[Buffer]:
        """Yield the arrays along the first `batch` dimensions."""
        rest = self.shape[batch:]
        size = math.prod(rest) * self.itemsize
        for number in range(math.prod(self.shape[:batch])):
            yield Buffer(self.address + number * size, rest, self.dtype)


class XlaError(Exception):
    """An error object of XLA; the handler returns it to XLA, which owns it then."""

    def __init__(self, address: int) -> None:
        self.address = address
        super().__init__("an error of XLA")


class Frame:
    """One execution of a custom call whose only attribute is a text."""

    __slots__ = ("_api", "_context", "arguments", "results", "text")

    def __init__(self, raw: _CallFrame) -> None:
        self._api = _Api.from_address(raw.api)
        self._context = raw.context
        self.arguments = _buffers(raw.arguments)
        self.results = _buffers(raw.results)
        if raw.attributes.size != 1:
            raise BackendError(f"XLA passes {raw.attributes.size} attributes of a call that has one: report this")
        span = _Span.from_address(raw.attributes.items[0])
        self.text = ctypes.string_at(span.data, span.size)

    def stream(self) -> int:
        """Handle of the CUDA stream on which XLA wants the call's work."""
        asked = _StreamGet(ctypes.sizeof(_StreamGet), None, self._context, None)
        self._get(self._api.stream_get, asked)
        return asked.stream or 0

    def device(self) -> int:
        """Ordinal of the device that runs the call."""
        asked = _OrdinalGet(ctypes.sizeof(_OrdinalGet), None, self._context, -1)
        self._get(self._api.ordinal_get, asked)
        return int(asked.ordinal)

    @staticmethod
    def _get(function: Any, asked: ctypes.Structure) -> None:
        error = function(ctypes.addressof(asked))
        if error:
            raise XlaError(error)


def _buffers(raw: _Buffers) -> list[Buffer]:
    found = []
    for address in raw.items[: raw.size]:
        buffer = _Buffer.from_address(address)
        shape = tuple(buffer.dims[: buffer.rank]) if buffer.rank else ()
        found.append(Buffer(buffer.data or 0, shape, DTYPES.get(buffer.dtype, f"dtype {buffer.dtype}")))
    return found


def serve(address: int, run: Callable[[Frame], None]) -> None:
    """Answer one call of XLA: a query of the handler's version, or an execution, which `run` does.

    `address`: of an `_Answer`. Its error is stored, and then the mark that the call was served. `run`: its exceptions
    become errors of XLA.
    """
    answer = _Answer.from_address(address)
    try:
        raw = _CallFrame.from_address(answer.frame)
        if not _answered_metadata(raw):
            run(Frame(raw))
    except XlaError as error:
        answer.error = error.address
    except ArgumentError as error:
        answer.error = _error(answer.frame, str(error), _INVALID_ARGUMENT)
    except Exception as error:
        text = str(error) if isinstance(error, BackendError) else f"{type(error).__name__}: {error}"
        answer.error = _error(answer.frame, text, _INTERNAL)
    except BaseException as error:  # of a signal handler, as KeyboardInterrupt is
        answer.error = _error(answer.frame, f"the call of ksieve was interrupted ({type(error).__name__})", _CANCELLED)
    answer.done = 1


def _answered_metadata(raw: _CallFrame) -> bool:
    """Answer XLA's query of the version that a handler was made for, if this call is one."""
    at = raw.extension
    while at:
        extension = _Extension.from_address(at)
        if extension.type == _METADATA:
            api, metadata = _Api.from_address(raw.api), _Metadata.from_address(extension.metadata)
            version, known = api.version, ((raw, _CallFrame), (api, _Api), (raw.attributes, _Attributes))
            if version.major != MAJOR or any(found.struct_size < ctypes.sizeof(kind) for found, kind in known):
                raise BackendError(
                    f"JAX's FFI has version {version.major}.{version.minor}, and ksieve knows 0.2 and later 0.x: call "
                    "ksieve.topk outside jax.jit, or install another JAX"
                )
            # Later minor versions only append to the structures, so that every one of them is served.
            metadata.version.major, metadata.version.minor = version.major, version.minor
            return True
        at = extension.next
    return False


def _error(frame: int, message: str, code: int) -> int | None:
    """Make an error of XLA, which copies the message."""
    text = message.encode(errors="replace").replace(b"\0", b"?")
    asked = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, text, code)
    made: int | None = _Api.from_address(_CallFrame.from_address(frame).api).error_create(ctypes.addressof(asked))
    return made


class _Gate(ctypes.Structure):
    """Whether Python may still be called, and how many calls are in it."""

    _fields_ = (("closed", ctypes.c_int64), ("inside", ctypes.c_int64))


class Handler:
    """A function that XLA can call until the process ends.

    `address`: of the native function, ``XLA_FFI_Error* handler(XLA_FFI_CallFrame*)``.
    """

    def __init__(self, run: Callable[[Frame], None]) -> None:
        python = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: serve(address, run))
        gate, text = _Gate(), ctypes.create_string_buffer(_INTERRUPTED)
        callback = ctypes.cast(python, ctypes.c_void_p).value or 0
        engine, self.address = _compile(callback, ctypes.addressof(gate), ctypes.addressof(text))
        # XLA's threads may run a program while the interpreter exits. What they read is therefore never freed, and
        # they no longer enter Python, which would block or end them.
        for kept in (python, gate, text, engine):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        self._gate = gate
        atexit.register(self.close)

    def close(self) -> None:
        """Refuse further calls, and wait for calls that are in Python."""
        self._gate.closed = 1
        while self._gate.inside:
            time.sleep(0.001)


def _compile(python: int, gate: int, text: int) -> tuple[Any, int]:
    """Make the native part of a handler: the owner of its code, and its address.

    In C, with the addresses of the callback, of a `_Gate` and of a message as constants::

        XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
          struct { frame, error, done } answer = {frame, NULL, 0};
          atomic_add(&gate->inside, 1);
          if (!gate->closed) python(&answer);
          atomic_add(&gate->inside, -1);
          if (answer.done) return answer.error;
          XLA_FFI_Error_Create_Args asked = {sizeof asked, NULL, text, CANCELLED};
          return frame->api->XLA_FFI_Error_Create(&asked);
        }
    """
    from llvmlite import binding, ir

    word = ir.IntType(64)

    def number(value: int) -> Any:
        return ir.Constant(word, value)

    module = ir.Module("ksieve_xla_handler")
    function = ir.Function(module, ir.FunctionType(word, [word]), "ksieve_xla_handler")
    code = ir.IRBuilder(function.append_basic_block("entry"))

    def stored(*values: Any) -> Any:
        memory = code.alloca(ir.ArrayType(word, len(values)))
        for place, value in enumerate(values):
            code.store(value, code.gep(memory, [number(0), number(place)]))
        return code.ptrtoint(memory, word)

    def placed(address: Any, offset: int) -> Any:
        return code.inttoptr(code.add(address, number(offset)), word.as_pointer())

    def counted(step: int) -> None:
        code.atomic_rmw("add", placed(number(gate), _Gate.inside.offset), number(step), "seq_cst")

    def called(address: Any, result: Any, argument: Any) -> Any:
        pointer = code.inttoptr(address, ir.FunctionType(result, [word]).as_pointer())
        return code.call(pointer, [argument])

    def nonzero(value: Any) -> Any:
        return code.icmp_unsigned("!=", value, number(0))

    answer = stored(function.args[0], number(0), number(0))
    asked = stored(number(ctypes.sizeof(_ErrorCreate)), number(0), number(text), number(_CANCELLED))
    counted(1)
    closed = code.load_atomic(placed(number(gate), _Gate.closed.offset), "seq_cst", 8)
    with code.if_then(code.not_(nonzero(closed))):
        called(number(python), ir.VoidType(), answer)
    counted(-1)
    with code.if_then(nonzero(code.load(placed(answer, _Answer.done.offset)))):
        code.ret(code.load(placed(answer, _Answer.error.offset)))
    api = code.load(placed(function.args[0], _CallFrame.api.offset))
    code.ret(called(code.load(placed(api, _Api.error_create.offset)), word, asked))

    with contextlib.suppress(RuntimeError):  # of a new llvmlite, which needs no such call
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    return engine, engine.get_function_address(function.name)
