"""The fast path of repeated calls: a call with PyTorch tensors that has run, again with other addresses.

Nothing is checked twice. PyTorch's own guards compare the tensors with those that the general path
(`ksieve.core.call.parse`) has accepted: type, device, dtype, shape and strides. The launch is the general path's, with
the new addresses. Any other call takes the general path, which reports its fault, or gives it a fast path too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from ksieve.backends.cuda import arrays
from ksieve.backends.cuda.call import implicit_workspaces, workspace_memory
from ksieve.backends.cuda.packing import launched
from ksieve.backends.cuda.runtime import launch
from ksieve.backends.cuda.runtime.workspace import ALIGNMENT, Workspace
from ksieve.core.call import OUTPUTS, Call
from ksieve.core.selection import Selection
from ksieve.planning.plan import Plan

FastPath = Callable[[tuple[Any, ...]], Any]
"""Called with the arguments of a call; returns its answer, or None without any effect."""

_NO_ARRAYS = (int, str, bool, type(None), Workspace)


def make_fast_path(plan: Plan, call: Call, names: Sequence[str], given: Sequence[Any], result: Any) -> FastPath | None:
    """Make the fast path of calls like one that has run; it refers to the plan. None if there is none.

    It is a closure, because reading many names is fastest from cells.

    `names`, `given`: names and values of the call's arguments. All that are no arrays are equal in the calls of the
    fast path. `result` (Selection): what the call has returned.
    """
    import torch

    at = {name: i for i, name in enumerate(names) if type(given[i]) not in _NO_ARRAYS}
    tensors = [given[i] for i in at.values()]
    if any(type(tensor) is not torch.Tensor for tensor in tensors) or type(given[names.index("num_rows")]) is int:
        return None
    if (same := _guard(tensors)) is None:
        return None
    results = {name: made for name, made in zip(OUTPUTS, result, strict=False) if made is not None}
    new = {name: made for name, made in results.items() if name not in at}
    # The method of an empty tensor with the sizes one by one: half the time of `torch.empty`.
    makes = [(made.new_empty(0).new_empty, made.shape) for made in new.values()]
    pick = itemgetter(*at.values()) if len(at) > 1 else lambda given: (given[0],)
    answer = _answer([[*at, *new].index(name) if name in results else -1 for name in OUTPUTS])
    apart = _apart(call, list(at))

    place, needed, zeroed = names.index("workspace"), plan.workspace_bytes, plan.workspace_zeroed
    raw, bound = "workspace" in at, type(given[place]) is Workspace
    raw_place, streams = list(at).index("workspace") if raw else 0, implicit_workspaces.by_stream(plan)

    launcher = launch.launcher_of(plan, stats=False, stream=0, leading=call.strided)
    asked = launched(launcher, plan, call, results, call.address("num_rows"))
    words = ["lengths" if name == "ends" else name for name in (*at, *new)]
    enqueue = launcher.repeated(asked, words if raw else [*words, "workspace"])
    driver, context, index = launcher.driver, launcher.context, plan.problem.device.index
    activated, fill_zero, is_capturing = driver.activated, driver.fill_zero, driver.is_capturing
    current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", arrays.torch_stream)
    known: list[int] = []

    def call_again(given: tuple[Any, ...]) -> Any:
        nonlocal known
        found = pick(given)
        if not same(*found):
            return None
        addresses = [tensor.data_ptr() for tensor in found]
        if addresses != known:
            if not apart(addresses):
                return None
            known = addresses
        stream, owner = current_stream(index), None
        if makes:
            made = [make(*shape) for make, shape in makes]
            found, addresses = (*found, *made), addresses + [tensor.data_ptr() for tensor in made]
        if raw:
            if addresses[raw_place] % ALIGNMENT:
                return None
            with activated(context):
                fill_zero(addresses[raw_place], zeroed, stream)
            enqueue(addresses, stream)
            return answer(found)
        if bound:
            given[place].check(plan)
            memory = given[place].pointer
        elif not needed:
            memory = 0
        # The legacy default stream is never captured.
        elif not stream or not is_capturing(stream):
            owner = streams.get(stream)
            if owner is None or owner.plan.workspace_bytes < needed:
                owner = implicit_workspaces.get(plan, stream, "torch")
            memory = owner.pointer
        else:
            with activated(context):
                memory, owner = workspace_memory(plan, None, stream, True, "torch")
        enqueue([*addresses, memory], stream)
        del owner
        return answer(found)

    return call_again


def _answer(places: list[int]) -> Callable[[tuple[Any, ...]], Selection[Any]]:
    """Return a function that makes an answer of the tensors of a call; -1 stands for None."""
    (first, *others), chosen = places, itemgetter(*places)
    if set(others) == {-1}:  # the usual call, of indices alone
        return lambda found: Selection(found[first])
    return lambda found: Selection(*chosen((*found, None)))


def _guard(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """Return a function that compares tensors with these: type, dtype, dispatch keys (device, layout, lazy views,
    transforms), required gradient, shape and strides, not addresses. None if PyTorch has none.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        # One guard takes no tensor twice.
        once = len({id(tensor) for tensor in tensors}) == len(tensors)
        checks = [
            TensorGuards(*some, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
            for some in ([tensors] if once else [[tensor] for tensor in tensors])
        ]
    except (ImportError, TypeError):  # it is no public name, and may take other arguments one day
        return None
    check: Callable[..., bool] = checks[0]
    return check if once else lambda *found: all(same(its) for same, its in zip(checks, found, strict=True))


def _apart(call: Call, names: Sequence[str]) -> Callable[[list[int]], bool]:
    """Return a function that checks addresses: all tensors have memory, and outputs share none with another array."""
    described = [call.described.get("lengths" if name == "ends" else name) for name in names]
    spans = [(0, 0) if info is None else info.span for info in described]
    sizes = [(name in OUTPUTS, end - begin) for name, (begin, end) in zip(names, spans, strict=True)]
    pairs = [
        (i, j, own, its)
        for i, (written, own) in enumerate(sizes)
        if written and own
        for j, (too, its) in enumerate(sizes)
        if its and (j < i or not too)
    ]

    def apart(at: list[int]) -> bool:
        return 0 not in at and all(at[i] + own <= at[j] or at[j] + its <= at[i] for i, j, own, its in pairs)

    return apart
