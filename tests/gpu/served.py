"""Calls with options on a device: guarded outputs of every dtype, and the one right answer of a deterministic call.

A call is a dict of keyword arguments of `ksieve.topk`, tensors among them, as `oracle.assert_served` reads it: ``ks``
is an array k, ``live`` the live rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import harness
import ksieve
from gpu import judge, runner
from gpu.variants import Variant
from ksieve.core import arguments, entries, gathering
from ksieve.core.options import Options, dtype_text
from ksieve.core.stats import Stats
from ksieve.model import reference
from ksieve.planning.plan import Plan

GUARD = 64
POISON = 0x7F
OUTSIDE = -(2**40)
"""Below every ordered key."""


@dataclass
class Guarded:
    """An output of any dtype inside guard bytes."""

    out: torch.Tensor
    memory: torch.Tensor
    inside: torch.Tensor

    @classmethod
    def make(cls, rows: int, k: int, dtype: torch.dtype, padding: int = 3, guard: int = GUARD) -> Guarded:
        size, pitch = dtype.itemsize, k + padding
        memory = torch.full((2 * guard + rows * pitch * size,), POISON, dtype=torch.uint8, device=runner.DEVICE)
        body = memory[guard : guard + rows * pitch * size].view(dtype).view(rows, pitch)
        inside = torch.zeros(rows, pitch * size, dtype=torch.bool, device=runner.DEVICE)
        inside[:, : k * size] = True
        edge = torch.zeros(guard, dtype=torch.bool, device=runner.DEVICE)
        return cls(body[:, :k], memory, torch.cat([edge, inside.reshape(-1), edge]))

    def poison(self) -> None:
        self.memory.fill_(POISON)

    def intact(self) -> bool:
        """Whether nothing outside the slots was written."""
        return bool((self.memory[~self.inside] == POISON).all())


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
        """Host arrays of the outputs, as `oracle.assert_served` takes them; bfloat16 as uint16 bits."""
        names = {"out": "indices", "values_out": "values", "raw_out": "raw", "counts_out": "counts"}
        return {"values": None, "raw": None} | {
            names[name]: runner.to_numpy(guarded.out) for name, guarded in self.outputs.items()
        }

    def outside(self) -> list[str]:
        """Outputs around which memory was written."""
        return [f"memory around {name} was written" for name, g in self.outputs.items() if not g.intact()]


def windows_of(scores: torch.Tensor, call: dict[str, Any], k: int) -> tuple[torch.Tensor, ...]:
    """First position, length and slots of every row's window; int64 on the device, nothing is read back."""
    rows, width = scores.shape
    device = scores.device
    row = torch.arange(rows, device=device)
    next_n = call.get("next_n", 1)
    later = next_n - 1 - row % next_n
    starts, lengths, ends = (call.get(name) for name in ("starts", "lengths", "ends"))
    begin = torch.zeros_like(row) if starts is None else starts.long().clamp(0, width)
    if lengths is not None:
        end = begin + (lengths.long()[row // next_n] - later).clamp(min=0)
    else:
        end = (width if ends is None else ends.long()[row // next_n]) - later
    length = torch.minimum(torch.maximum(end, begin), torch.tensor(width, device=device)) - begin
    if call.get("live") is not None:
        length = torch.where(row < call["live"].reshape(()), length, 0)
    slots = torch.full_like(row, k) if call.get("ks") is None else call["ks"].long().clamp(0, k)
    return begin, length, slots


def local_answer(scores: torch.Tensor, call: dict[str, Any], k: int) -> torch.Tensor:
    """Positions within the windows that a call with a tie-break and an order has to give; int64, shape (rows, k).

    Ties are broken by a stable sort of the whole row: no code is shared with ksieve.
    """
    rows, width = scores.shape
    begin, length, slots = windows_of(scores, call, k)
    out = torch.full((rows, k), -1, dtype=torch.int64, device=scores.device)
    columns, ranking = torch.arange(width, device=scores.device), options_of(call).ranking
    step = max(1, (judge.CHUNK // 4) // width)
    for first in range(0, rows, step):
        part = slice(first, min(first + step, rows))
        inside = (columns >= begin[part, None]) & (columns < (begin + length)[part, None])
        key = torch.where(inside, judge.ordered(scores[part], ranking).long(), OUTSIDE)
        if call.get("tie_break") == "high":
            best = width - 1 - torch.sort(key.flip(1), dim=1, descending=True, stable=True).indices
        else:
            best = torch.sort(key, dim=1, descending=True, stable=True).indices
        best = best[:, :k] - begin[part, None]
        used = torch.arange(best.shape[1], device=scores.device) < torch.minimum(length, slots)[part, None]
        if call.get("sorted") == "index":
            best = torch.where(used, best, 2**40).sort(dim=1).values
        out[part, : best.shape[1]] = torch.where(used, best, -1)
    return out


def right_answer(scores: torch.Tensor, call: dict[str, Any], k: int) -> dict[str, torch.Tensor]:
    """Every output of a deterministic call, by the name of its argument."""
    options = options_of(call)
    begin, _, _ = windows_of(scores, call, k)
    local = local_answer(scores, call, k)
    used = local >= 0
    index = local + (begin[:, None] if options.index_base == "row" else 0)
    written = index
    if call.get("offsets") is not None:
        written = index + call["offsets"].long()[:, None]
    elif call.get("page_table") is not None:
        table, size = call["page_table"], options.page_size
        named = call.get("row_to_request")
        rows = torch.arange(len(index), device=index.device)
        request = rows // options.next_n if named is None else named.long()
        page = torch.where(used, index, 0) // size
        known = (page < table.shape[1]) & ((request >= 0) & (request < table.shape[0]))[:, None]
        entry = table[request.clamp(0, table.shape[0] - 1)[:, None], page.clamp(max=table.shape[1] - 1)]
        written = torch.where(known & (entry >= 0), entry.long() * size + index % size, -1)
    dtype = getattr(torch, options.index_dtype)
    found = {"out": torch.where(used, written, -1).to(dtype)}
    if options.values:
        bits = scores.view(getattr(torch, f"int{8 * scores.dtype.itemsize}"))
        unused = -torch.inf if options.largest else torch.inf
        least = torch.full((), unused, dtype=scores.dtype, device=scores.device).view(bits.dtype)
        position = (local + begin[:, None]).clamp(0, max(scores.shape[1] - 1, 0))
        found["values_out"] = torch.where(used, bits.gather(1, position), least).view(scores.dtype)
    if options.raw:
        found["raw_out"] = torch.where(used, index, -1).to(dtype)
    return found


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Whether two tensors hold the same bytes, rows apart; bool, shape (rows,)."""
    kind = getattr(torch, f"int{8 * a.dtype.itemsize}")
    return (a.contiguous().view(kind) == b.contiguous().view(kind)).all(1)


def check(served: Served, *, runs: int = 2) -> list[str]:
    """Run a deterministic call; what differs from its one right answer."""
    expected = right_answer(served.scores, served.call, served.plan.problem.k)
    wrong: list[str] = []
    for run in range(runs):
        served.poison()
        served.run()
        for name, guarded in served.outputs.items():
            differing = torch.nonzero(~same_bytes(guarded.out, expected[name]))[:, 0].tolist()
            if differing:
                row = differing[0]
                slot = int(torch.nonzero(guarded.out[row] != expected[name][row])[:1].sum())
                got, right = guarded.out[row, slot].item(), expected[name][row, slot].item()
                wrong.append(
                    f"run {run}: {name} of {len(differing)} rows differs ({differing[:6]}): row {row}, slot {slot}: "
                    f"{got}, right is {right}"
                )
        wrong += [f"run {run}: {text}" for text in served.outside()]
        if wrong:
            break
    return wrong


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
        found = entries.entries_of(options, scores, *bounds, positions=places)
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
