"""Calls with options on a device: guarded outputs of every dtype, and who judges them.

A call is a dict of keyword arguments of `ksieve.topk`, tensors among them, as the oracle reads it: ``ks`` is an array
k, ``live`` the live rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import harness
import ksieve
from gpu import runner
from gpu.runner import GUARD, Guarded
from gpu.variants import Variant
from ksieve.core import arguments, entries
from ksieve.core.options import Options, dtype_text
from ksieve.core.stats import Stats
from ksieve.model import gathering, pooling, reference
from ksieve.planning.plan import Plan
from ksieve_lab import oracle

JUDGED = ("starts", "ends", "index_base", "next_n", "largest", "nan", "sorted", "tie_break")
"""Arguments that `ksieve.verify` takes as the call does."""


def options_of(call: dict[str, Any]) -> Options:
    """Options that a call's keyword arguments ask for."""
    keywords = {name: value for name, value in call.items() if name in arguments.NAMES}
    bounds = next((call[name] for name in ("lengths", "ends") if call.get(name) is not None), None)
    return arguments.resolve(
        keywords,
        None,
        per_row_k="ks" in call,
        lengths=call.get("lengths") is not None,
        length_dtype=dtype_text(getattr(bounds, "dtype", None)),
    )


def plan_for(variant: Variant, scores: torch.Tensor, k: int, call: dict[str, Any], **changes: Any) -> Plan:
    return runner.plan_for(variant, scores, k, options=options_of(call), **changes)


class Served:
    """One call made ready: its outputs, guarded, and its workspace on memory that was full of garbage.

    Not `guarded`, each output is an allocation of its own that ends with its last slot, for a sanitizer to watch.
    """

    def __init__(self, plan: Plan, scores: torch.Tensor, call: dict[str, Any], guarded: bool = True) -> None:
        self.plan, self.scores, self.call = plan, scores, call
        rows, k, options = scores.shape[0], plan.problem.columns, plan.problem.options
        index = getattr(torch, options.index_dtype)
        room = (3, GUARD) if guarded else (0, 0)
        self.outputs = {"out": Guarded.make(rows, k, index, *room)}
        if options.values:
            self.outputs["values_out"] = Guarded.make(rows, k, scores.dtype, *room)
        if options.raw:
            self.outputs["raw_out"] = Guarded.make(rows, k, index, *room)
        if options.counts:
            self.outputs["counts_out"] = Guarded.make(rows, 1, torch.int32, 0, room[1])
        self.workspace = runner.dirty_workspace(plan)

    def run(self, *, stats: bool = False) -> Any:
        """Enqueue the call; its statistics if asked for."""
        call = {n: v for n, v in self.call.items() if n not in ("lengths", "ks", "live")}
        slots = self.call.get("ks")
        if slots is not None:
            call["max_k"] = self.plan.problem.k
        if self.call.get("live") is not None:
            call["num_rows"] = self.call["live"]
        call |= {name: guarded.out for name, guarded in self.outputs.items()}
        if "counts_out" in call:
            call["counts_out"] = call["counts_out"].view(-1)
        if runner.DRY:
            # The CPU backend stands in for the kernels.
            slots = self.plan.problem.k if slots is None else slots
            ksieve.topk(self.scores, self.call.get("lengths"), slots, **call)
            return None
        scores, lengths, slots = map(runner.on_device, (self.scores, self.call.get("lengths"), slots))
        result = ksieve.topk(
            scores,
            lengths,
            slots,
            plan=self.plan,
            workspace=self.workspace,
            return_stats=stats,
            **runner.on_device(call),
        )
        return result[-1] if stats else None

    def poison(self) -> None:
        for guarded in self.outputs.values():
            guarded.poison()

    def answer(self) -> dict[str, Any]:
        """Host arrays of the outputs, as the oracle takes them; bfloat16 as uint16 bits."""
        return {oracle.NAMES[name]: runner.to_numpy(guarded.out) for name, guarded in self.outputs.items()}

    def outside(self) -> list[str]:
        """Outputs around which memory was written."""
        return [f"memory around {name} was written" for name, g in self.outputs.items() if not g.intact()]


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether two tensors hold the same bytes, rows apart; bool, shape (rows,)."""
    kind = getattr(torch, f"int{8 * a.dtype.itemsize}")
    return (a.contiguous().view(kind) == b.contiguous().view(kind)).all(1)


def faults(served: Served, *, host: bool = False) -> list[str]:
    """What is wrong with an answer: `ksieve.verify` judges indices alone, the oracle all others; `host` says where."""

    def moved(tensor: Any) -> Any:
        return tensor.cpu() if host and isinstance(tensor, torch.Tensor) else tensor

    scores, k, options = moved(served.scores), served.plan.problem.k, served.plan.problem.options
    call = {name: moved(value) for name, value in served.call.items()}
    answer = {oracle.NAMES[name]: moved(guarded.out) for name, guarded in served.outputs.items()}
    if set(answer) > {"indices"} or options.transform != "none" or options.entries or options.positions:
        return oracle.faults(scores, k, call, answer)
    judged = {name: call[name] for name in JUDGED if name in call}
    return runner.refuted(
        scores, call.get("lengths"), answer["indices"], call.get("ks"), num_rows=call.get("live"), **judged
    )


def check(served: Served, *, runs: int = 2, host: bool = False) -> list[str]:
    """Run a call; what is wrong with its answers. The second run meets what the first left in the workspace."""
    for run in range(runs):
        served.poison()
        served.run()
        if wrong := [*faults(served, host=host), *served.outside()]:
            return [f"run {run}: {text}" for text in wrong]
    return []


def compare_stats(served: Served) -> list[str]:
    """Statistics against the model's."""
    if runner.DRY:
        return []
    call, plan, options = served.call, served.plan, served.plan.problem.options
    raw = served.run(stats=True).raw
    names = ("starts", "ks", "lengths", "ends", "tail", "positions", "block_table")
    host = {n: v.cpu().numpy() for n in names if (v := call.get(n)) is not None}
    scores, lengths, starts = runner.to_numpy(served.scores), host.get("lengths", host.get("ends")), host.get("starts")
    k, ks, rows = plan.problem.k, host.get("ks"), len(scores)
    if options.entries or options.positions:
        bounds = entries.bounds(options, *scores.shape, lengths=lengths, starts=starts, tails=host.get("tail"))
        table = host.get("block_table")
        places = host.get("positions") if table is None else gathering.positions_of(table, scores.shape[1])
        found = pooling.entries_of(options, scores, *bounds, positions=places)
        own = np.full(rows, k) if ks is None else np.clip(ks.astype(np.int64), 0, k)
        parts, k = entries.forced(options, found.total, own), entries.selected(options, scores.shape[1], k)[1]
        ks = None if ks is None else np.minimum(parts.slots, k).astype(np.int32)
        scores, lengths, starts = found.scores, parts.total, found.begin + parts.begin
        options = entries.selecting(options)
    model = Stats.without_slots(rows)
    if k:
        _, model = reference.select(
            scores, lengths, k, options=options, starts=starts, ks=ks, **harness.model_arguments(plan)
        )
    differing = np.flatnonzero((raw != model.raw[: len(raw)]).any(1))
    return [f"statistics of row {r} differ: {raw[r]}, model {model.raw[r]}" for r in differing[:3]]
