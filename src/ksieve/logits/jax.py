"""`ksieve.logits` of JAX arrays: a call becomes one custom call of XLA, eagerly and in programs, on the CPU."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ksieve.api import traced_by_jax
from ksieve.core.arrays import inspect, library_of
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.frontends.jax.ffi import Frame
from ksieve.frontends.jax.ops import host_array, register
from ksieve.logits import cpu
from ksieve.logits.problem import Kept, Request, Sample, Statistics

TARGET = "ksieve_logits"
"""Name of the custom call."""

_KINDS: dict[str, Any] = {"statistics": Statistics, "kept": Kept, "sample": Sample}


def called(request: Request, function: str, made: Any) -> Any:
    """Return the results of a function; `made` has their shapes and dtypes."""
    logits = request.arrays["logits"]
    if library_of(logits) == "jax" and not traced_by_jax(logits) and any(d.platform != "cpu" for d in logits.devices()):
        _refuse()
    shapes = {name: shape for name, shape in made._asdict().items() if shape is not None}
    rest = {field.name: getattr(request, field.name) for field in fields(request)} | {"arrays": 0, "described": 0}
    rest["numbers"] = {name: float(number) for name, number in request.numbers.items()}
    text = json.dumps([function, [*request.arrays], [*shapes], rest])
    found = _compiled(text, tuple(shapes.values()), tuple(map(jnp.asarray, request.arrays.values())))
    return made._replace(**dict(zip(shapes, found, strict=True)))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _call(text: str, shapes: tuple[Any, ...], arrays: tuple[Any, ...]) -> Any:
    return jax.ffi.ffi_call(TARGET, shapes, vmap_method="broadcast_all")(*arrays, selection=text)


def _no_gradient(*_: Any) -> Any:
    takes = "arrays without a gradient: jax.lax.stop_gradient(logits), and of other arguments"
    raise ArgumentError("logits", "a gradient of JAX", takes)


_call.defjvp(_no_gradient)
_compiled = jax.jit(_call, static_argnums=(0, 1))  # which traces eager calls of a shape once


def _run(frame: Frame) -> None:
    """Execute a custom call: leading dimensions of vmap become rows."""
    function, names, made, rest = json.loads(frame.text)
    batch = len(frame.arguments[0].shape) - 2
    given, results = (
        [host_array(buffer.merged(batch)) for buffer in buffers] for buffers in (frame.arguments, frame.results)
    )
    arrays, kind = dict(zip(names, given, strict=True)), _KINDS[function]
    rest |= {"arrays": arrays, "described": {name: inspect(array, name) for name, array in arrays.items()}}
    out = kind(**dict.fromkeys(kind._fields) | dict(zip(made, results, strict=True)))
    getattr(cpu, function)(Request(**rest), out)


def _refuse(_: Any = None) -> None:
    """Refuse a call on another device than the CPU."""
    raise BackendError(
        "ksieve.logits takes JAX arrays on the CPU alone: jax.device_put(logits, jax.devices('cpu')[0]) is one, and "
        "torch.from_dlpack(logits) a tensor on CUDA"
    )


register(TARGET, _run, _refuse)
