"""Selection on a GPU against the plain-read floor and ``torch.topk``, on the same tensors in the same process."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ksieve import api, tuning
from ksieve.bench import floor, record, scores, timing
from ksieve.bench.timing import Contender, Timing
from ksieve.errors import ArgumentError, BackendError
from ksieve.planner import DeviceInfo, Plan
from ksieve.planner_cuda import with_workspace
from ksieve.policy import SamplingPolicy

OPERATOR = tuple((m, n) for n in (131_072, 262_144, 524_288, 1_048_576) for m in (512, 1024, 2048, 4096, 8192))
DECODE = tuple(
    (m, n)
    for n in (8192, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576)
    for m in (1, 2, 4, 8, 16, 32, 64, 128, 256)
)
QUICK = ((512, 131_072), (2048, 262_144), (64, 262_144), (1024, 16_384), (4, 65_536))
SHAPES: dict[str, tuple[tuple[tuple[int, int], ...], str]] = {
    "operator": (OPERATOR, "causal"),
    "decode": (DECODE, "ragged"),
    "quick": (QUICK, "causal"),
}
"""Named shape lists, each with the lengths it is measured with: the paper's operator matrix, decode batches."""

MEMORY = 0.75
"""Share of the free device memory that inputs may take."""

POISON = 0x7F7F7F7F
VERIFY_BYTES = 4 << 30


@dataclass(frozen=True)
class Variant:
    """A plan to time beside the planner's own choice: forced family and policy, and fields of the plan replaced."""

    name: str
    family: str | None = None
    policy: SamplingPolicy | str | None = None
    geometry: tuple[tuple[str, int], ...] = ()
    changes: tuple[tuple[str, int], ...] = field(default=())

    def plan(self, rows: int, width: int, k: int, dtype: str, device: DeviceInfo) -> Plan:
        """Make the plan; `geometry` fields (threads, ctas_per_sm, held) re-derive the storage, `changes` do not."""
        asked: dict[str, Any] = {"rows": rows, "width": width, "k": k, "dtype": dtype, "device": device}
        with _geometry(self.family, dict(self.geometry)):
            plan = api.plan(**asked, family=self.family, policy=self.policy)
        changes: dict[str, Any] = dict(self.changes)
        if "splits" in changes and plan.family == "split_sampled":
            changes.setdefault("ctas", rows * changes["splits"])
        return with_workspace(replace(plan, **changes)) if changes else plan


PLANNED = Variant("ksieve")


@contextmanager
def _geometry(family: str | None, changes: Mapping[str, Any]) -> Iterator[None]:
    """Plan with other launch shapes of a family for a while; the planner knows them as tables alone."""
    tables = [t for t in tuning.GEOMETRIES if family in t]
    if not changes or family is None:
        yield
        return
    kept = [table[family] for table in tables]
    for table in tables:
        table[family] = replace(table[family], **changes)
    try:
        yield
    finally:
        for table, before in zip(tables, kept, strict=True):
            table[family] = before


def variants_of(families: Sequence[str | None], policies: Sequence[str | None], text: str | None) -> list[Variant]:
    """Variants asked for: every family with every policy, then those of a JSON list.

    An object of the list may hold ``name``, ``family``, ``policy`` (a name, or an object of `SamplingPolicy` fields),
    ``threads``, ``ctas_per_sm`` and ``held`` (storage is derived anew), and any other number of a `Plan`.

    Raises
    ------
    ArgumentError
        If the JSON is none, or names what does not exist.
    """
    found = []
    if families or policies:
        for family, policy in itertools.product(families or [None], policies or [None]):
            found.append(Variant(" ".join(filter(None, (family, policy))), family, policy))
    if text is None:
        return found
    try:
        listed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ArgumentError("--variants", repr(text), f"a JSON list of objects ({error})") from None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ArgumentError("--variants", repr(text), "a JSON list of objects")
    return found + [_variant(dict(item)) for item in listed]


def _variant(item: dict[str, Any]) -> Variant:
    shown = json.dumps(item, separators=(",", ":")).replace('"', "")
    name, family, policy = item.pop("name", shown), item.pop("family", None), item.pop("policy", None)
    if isinstance(policy, dict):
        try:
            named: dict[str, Any] = {"name": "forced"} | policy
            policy = SamplingPolicy(**named)
        except TypeError as error:
            raise ArgumentError("--variants", f"policy {policy}", f"fields of SamplingPolicy ({error})") from None
    geometry = {key: item.pop(key) for key in ("threads", "ctas_per_sm", "held") if key in item}
    if geometry and family not in tuning.GEOMETRY:
        raise ArgumentError("--variants", f"{geometry} without a family", f"a family: {list(tuning.GEOMETRY)}")
    known = {f.name for f in fields(Plan)}
    for key, value in item.items():
        if key not in known or not isinstance(value, int):
            raise ArgumentError("--variants", f"{key}: {value!r}", f"a number of a plan, one of {sorted(known)}")
    return Variant(name, family, policy, tuple(geometry.items()), tuple(item.items()))


def run(
    shapes: Sequence[tuple[int, int]] = OPERATOR,
    k: int = 2048,
    *,
    lengths: str = "causal",
    dtype: str = "float32",
    variants: Sequence[Variant] = (),
    rounds: int = 7,
    torch_rounds: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    each: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure the planner's choice and the variants asked for.

    Parameters
    ----------
    shapes : sequence of (rows, width)
    k : int
    lengths : str
        A name of `ksieve.workloads.lengths.LENGTHS`.
    dtype : str
    variants : sequence of Variant
        Timed beside the planner's choice.
    rounds, torch_rounds : int
        Timed rounds; of ``torch.topk``, which reads whole rows, fewer (0 leaves it out).
    seed : int
    progress : callable, optional
        Called as ``progress(shapes done, shapes in all)``.
    each : callable, optional
        Called with the results of every shape as it is done.

    Returns
    -------
    dict
        For `ksieve.bench.record.write_json`; a shape that does not fit into memory is listed with the reason.

    Raises
    ------
    BackendError
        Without PyTorch or a GPU.
    """
    device = _device()
    results = _each(
        shapes,
        lambda m, n: _shape(m, n, k, lengths, dtype, [PLANNED, *variants], rounds, torch_rounds, seed, device),
        progress,
        each,
    )
    settings = {"shapes": list(shapes), "k": k, "lengths": lengths, "dtype": dtype, "rounds": rounds, "seed": seed}
    return record.payload("gpu", settings, {"shapes": results, **summary(results)}, gpu=True)


def run_floor(
    shapes: Sequence[tuple[int, int]],
    *,
    lengths: str = "causal",
    dtype: str = "float32",
    rounds: int = 7,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    each: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure every plain-read kernel over the valid prefixes alone; arguments as in `run`."""
    device = _device()
    results = _each(shapes, lambda m, n: _shape(m, n, 0, lengths, dtype, [], rounds, 0, seed, device), progress, each)
    settings = {"shapes": list(shapes), "lengths": lengths, "dtype": dtype, "rounds": rounds, "seed": seed}
    return record.payload("floor", settings, {"shapes": results}, gpu=True)


def _each(
    shapes: Sequence[tuple[int, int]],
    measure: Callable[[int, int], dict[str, Any]],
    progress: Callable[[int, int], None] | None,
    each: Callable[[dict[str, Any]], None] | None,
) -> list[dict[str, Any]]:
    results = []
    for done, (rows, width) in enumerate(shapes):
        if progress is not None:
            progress(done, len(shapes))
        results.append(measure(rows, width))
        if each is not None:
            each(results[-1])
    if progress is not None:
        progress(len(shapes), len(shapes))
    return results


def _device() -> DeviceInfo:
    try:
        import torch
    except ImportError:
        raise BackendError("the GPU benches make their inputs with PyTorch: install torch") from None
    from ksieve.backends import cuda

    if not torch.cuda.is_available():
        cuda.device_info(0)  # says what is missing
        raise BackendError("this PyTorch has no CUDA support: install a CUDA build of torch")
    return cuda.device_info(torch.cuda.current_device())


def _shape(
    rows: int,
    width: int,
    k: int,
    lengths_kind: str,
    dtype: str,
    variants: Sequence[Variant],
    rounds: int,
    torch_rounds: int,
    seed: int,
    device: DeviceInfo,
) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"rows": rows, "width": width}
    torch.cuda.empty_cache()
    element = getattr(torch, dtype)
    pitch = -(-width * element.itemsize // 16) * 16 // element.itemsize  # the plain reads need aligned rows
    set_bytes = rows * pitch * element.itemsize
    free = int(torch.cuda.mem_get_info()[0] * MEMORY)
    if set_bytes > free:
        return facts | {"skipped": f"{set_bytes / 1e9:.1f} GB of scores, {free / 1e9:.1f} GB may be used"}
    sets = timing.input_sets(set_bytes, torch.cuda.get_device_properties().L2_cache_size, free)
    lengths = scores.lengths_of(lengths_kind, rows, width, seed)
    matrices = []
    for number in range(sets):
        matrix = torch.empty(rows, pitch, dtype=element, device="cuda")[:, :width]
        scores.endpoint_structured(matrix, lengths, seed + number)
        matrices.append(matrix)
    contenders = floor.contenders(matrices, lengths, device)
    plans: dict[str, Plan | ArgumentError] = {}
    reads = len(contenders)
    for variant in variants:
        try:
            plans[variant.name] = plan = variant.plan(rows, width, k, dtype, device)
        except ArgumentError as error:
            plans[variant.name] = error
        else:
            contenders.append(_selector(variant.name, plan, matrices, lengths))
    if torch_rounds and k <= width:
        contenders.append(_torch_topk(matrices, k, torch_rounds))
    read_bytes = int(lengths.long().clamp(0, width).sum()) * element.itemsize
    times = timing.measure(contenders, sets, set_bytes, rounds=rounds)
    plain = [t for t in times[:reads] if t.rounds]
    least = min(plain, key=lambda t: t.median, default=Timing("none"))
    facts |= {
        "input_sets": sets,
        "read_bytes": read_bytes,
        "floor_us": least.median,
        "floor_kernel": least.name,
        "floor_terabytes_per_second": read_bytes / least.median / 1e6,
        "reads": {t.name: t.facts() for t in times[:reads]},
        "selectors": {t.name: t.facts() | {"of_floor": least.median / t.median} for t in times[reads:]},
    }
    for name, made in plans.items():
        if isinstance(made, ArgumentError):
            facts["selectors"][name] = {"error": str(made), "exact": None}
        else:
            facts["selectors"][name] |= _plan_facts(made)
    return facts


def _plan_facts(plan: Plan) -> dict[str, Any]:
    names = ("family", "capacity", "shared_capacity", "splits", "ctas", "threads", "ctas_per_sm", "workspace_bytes")
    policy = plan.policy.name if plan.policy else "direct"
    return {name: getattr(plan, name) for name in names} | {"policy": policy, "reason": plan.reason}


def _selector(name: str, plan: Plan, matrices: list[Any], lengths: Any) -> Contender:
    import torch

    from ksieve.verify import verify

    rows = matrices[0].shape[0]
    outs = [torch.empty(rows, plan.problem.k, dtype=torch.int32, device="cuda") for _ in matrices]
    held: list[Any] = []

    def select(i: int) -> None:
        if not held:
            held.append(plan.workspace())
        api.topk(matrices[i], lengths, plan=plan, out=outs[i], workspace=held[0])

    return Contender(
        name,
        select,
        lambda i: verify(matrices[i], lengths, outs[i], block_bytes=VERIFY_BYTES).ok,
        lambda i: outs[i].fill_(POISON),
    )


def _torch_topk(matrices: list[Any], k: int, rounds: int) -> Contender:
    import torch

    from ksieve.verify import verify

    shape = (matrices[0].shape[0], k)
    outs = [
        (torch.empty(shape, dtype=m.dtype, device="cuda"), torch.empty(shape, dtype=torch.int64, device="cuda"))
        for m in matrices
    ]
    return Contender(
        "torch.topk",
        lambda i: torch.topk(matrices[i], k, dim=1, sorted=False, out=outs[i]),
        lambda i: verify(matrices[i], None, outs[i][1], block_bytes=VERIFY_BYTES).ok,
        lambda i: outs[i][1].fill_(POISON),
        rounds,
    )


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric mean and least fraction of the floor per selector, over the shapes it was exact on; inexact shapes."""
    by_name: dict[str, list[float]] = {}
    inexact: dict[str, int] = {}
    for shape in results:
        for name, facts in shape.get("selectors", {}).items():
            if facts.get("exact") is False:
                inexact[name] = inexact.get(name, 0) + 1
            elif "of_floor" in facts and math.isfinite(facts["of_floor"]):
                by_name.setdefault(name, []).append(facts["of_floor"])
    return {
        "of_floor": {
            name: {"geometric_mean": math.exp(sum(map(math.log, v)) / len(v)), "least": min(v), "shapes": len(v)}
            for name, v in by_name.items()
        },
        "inexact": inexact,
    }
