"""`ksieve.topk` inside JAX programs: ``jax.jit``, ``jax.vmap``, ``jax.grad`` and the other transformations.

Import this module to register the custom call ``ksieve_topk`` for CPU and CUDA; `ksieve.topk` imports it when an
argument is traced. ``import ksieve`` does not import JAX. `ksieve.logits.jax` has a custom call of its own.

A traced call is checked like any other, on stand-ins that have the shapes and dtypes of its arrays, and becomes one
custom call. XLA calls its handler (`ksieve.frontends.jax.ffi`) with the arrays' memory. The handler calls
`ksieve.dispatch.select`, on the CPU with NumPy views, on CUDA with device arrays that name XLA's stream. Kernels are
enqueued there, and the host does not wait.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ksieve import dispatch
from ksieve.core import call as calls
from ksieve.core import problem
from ksieve.core.arrays import TAKES, ArrayInfo, check_jax_int64, is_array
from ksieve.core.dtypes import held
from ksieve.core.errors import ArgumentError, BackendError, kind_of, shown
from ksieve.core.groups import register_pytrees
from ksieve.core.options import Options
from ksieve.core.selection import Selection
from ksieve.core.table import INPUTS, MAX_INT, OUTPUTS
from ksieve.frontends.jax.ffi import Buffer, Frame, Handler
from ksieve.planning import choose as planner
from ksieve.planning.plan_text import decode_plan, encode_plan

TARGET = "ksieve_topk"
"""Name of the custom call."""

OLDEST = (0, 8, 3)
"""The oldest JAX with the FFI of `ksieve.frontends.jax.ffi`."""

_NEW = "nothing while JAX traces: JAX arrays are immutable, and the result is a new one"


class DeviceArray:
    """Dense device memory at an address, as other libraries' arrays describe theirs."""

    __slots__ = ("__cuda_array_interface__", "_index", "dtype", "shape")

    def __init__(self, buffer: Buffer, index: int, stream: int) -> None:
        self.shape, self.dtype, self._index = buffer.shape, buffer.dtype, index
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": buffer.shape,
            "typestr": f"|V{jnp.dtype(buffer.dtype).itemsize}",  # the dtype's name says more
            "data": (buffer.address, False),
            "strides": None,
            "stream": stream,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._index

    def __getitem__(self, rows: Any) -> Any:
        raise BackendError(
            "a recording cannot copy scores in a JAX program on CUDA, which does not wait for them: call ksieve.topk "
            "outside jax.jit while recording"
        )


class _StandIn(DeviceArray):
    """A traced array while arguments are checked: its shape and dtype, without memory."""

    __slots__ = ()


_StandIn.__module__ = "jax"  # error messages then name JAX's functions as remedies


@dataclass(frozen=True, slots=True)
class Program:
    """What a custom call is to do, apart from its arrays.

    `arrays`: names of its arguments, in order. `k`: slots per row. `plan`: the text of a plan.
    """

    arrays: tuple[str, ...]
    k: int
    options: Options
    plan: str | None

    @property
    def text(self) -> str:
        """The program as text, which `program_of` reads."""
        return json.dumps(asdict(self))


@lru_cache(maxsize=4096)
def program_of(text: bytes) -> Program:
    """Read a program back."""
    fields = json.loads(text)
    fields["options"] = Options(**fields["options"])
    return Program(**fields | {"arrays": tuple(fields["arrays"])})


def traced(*passed: Any, stats: Any) -> Selection[Any]:
    """Run a call in a traced program, as one custom call.

    `passed`: arguments of `ksieve.dispatch.select`. Raises `ArgumentError` as `ksieve.topk` does, and for arguments
    that a traced program cannot represent.
    """
    scores, lengths, k, plan, out, workspace, num_rows, given = passed
    if stats is not False:
        raise ArgumentError("stats", shown(stats), "False while JAX traces: nothing is read back")
    outputs = {name: given[name] for name in OUTPUTS if not isinstance(given.get(name, False), bool)}
    for name, array in {"out": out, "workspace": workspace, **outputs}.items():
        if array is not None:
            raise ArgumentError(name, kind_of(array), _NEW)
    dispatch.check_plan_kind(plan)
    live = problem.live_rows(num_rows, problem.MAX_SIZE)
    if live is not None:
        num_rows = np.array([live], np.int32)
    ks = k if is_array(k, least=0 if getattr(scores, "ndim", 2) == 1 else 1) else None
    inputs = {"scores": scores, "k": ks, "num_rows": num_rows, **{name: given.get(name) for name in INPUTS}}
    inputs["lengths"] = lengths
    inputs = {name: array for name, array in inputs.items() if array is not None}
    stand_ins = {name: _stand_in(array, name) for name, array in inputs.items()}
    call = calls.parse(
        stand_ins.pop("scores", None),
        stand_ins.pop("lengths", None),
        stand_ins.pop("k", k),
        num_rows=stand_ins.pop("num_rows", None),
        given={**given, **stand_ins},
        planned=plan.problem if plan is not None else None,
    )
    asked = call.problem
    if plan is not None:
        planner.check_covers(plan, replace(asked, device=plan.problem.device))
    if asked.options.index_dtype == "int64":
        check_jax_int64()
    program = Program(tuple(inputs), asked.k, asked.options, None if plan is None else encode_plan(plan))
    # Of scores of any rank, the custom call gets the matrix of their rows; other arrays as they are described.
    shapes = [call.described["lengths" if name == "ends" else name].shape for name in inputs]
    shapes[0] = shapes[0][1:] if "indptr" in inputs else shapes[0]
    answer = _select(program, tuple(jnp.asarray(x).reshape(n) for x, n in zip(inputs.values(), shapes, strict=True)))
    answer = [array.reshape((*call.leading, *array.shape[1:])) for array in answer]
    return Selection(*map(dict(zip(_outputs_of(asked.options), answer, strict=True)).get, calls.OUTPUTS))


def _outputs_of(options: Options) -> tuple[str, ...]:
    """Names of the results of a custom call, in their order."""
    return ("out", *(name for name in OUTPUTS if getattr(options, name)))


def _stand_in(array: Any, name: str) -> Any:
    if isinstance(array, jax.Array):  # traced arrays too
        facts = Buffer(0, tuple(array.shape), str(array.dtype))
    elif isinstance(array, np.ndarray):
        info = problem.inspect(array, name)
        if info.dtype == "int64":
            check_jax_int64(name)
        facts = Buffer(0, info.shape, info.dtype)
    else:
        remedy = f": jax.numpy.asarray({name}) first" if isinstance(array, (list, tuple)) else ""
        raise ArgumentError(name, kind_of(array), f"a JAX or NumPy array beside JAX arrays{remedy}")
    try:
        return _StandIn(facts, 0, 0)
    except TypeError:
        raise ArgumentError(name, f"dtype {facts.dtype}", TAKES) from None


def described(array: Any, name: str) -> ArrayInfo:
    """Facts of an array that JAX traces, or will: dense, and on no device yet."""
    return problem.inspect(_stand_in(array, name), name)


def _call(program: Program, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return indices, and the other outputs where the options say so."""
    scores, options = arrays[0], program.options
    rows, columns = scores.shape[0], options.columns(program.k)
    if "indptr" in program.arrays:
        rows = arrays[program.arrays.index("indptr")].shape[0] - 1
    results = []
    for name in _outputs_of(options):
        dtype = {"values": scores.dtype, "counts": np.int32}.get(name, np.dtype(options.index_dtype))
        results.append(jax.ShapeDtypeStruct((rows,) if name == "counts" else (rows, columns), dtype))
    # Leading dimensions of vmap become rows in the handler; every array has them then.
    call = jax.ffi.ffi_call(TARGET, results, vmap_method="broadcast_all")
    return tuple(call(*arrays, selection=program.text))


_select = jax.custom_jvp(_call, nondiff_argnums=(0,))


def _select_jvp(program: Program, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Derivative: values change as the scores that they are; positions do not change."""
    (arrays,), ((change, *_),) = primals, tangents
    asked, options = program, program.options
    differs = options.values and jnp.issubdtype(arrays[0].dtype, jnp.floating)
    # Only raw indices are positions. A plan is bound to its options, and changes no answer.
    further = replace(options, raw=options.raw or options.transform != "none", filled=True)
    if differs and further != options:
        asked = replace(program, options=further, plan=None)
    found = dict(zip(_outputs_of(asked.options), _select(asked, arrays), strict=True))
    answer = {name: found[name] for name in _outputs_of(options)}
    changes = {name: np.zeros(one.shape, jax.dtypes.float0) for name, one in answer.items()}
    if differs:
        given = dict(zip(program.arrays, arrays, strict=True))
        used, columns = _columns(options, given, found.get("raw", found["out"]), found["values"])
        columns = jnp.where(used, columns, 0)
        taken = change[columns] if "indptr" in given else jnp.take_along_axis(change, columns, axis=1)
        changes["values"] = jnp.where(used, taken, jnp.zeros_like(taken))
    return tuple(answer.values()), tuple(changes.values())


def _columns(options: Options, given: Mapping[str, Any], raw: Any, values: Any) -> tuple[Any, Any]:
    """Whether the value of a slot is a score, by raw indices, and its column: of equal ones the first in the window."""
    scores, size, used = given["scores"], options.block_size, raw >= 0
    if "indptr" in given:
        return used, raw + jnp.clip(given["indptr"][:-1, None], 0, len(scores))
    rows, width = scores.shape
    begin = jnp.clip(given.get("starts", jnp.zeros(rows, np.int32)), 0, width)[:, None]
    shift = begin if options.index_base == "start" else 0
    entry = jnp.where(used, raw, 0) // options.expand
    if options.tail:  # the last slots, if the entry of the last one is not whole
        last = jnp.take_along_axis(raw, jnp.maximum(used.sum(1, keepdims=True) - 1, 0), axis=1)
        used &= ((last + 1) % options.expand == 0) | (entry != last // options.expand)
    if size > 1:
        bits = f"uint{8 * scores.dtype.itemsize}"
        column = (entry * size + shift)[..., None] + jnp.arange(size)
        score = jnp.take_along_axis(scores.view(bits)[:, None], column, axis=2)
        same = (column >= begin[..., None]) & (score == values.view(bits)[..., None])
        return used, column[..., 0] + same.argmax(2)
    if not options.positions:
        return used, entry + shift
    places = given.get("positions")
    if places is None:
        table = given["block_table"][..., None]
        each = width // max(table.shape[1], 1)
        held = (table >= 0) & (table <= MAX_INT // max(each, 1))
        places = jnp.where(held, table * each + jnp.arange(each), -1).reshape(rows, width)
    places = jnp.where(jnp.arange(width) >= begin, places, -1)
    order = jnp.argsort(places)
    place = jax.vmap(jnp.searchsorted)(jnp.take_along_axis(places, order, axis=1), entry)
    return used, jnp.take_along_axis(order, place, axis=1)


_select.defjvp(_select_jvp)


def _run(frame: Frame, wrap: Callable[[Buffer], Any]) -> None:
    """Execute a custom call; `wrap` makes an array of a buffer."""
    program = program_of(frame.text)
    plan = decode_plan(program.plan) if program.plan is not None else None
    options = program.options
    names = (*program.arrays, *_outputs_of(options))
    every, batch = [*frame.arguments, *frame.results], len(frame.arguments[0].shape) - (1 if "indptr" in names else 2)
    # Rows of a batch are rows of one call, unless each part has its own live rows, table, segments or plan.
    if plan is not None or not {"num_rows", "page_table", "indptr"}.isdisjoint(names):
        parts = list(zip(*(buffer.pieces(batch) for buffer in every), strict=True))
    else:
        parts = [tuple(buffer.merged(batch) for buffer in every)]
    for buffers in parts:
        given = dict(zip(names, map(wrap, buffers), strict=True))
        scores, lengths, ks, rows = (given.pop(name, None) for name in ("scores", "lengths", "k", "num_rows"))
        out = given.pop("out")
        slots: Any = program.k
        if ks is not None:
            slots, given["max_k"] = ks, program.k
        dispatch.select(scores, lengths, slots, plan, out, None, rows, given, options=options)


def run_cuda(frame: Frame) -> None:
    """Enqueue a custom call on XLA's stream."""
    stream, index = frame.stream(), frame.device()
    _run(frame, lambda buffer: DeviceArray(buffer, index, stream))


def host_array(buffer: Buffer) -> np.ndarray[Any, Any]:
    """View a buffer of the host as an array; bfloat16 as bits."""
    dtype = held(buffer.dtype)
    size = int(np.prod(buffer.shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(buffer.shape, dtype)  # its address may be null
    memory: Any = (ctypes.c_char * size).from_address(buffer.address)
    return np.ndarray(buffer.shape, dtype, memory)


def register(target: str, cpu: Callable[[Frame], None], cuda: Callable[[Frame], None]) -> None:
    """Register a custom call, but not with a JAX that would refuse it: that one may then not start its backend."""
    remedy = f"install jax>={'.'.join(map(str, OLDEST))}, or call ksieve outside jax.jit, on NumPy arrays"
    if jax.__version_info__ < OLDEST:
        raise BackendError(f"JAX {jax.__version__} cannot call ksieve inside a program: {remedy}")
    for platform, run in (("cpu", cpu), ("CUDA", cuda)):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(Handler(run).address), platform=platform)


register(TARGET, partial(_run, wrap=host_array), run_cuda)
register_pytrees("jax")
