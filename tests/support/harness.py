"""Calls one backend with host arrays, whatever device it runs on, so that one test serves all of them."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from flat_calls import ask
from ksieve.backends.cpu import runner as cpu
from ksieve.planning import length_bins

HOST_BACKENDS = ("reference", "cpu")
BACKENDS = (*HOST_BACKENDS, pytest.param("cuda", marks=pytest.mark.gpu))
"""Parameter list for tests that hold on every backend."""


def to_cuda(array, offset=0, device="cuda"):
    """Copy a host matrix or vector to a device in the same layout, `offset` elements past an aligned address."""
    torch = pytest.importorskip("torch")
    if array is None:
        return None
    if array.ndim == 2 and len(array) > 1 and array.strides[0] == 0:
        return to_cuda(array[:1], offset, device).expand(array.shape)
    flat = array.view(np.int16) if array.dtype in (np.uint16, np.float16) else array
    step = tuple(s // array.itemsize for s in array.strides)
    held = torch.from_numpy(np.ascontiguousarray(flat)).to(device).view(array.shape)  # of a scalar too
    if array.ndim == 2 and array.size:
        span = offset + (array.shape[0] - 1) * step[0] + array.shape[1]
        buffer = torch.full((span,), 0x6000, dtype=held.dtype, device=device)
        held = buffer.as_strided(array.shape, (max(step[0], array.shape[1]), 1), offset).copy_(held)
    names = {np.dtype(np.uint16): torch.bfloat16, np.dtype(np.float16): torch.float16}
    return held.view(names[array.dtype]) if array.dtype in names else held


def to_host(tensor):
    """Copy a tensor back; bfloat16 comes as uint16 bits."""
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).cpu().numpy().view(np.uint16)
    return tensor.cpu().numpy()


def topk_on(backend, scores, lengths, k=None, *, out=None, num_rows=None, offset=0, **options):
    """Call `ksieve.topk` on `backend`; arrays of the result, or of the tuple that it is, come as host arrays."""
    if backend != "cuda":
        return ask(scores, lengths, k, backend=backend, out=out, num_rows=num_rows, **options)
    given = {"out": out, "num_rows": num_rows, **options}
    arrays = {name: to_cuda(value) for name, value in given.items() if isinstance(value, np.ndarray)}
    slots = to_cuda(k) if isinstance(k, np.ndarray) else k
    result = ask(to_cuda(scores, offset), to_cuda(lengths), slots, **{**given, **arrays})
    for name in ("out", "values", "raw"):
        if name in arrays:
            given[name][...] = to_host(arrays[name])
    if isinstance(result, tuple):
        return tuple(part if isinstance(part, ksieve.Stats) else to_host(part) for part in result)
    return to_host(result)


def model_arguments(plan):
    """What `reference.select` has to know of a plan for its statistics."""
    if plan.family == "cpu":
        return cpu.model_arguments(plan, plan.problem.width)
    studied = length_bins.stats_plan(plan)
    return {
        "policy": plan.policy,
        "capacity": studied.capacity,
        "resident_width": studied.resident_width,
        "splits": studied.splits,
    }


def serve_on(backend, scores, k, call, **more):
    """Call `ksieve.topk` with the arguments of a call as `oracle.assert_served` reads it; return the parts by name.

    `call` may hold ``ks``, an array k with maximum `k`, and ``live``, the rows that are live.
    """
    arguments = {name: value for name, value in call.items() if name not in ("ks", "live", "lengths")}
    if call.get("ks") is not None:
        arguments["max_k"] = k
    if call.get("live") is not None:
        arguments["num_rows"] = np.array([call["live"]], np.int32)
    slots = k if call.get("ks") is None else call["ks"]
    result = topk_on(backend, scores, call.get("lengths"), slots, **arguments, **more)
    names = ["indices"]
    names += ["values"] if call.get("values") is not None and call["values"] is not False else []
    names += ["raw"] if call.get("raw") is not None and call["raw"] is not False else []
    names += ["stats"] if more.get("stats") else []
    return dict(zip(names, result if isinstance(result, tuple) else (result,), strict=True))


SAMPLERS = 256
"""Threads that sample a row where CTAs share a multiprocessor and a thread has `ROOMY` registers beside its steps."""

ROOMY = 24


def samplers(plan):
    """Threads of a CTA that sample what it holds: not all where CTAs share a multiprocessor (descriptor.cuh)."""
    registers = 65_536 // (plan.threads * plan.ctas_per_sm) // 8 * 8
    few = registers - plan.resident_width // plan.threads // 2 >= ROOMY and plan.ctas_per_sm > 1 and plan.splits == 1
    return min(plan.threads, SAMPLERS) if few else plan.threads


def sampled_at(threads, scores, ids):
    """Which of the `scores` of a part its sampling threads take (resident/select.cuh), as float32: (rows, threads)."""
    alike, stages = 4, np.uint32(scores // (4 * threads))
    others = threads // 32 // alike
    thread = np.arange(threads, dtype=np.uint32)
    warp = thread // 32
    part = thread % 32 * others + warp % others
    with np.errstate(over="ignore"):
        number = np.asarray(ids, np.uint32)[:, None] * np.uint32(threads // alike) + part
        draw = number * np.uint32(0x9E3779B1)
    place = part * stages + ((draw >> np.uint32(16)) * stages >> np.uint32(16))
    vector = place * alike + (warp // others + thread) % alike
    return (vector * 4 + (draw >> np.uint32(13)) % 4).astype(np.int64)
