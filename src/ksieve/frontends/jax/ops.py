"""`ksieve.topk` inside JAX programs: ``jax.jit``, ``jax.vmap``, ``jax.grad`` and the other transformations.

Import this module to register the custom call ``ksieve_topk`` for CPU and CUDA; `ksieve.topk` imports it when an
argument is traced. ``import ksieve`` does not import JAX.

A traced call is checked like any other, on stand-ins that have the shapes and dtypes of its arrays, and becomes one
custom call. XLA calls its handler (`ksieve.frontends.jax.ffi`) with the arrays' memory, and the handler calls
`ksieve.dispatch.select`: on the CPU with NumPy views; on CUDA with device arrays that name XLA's stream. Kernels are
enqueued there, and the host does not wait.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ksieve import dispatch
from ksieve.core import call as calls
from ksieve.core import problem
from ksieve.core.arrays import TAKES, check_jax_int64
from ksieve.core.errors import ArgumentError, BackendError, kind_of, shown
from ksieve.core.options import Options
from ksieve.core.selection import Selection
from ksieve.core.table import TABLE, names
from ksieve.frontends.jax.ffi import Buffer, Frame, Handler
from ksieve.planning import choose as planner
from ksieve.planning.plan import Plan
from ksieve.planning.plan_text import decode_plan, encode_plan

TARGET = "ksieve_topk"
"""Name of the custom call."""

OLDEST = (0, 8, 3)
"""The oldest JAX with the FFI of `ksieve.frontends.jax.ffi`."""

_INPUTS = names(lambda option: option.kind == "input" and option.jax and option.name != "lengths")
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


def traced(
    scores: Any,
    lengths: Any,
    k: Any,
    plan: Plan | None,
    out: Any,
    workspace: Any,
    num_rows: Any,
    given: Mapping[str, Any],
    stats: Any,
) -> Selection[Any]:
    """Run a call in a traced program, as one custom call.

    Raises `ArgumentError` as `ksieve.topk` does, and for arguments that a traced program cannot represent.
    """
    if stats is not False:
        raise ArgumentError("stats", shown(stats), "False while JAX traces: nothing is read back")
    for option in TABLE:
        value = given.get(option.name)
        array = option.kind in ("input", "output") and value is not None and value is not False
        if not option.jax and (array or (isinstance(value, int) and value != option.neutral)):
            raise ArgumentError(option.name, shown(value), "nothing while JAX traces: only an eager call takes it")
    if isinstance(plan, Plan) and plan.problem.options.entries:
        got = "a plan with blocks"
        raise ArgumentError("plan", got, "one without while JAX traces: eager calls have them")
    outputs = {name: given.get(name, False) for name in ("values", "raw")}
    for name, array in {"out": out, "workspace": workspace, **outputs}.items():
        if array is not None and not isinstance(array, bool):
            raise ArgumentError(name, kind_of(array), _NEW)
    dispatch.check_plan_kind(plan)
    live = problem.live_rows(num_rows, problem.MAX_SIZE)
    if live is not None:
        num_rows = np.array([live], np.int32)
    inputs = {"scores": scores, "lengths": lengths, "k": k if _per_row(k) else None, "num_rows": num_rows}
    inputs |= {name: given.get(name) for name in _INPUTS}
    stand_ins = {name: _stand_in(array, name) for name, array in inputs.items()}
    call = calls.parse(
        stand_ins["scores"],
        stand_ins["lengths"],
        k if stand_ins["k"] is None else stand_ins["k"],
        num_rows=stand_ins["num_rows"],
        given=dict(given) | {name: stand_ins[name] for name in _INPUTS if stand_ins[name] is not None},
        planned=plan.problem if plan is not None else None,
    )
    asked = call.problem
    if len(call.leading) != 1:
        takes = "a matrix while JAX traces: scores.reshape(-1, scores.shape[-1]), or jax.vmap"
        raise ArgumentError("scores", f"shape {(*call.leading, asked.width)}", takes)
    if not asked.k:
        raise ArgumentError("k", 0, f"an int from 1 to {problem.MAX_K} while JAX traces")
    if plan is not None:
        planner.check_covers(plan, replace(asked, device=plan.problem.device))
    if asked.options.index_dtype == "int64":
        check_jax_int64()
    names_given = tuple(name for name, array in inputs.items() if array is not None)
    program = Program(names_given, asked.k, asked.options, None if plan is None else encode_plan(plan))
    answer = _select(program, tuple(jnp.asarray(inputs[name]) for name in names_given))
    found = dict(zip(_outputs_of(asked.options), answer, strict=True))
    return Selection(found["out"], found.get("values"), found.get("raw"))


def _outputs_of(options: Options) -> tuple[str, ...]:
    """Names of the results of a custom call, in their order."""
    return ("out", *(name for name in ("values", "raw") if getattr(options, name)))


def _per_row(value: Any) -> bool:
    """Whether k is an array with one k for each row; a traced int is none."""
    return isinstance(value, (jax.Array, np.ndarray)) and value.ndim > 0


def _stand_in(array: Any, name: str) -> Any:
    if array is None:
        return None
    if isinstance(array, jax.Array):  # traced arrays too
        facts = Buffer(0, tuple(array.shape), str(array.dtype))
    elif isinstance(array, np.ndarray):
        info = problem.inspect(array, name)
        facts = Buffer(0, info.shape, info.dtype)
    else:
        remedy = f": jax.numpy.asarray({name}) first" if isinstance(array, (list, tuple)) else ""
        raise ArgumentError(name, kind_of(array), f"a JAX or NumPy array while JAX traces{remedy}")
    try:
        return _StandIn(facts, 0, 0)
    except TypeError:
        raise ArgumentError(name, f"dtype {facts.dtype}", TAKES) from None


def _call(program: Program, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return indices, and values and raw indices where the options say so."""
    scores, options = arrays[0], program.options
    shape, index = (scores.shape[0], program.k), np.dtype(options.index_dtype)
    results = [jax.ShapeDtypeStruct(shape, index)]
    results += [jax.ShapeDtypeStruct(shape, scores.dtype)] if options.values else []
    results += [jax.ShapeDtypeStruct(shape, index)] if options.raw else []
    # Leading dimensions of vmap become rows in the handler; every array has them then.
    call = jax.ffi.ffi_call(TARGET, results, vmap_method="broadcast_all")
    return tuple(call(*arrays, selection=program.text))


_select = jax.custom_jvp(_call, nondiff_argnums=(0,))


def _select_jvp(program: Program, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Derivative: values change as the scores at their positions do; positions do not change."""
    (arrays,), ((change, *_),) = primals, tangents
    options, asked = program.options, program
    differs = options.values and jnp.issubdtype(arrays[0].dtype, jnp.floating)
    if differs and options.transform != "none" and not options.raw:
        # Only raw indices are positions. A plan is bound to its options, and changes no answer.
        asked = replace(program, options=replace(options, raw=True), plan=None)
    every = _select(asked, arrays)
    answer = every[: 1 + options.values + options.raw]
    changes = [np.zeros(one.shape, jax.dtypes.float0) for one in answer]
    if differs:
        slots = every[2] if asked.options.raw else every[0]
        used, positions = slots >= 0, slots
        if options.index_base == "start" and "starts" in program.arrays:
            starts = arrays[program.arrays.index("starts")]
            positions = slots + jnp.clip(starts, 0, arrays[0].shape[1])[:, None]
        taken = jnp.take_along_axis(change, jnp.where(used, positions, 0), axis=1)
        changes[1] = jnp.where(used, taken, jnp.zeros_like(taken))
    return answer, tuple(changes)


_select.defjvp(_select_jvp)


def _run(frame: Frame, wrap: Callable[[Buffer], Any]) -> None:
    """Execute a custom call; `wrap` makes an array of a buffer."""
    program = program_of(frame.text)
    plan = decode_plan(program.plan) if program.plan is not None else None
    options = program.options
    outputs = _outputs_of(options)
    batch = len(frame.arguments[0].shape) - 2
    # Rows of a batch are rows of one call, unless each part has its own live rows, table or plan.
    apart = batch and (plan is not None or "num_rows" in program.arrays or "page_table" in program.arrays)
    for buffers in _parts([*frame.arguments, *frame.results], batch, bool(apart)):
        given = dict(zip((*program.arrays, *outputs), map(wrap, buffers), strict=True))
        scores, lengths, ks, rows = (given.pop(name, None) for name in ("scores", "lengths", "k", "num_rows"))
        out = given.pop("out")
        slots: Any = program.k
        if ks is not None:
            slots, given["max_k"] = ks, program.k
        dispatch.select(scores, lengths, slots, plan, out, None, rows, given, options=options)


def _parts(buffers: list[Buffer], batch: int, apart: bool) -> Iterator[tuple[Buffer, ...]]:
    if not batch:
        yield tuple(buffers)
    elif apart:
        yield from zip(*(buffer.pieces(batch) for buffer in buffers), strict=True)
    else:
        yield tuple(buffer.merged(batch) for buffer in buffers)


def run_cpu(frame: Frame) -> None:
    """Execute a custom call on the host."""
    _run(frame, host_array)


def run_cuda(frame: Frame) -> None:
    """Enqueue a custom call on XLA's stream."""
    stream, index = frame.stream(), frame.device()
    _run(frame, lambda buffer: DeviceArray(buffer, index, stream))


def host_array(buffer: Buffer) -> np.ndarray[Any, Any]:
    """View a buffer of the host as an array; bfloat16 as bits."""
    dtype = np.dtype("uint16" if buffer.dtype == "bfloat16" else buffer.dtype)
    size = int(np.prod(buffer.shape, dtype=np.int64)) * dtype.itemsize
    if not size:
        return np.empty(buffer.shape, dtype)  # its address may be null
    memory: Any = (ctypes.c_char * size).from_address(buffer.address)
    return np.ndarray(buffer.shape, dtype, memory)


def _register() -> None:
    """Register the custom call, but not with a JAX that would refuse it: that one may then not start its backend."""
    remedy = f"install jax>={'.'.join(map(str, OLDEST))}, or call ksieve.topk outside jax.jit"
    if jax.__version_info__ < OLDEST:
        raise BackendError(f"JAX {jax.__version__} cannot call ksieve inside a program: {remedy}")
    for platform, run in (("cpu", run_cpu), ("CUDA", run_cuda)):
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(Handler(run).address), platform=platform)


_register()
