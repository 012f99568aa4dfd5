"""`topk` over the ranks of a process group of torch.distributed.

A call selects from its shard by `ksieve.topk`, and then runs a schedule (`ksieve.distributed.protocol`) with operations
of PyTorch. The plan fixes their shapes: nothing is read back to the host.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import suppress
from inspect import signature
from typing import Any

from ksieve.api import select
from ksieve.core import problem
from ksieve.core.arrays import is_array
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, kind_of, shown
from ksieve.core.groups import PageTable, RowBounds, flat
from ksieve.core.options import Nan, TieBreak
from ksieve.core.ranking import Ranking
from ksieve.core.table import INTEGERS
from ksieve.distributed import fused, plans
from ksieve.distributed.agreement import FAILED, Channel, distributed, stated, tag_of
from ksieve.distributed.holding import ascending, check_pages, members_of, paged, request_of
from ksieve.distributed.layouts import Layout
from ksieve.distributed.plans import IndexBase, ShardPlan
from ksieve.distributed.protocol import NOTHING, AllGather, agree, everywhere, marked
from ksieve.distributed.schedules import Output

Steps = Generator[Any, Any, Any]

_BOUNDS = ("global_lengths", "starts", "ends")
_PAGES = ("page_table", "page_size", "row_to_request")
_FIXED = ("group", "layout", "output", "index_base", "tie_break", "largest", "nan")
"""Arguments of `topk` that a plan fixes."""
_DEFAULTS = {name: of.default for name, of in signature(plans.plan).parameters.items() if name != "group"}


def topk(
    local_scores: Any,
    local_lengths: Any = None,
    k: Any = None,
    *,
    global_lengths: Any = None,
    group: Any = None,
    layout: Layout | None = None,
    output: Output | None = None,
    plan: ShardPlan | None = None,
    bounds: RowBounds | None = None,
    max_k: int | None = None,
    num_rows: Any = None,
    transform: PageTable | None = None,
    index_base: IndexBase | None = None,
    tie_break: TieBreak | None = None,
    largest: bool | None = None,
    nan: Nan | None = None,
) -> Any:
    """Select the k best scores of rows whose scores lie on several ranks, exactly. Every rank must call it.

    Parameters
    ----------
    local_scores : Tensor, shape (rows, width of this rank's shard)
        float32, float16 or bfloat16, on CPU or CUDA, rows contiguous. Every rank has all rows, and may have no scores.
    local_lengths : Tensor of int32, shape (rows,), optional
        Number of valid scores at the start of each row of this shard. Default: by `global_lengths`, else all.
    k : int, or Tensor of int32, shape (rows,)
        Slots per row, the same on every rank. May be omitted with a plan. A tensor gives every row its own k, clamped
        to [0, max_k]. Like all arrays below, it must hold the same numbers on every rank.
    global_lengths : Tensor of int32 or int64, shape (rows // next_n,), optional
        Number of valid scores of each whole row, in the order of global positions.
    group : process group of torch.distributed, optional
        Default: the default group.
    layout : Contiguous or Interleaved, optional
        Default: ``Contiguous()``.
    output : {"owned", "global"}, optional
        Default: "owned".
    plan : ShardPlan, optional
        From `ksieve.distributed.plan`. It fixes `group`, `layout`, `output` and all below from `index_base` on, which
        must then be omitted. Without a plan every call makes one, which takes a message of its own.
    bounds : RowBounds, optional
        Windows of the whole rows: `starts` and `ends` are global positions, `global_lengths` count from `starts`, and
        `index_base` is "row".
    max_k : int, optional
        Slots per row where k is a tensor; may be omitted with a plan.
    num_rows : Tensor of int32, shape (1,) or (), or int, optional
        Number of live rows. Later ones have no scores.
    transform : PageTable, optional
        This rank's own, with output "owned": positions of the shard are written through it. The order is still that of
        positions.
    index_base, tie_break, largest, nan
        As in `ksieve.distributed.plan`.

    Returns
    -------
    indices : Tensor of int32, shape (rows, k)
        Output "owned": the selected positions that this rank holds, ascending, then -1. Output "global": those of all
        ranks, the same bytes on every rank.
    counts : Tensor of int32, shape (rows,)
        Output "owned" alone: how many positions each row has here.

    Raises
    ------
    ArgumentError
        An argument cannot be used; or it differs between ranks, then on every rank, with both values and the ranks.
        Where arrays are given must agree, and all other arguments but `group` and the widths.
    BackendError
        See `ksieve.distributed.plan`; or another rank has failed before it sent data, with that rank's error.

    Notes
    -----
    For any number of ranks, the selection equals `ksieve.topk` with the same `tie_break` on the whole rows.

    A call with a plan sends ``plan.messages``, for every input, and reads nothing back. On CUDA it enqueues work on the
    current stream and returns. After a call with the same plan outside of the capture it can be captured in a CUDA
    graph with NCCL. If a rank dies, the others end by the process group's own error or timeout.

    Over NCCL a call with a plan does not compare arguments on the host. Where ranks disagree, and their plans send
    messages of the same sizes, all indices are -1, counts are 0, and ``plan.disagreed`` is true.
    """
    given = dict(locals())
    distributed()  # imports PyTorch
    torch = sys.modules["torch"]
    given |= {"starts": None, "ends": None, "next_n": 1}
    made = plan if isinstance(plan, ShardPlan) else None
    channel = Channel(group) if made is None else made.channel
    try:
        given |= _flat(given.pop("bounds"), given.pop("transform"))
        asked, statement = _checked(torch, given)
    except Exception as error:
        _fail(channel, made, error, plan is None or _waits(channel, local_scores))
        raise
    if made is None:
        assert channel is not None
        made = plans.make(channel, asked, statement)
    tag = tag_of(made.tag, *statement.values())
    return _run(made, _steps(torch, made, given, tag), tag, statement)


_OF_CALL = ("local_lengths", "plan", "num_rows", *_BOUNDS, "next_n", *_PAGES)
"""Arguments of `topk` that a plan leaves open; a k without an array is the plan's."""


def _flat(bounds: Any, transform: Any) -> dict[str, Any]:
    """Members of the groups of a call."""
    found = flat({"bounds": bounds}) | dict(zip(_PAGES, members_of(transform), strict=True))
    if "indptr" in found:
        raise ArgumentError("bounds", "Segments", "ksieve.RowBounds(...): shards are columns of a matrix")
    if (base := found.pop("index_base", "row")) != "row":
        raise ArgumentError("index_base", shown(base), "'row' in bounds: index_base= of the call itself says more")
    return found


def _steps(torch: Any, plan: ShardPlan, given: dict[str, Any], tag: int) -> Steps:
    """Select from the shard, agree with all ranks, and write positions in the form of the call."""
    scores, k, next_n, table = given["local_scores"].detach(), given["k"], given["next_n"], given["page_table"]
    ks = k.long() if is_array(k) else None
    lengths, num_rows = given["local_lengths"], given["num_rows"]
    bounds = {name: given[name] for name in _BOUNDS}
    bound: dict[str, Any] = {} if lengths is None else {"lengths": lengths}
    if num_rows is not None or any(array is not None for array in bounds.values()) or next_n > 1:
        bound = _window(torch, plan, _row_numbers(scores), lengths, bounds, next_n, num_rows)
    ids, values, *_ = select(
        scores, k=plan.shape.k, sorted=not fused.covers(plan), tie_break=plan.options.tie_break,
        largest=plan.options.largest, nan=plan.options.nan, values=True, **bound,
    )  # fmt: skip
    answer = yield from _agreed(torch, plan, tag, ids, values, ks, table is not None or plan.index_base == "shard")
    if table is None:
        return answer
    requests = request_of(_row_numbers(scores), given["row_to_request"], next_n)
    return paged(torch, answer[0].long(), table, given["page_size"], requests), answer[1]


def _agreed(torch: Any, plan: ShardPlan, tag: int, ids: Any, values: Any, ks: Any, of_shard: bool) -> Steps:
    """Agree on positions, from this rank's best."""
    if fused.covers(plan):
        return fused.select(plan, ids, values, ks, of_shard, tag)
    of_plan = {"dtype": torch.int64, "device": ids.device}
    wanted = torch.full(ids.shape[:1], plan.shape.k, **of_plan) if ks is None else ks.clamp(0, plan.shape.k)
    steps = _merged(torch, plan, ids.long(), values, wanted, of_shard)
    return steps if plan.waits else marked(steps, tag, plan.shape.world, plan.flag(values.device))


def _row_numbers(scores: Any) -> Any:
    """Row numbers, on the device of the scores. A launch, which plain calls do without."""
    return sys.modules["torch"].arange(scores.shape[0], device=scores.device)


def _window(
    torch: Any, plan: ShardPlan, row: Any, local_lengths: Any, bounds: dict[str, Any], next_n: int, num_rows: Any
) -> dict[str, Any]:
    """Window of each row in this rank's shard, as arguments of `ksieve.topk`."""
    if local_lengths is not None:
        begin, end = row * 0, local_lengths.long().clamp(0, plan.width)
    else:
        extent, starts = plan.shape.extent, bounds["starts"]
        first = row * 0 if starts is None else starts.long().clamp(0, extent)
        # By the rules of `ksieve.core.windows`.
        later, last = next_n - 1 - row % next_n, extent
        ends = bounds["ends"] if bounds["global_lengths"] is None else bounds["global_lengths"]
        if ends is not None:
            last = ends.long().clamp(-1, extent + next_n)[row // next_n]
        last = last - later
        if bounds["global_lengths"] is not None:
            last = first + last.clamp(min=0)
        begin, end = (plan.layout.below(bound, plan.rank, plan.widths) for bound in (first, last))
    if num_rows is not None:
        counted = problem.live_rows(num_rows, plan.shape.rows)
        live = num_rows.reshape(1) if counted is None else counted
        end = torch.where(row < live, end, begin)
    if bounds["starts"] is not None:
        return {"bounds": RowBounds(begin.int(), end.int())}
    return {"lengths": end.int()}


def _merged(torch: Any, plan: ShardPlan, ids: Any, values: Any, wanted: Any, of_shard: bool) -> Steps:
    """Answer of all ranks from this rank's best, which are sorted; positions of the shard where asked for."""
    shape = plan.shape
    positions = plan.layout.positions(ids.clamp(min=0), plan.rank, plan.widths)
    order = shape.extent - 1 - positions if shape.high_first else positions
    keys = ordered_keys(values, plan.options.ranking)
    best = torch.where(ids < 0, NOTHING, (keys << shape.position_bits) | order)
    agreed = yield from agree(plan.schedule, shape, plan.rank, best, wanted)
    if plan.output == "global":
        found = yield from everywhere(shape, plan.rank, positions, agreed, wanted)
        return ascending(torch, found, found >= 0)
    held = torch.arange(shape.k, device=ids.device) < agreed.count[:, None]
    return ascending(torch, ids if of_shard else positions, held), agreed.count.int()


def ordered_keys(values: Any, ranking: Ranking) -> Any:
    """Ordered keys of a tensor of scores, int64: of 32 bits for float32, else of 16; the smallest is the best."""
    torch = sys.modules["torch"]
    dtype = SCORE_DTYPES[str(values.dtype).removeprefix("torch.")]
    bits = values.contiguous().view(getattr(torch, f"int{8 * dtype.size}")).long()
    sign = 1 << (8 * dtype.size - 1)
    size = bits & (sign - 1)
    negative = (bits >= 0) if ranking == "smallest" else (bits < 0)
    keys = torch.where(negative & (size > 0), sign | size, sign - 1 - size)
    return torch.where(size > dtype.infinity, 0 if ranking == "nan_first" else 2 * sign - 1, keys)


def _run(plan: ShardPlan, steps: Steps, tag: int, statement: dict[str, str]) -> Any:
    """Run a call on the plan's process group; where the host takes part, the first message holds the tag."""
    channel, answer, first = plan.channel, None, True
    while True:
        try:
            ask = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        except Exception as error:
            if first and tag != FAILED:
                _fail(channel, plan, error)
            raise
        array = ask.array.contiguous()
        gathers = isinstance(ask, AllGather)
        if channel is None or channel.world == 1:
            answer = array[None] if gathers else array
            continue
        answer = None
        if first and plan.waits:
            data = array if channel.fits(array) else None
            _, answer = channel.meet(tag, lambda: plan.stated | statement, data=data)
            answer = answer if gathers or answer is None else answer.sum(0, dtype=array.dtype)
        if answer is None:
            answer = channel.collective(array, gathers)
        first = False


def _fail(channel: Channel | None, made: ShardPlan | None, error: Exception, known: bool = True) -> None:
    """Send what the other ranks wait for, if that is known: they raise too, or over NCCL fill their answers with -1."""
    if channel is None or channel.world == 1:
        return
    if made is None or made.waits:
        if known:
            channel.fail(error)
        return
    torch = sys.modules["torch"]
    with suppress(Exception):  # the error itself is what the caller raises
        shape, device = (made.shape.rows, made.shape.k), next(iter(made.flags))
        ids = torch.full(shape, -1, dtype=torch.int32, device=device)
        values = torch.zeros(shape, dtype=getattr(torch, made.dtype), device=device)
        _run(made, _agreed(torch, made, FAILED, ids, values, None, False), FAILED, {})


def _waits(channel: Channel | None, scores: Any) -> bool:
    """Whether ranks with a plan for such scores wait for a tag: those over NCCL wait for data of sizes of the plan."""
    kind = getattr(getattr(scores, "device", None), "type", "cpu")
    return channel is not None and "cpu" in channel.backends and channel.waits(kind)


def _checked(torch: Any, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Check the arguments of a call; returns arguments of the plan to make, if any, and this rank's statement."""
    scores, plan, k, max_k = (given[name] for name in ("local_scores", "plan", "k", "max_k"))
    ks = k if is_array(k) else None
    bounds, fixed = ({name: given[name] for name in names if given[name] is not None} for names in (_BOUNDS, _FIXED))
    info = _check_arrays(torch, scores, given["local_lengths"], ks, bounds, given["next_n"], given["num_rows"])
    if max_k is not None and ks is None:
        raise ArgumentError("max_k", shown(max_k), "nothing unless k is a tensor")
    if ks is not None and (plan is None or max_k is not None):
        problem.check_k(max_k, "max_k")
    slots, asked = k if ks is None else max_k, {}
    if plan is not None:
        _check_planned(plan, scores, "k" if ks is None else "max_k", slots, fixed)
    check_pages(info, *(given[name] for name in _PAGES))
    if given["page_table"] is not None and (given["output"] if plan is None else plan.output) == "global":
        raise ArgumentError("page_table", "a table with output 'global'", "nothing: a rank has no others' pages")
    if plan is None:
        rows, width = scores.shape
        facts = {"rows": rows, "width": width, "k": slots, "dtype": scores.dtype, "device": scores.device.type}
        asked = plans.checked(**{name: (fixed | facts).get(name, default) for name, default in _DEFAULTS.items()})
        said = given | {name: asked[name] for name in _FIXED if name in asked}
    else:
        said = {name: given[name] for name in _OF_CALL}
        if ks is not None:
            said["k"] = k
    if problem.is_int(given["num_rows"]):
        said["num_rows"] = problem.live_rows(given["num_rows"], scores.shape[0])
    return asked, stated(said)


def _check_arrays(
    torch: Any, scores: Any, local_lengths: Any, ks: Any, bounds: dict[str, Any], next_n: Any, num_rows: Any
) -> problem.ArrayInfo:
    """Check what one rank can check of its own arrays; returns the facts of its scores."""
    if not isinstance(scores, torch.Tensor):
        raise ArgumentError("local_scores", kind_of(scores), "a PyTorch tensor")
    info = problem.inspect(scores, "local_scores")
    problem.check_scores(info, "local_scores")
    rows = info.shape[0]
    plans.check_rows_of_requests(next_n, rows)

    def check(array: Any, name: str, shapes: tuple[problem.Shape, ...], dtypes: tuple[str, ...] = ("int32",)) -> None:
        if array is not None:
            problem.check_vector(problem.inspect(array, name), name, shapes, info.device, dtypes)

    for name, array in bounds.items():
        check(array, name, ((rows if name == "starts" else rows // next_n,),), INTEGERS)
    check(local_lengths, "local_lengths", ((rows,),), INTEGERS)
    check(ks, "k", ((rows,),))
    if problem.live_rows(num_rows, rows) is None:
        check(num_rows, "num_rows", ((1,), ()))
    if local_lengths is not None and (bounds or next_n > 1):
        got = f"an array together with {', '.join(bounds or ['next_n'])}"
        raise ArgumentError("local_lengths", got, "either lengths of the shard, or of the whole row")
    if "ends" in bounds and "global_lengths" in bounds:
        raise ArgumentError("ends", "an array together with global_lengths", "either global_lengths or ends")
    return info


def _check_planned(plan: Any, scores: Any, name: str, k: Any, others: dict[str, Any]) -> None:
    plans.check_plan(plan)
    for other, value in others.items():
        raise ArgumentError(other, shown(value), "nothing when plan is given: the plan fixes it")
    if k is not None and k != plan.shape.k:
        raise ArgumentError(name, shown(k), f"{plan.shape.k}, the plan's k, or nothing")
    dtype = str(scores.dtype).removeprefix("torch.")
    if tuple(scores.shape) != (plan.shape.rows, plan.width) or dtype != plan.dtype:
        got = f"{dtype} of shape {tuple(scores.shape)}"
        raise ArgumentError("local_scores", got, f"{plan.dtype} of shape {(plan.shape.rows, plan.width)}, by the plan")
    if scores.device.type != plan.device:
        raise ArgumentError("local_scores", f"device {scores.device}", f"a {plan.device} device, by the plan")
