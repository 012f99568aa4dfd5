"""Calls on a device: guarded outputs of every dtype, two runs, and who judges them.

A call is a dict of keyword arguments of `ksieve.topk`, tensors among them, as the oracle reads it: ``ks`` is an array
k, ``live`` the live rows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

import harness
from flat_calls import NAMES, ask
from gpu import runner
from gpu.runner import GUARD, Guarded
from gpu.variants import Variant
from ksieve.core import arguments, entries
from ksieve.core.keys import widen
from ksieve.core.options import Options, dtype_text
from ksieve.core.ranking import ranked
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.core.windows import windows
from ksieve.model import gathering, pooling, reference
from ksieve.planning.plan import Plan
from ksieve_lab import oracle

JUDGED = ("starts", "ends", "index_base", "next_n", "largest", "nan", "sorted", "tie_break")
"""Arguments that `ksieve.verify` takes as the call does."""


def options_of(call: dict[str, Any]) -> Options:
    """Options that a call's keyword arguments ask for."""
    keywords = {name: value for name, value in call.items() if name in NAMES}
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
        room = ((rows + scores.shape[1] + k) % 4, GUARD) if guarded else (0, 0)
        self.outputs = {"out": Guarded.make(rows, k, index, *room)}
        if options.values:
            self.outputs["values"] = Guarded.make(rows, k, scores.dtype, *room)
        if options.raw:
            self.outputs["raw"] = Guarded.make(rows, k, index, *room)
        if options.counts:
            self.outputs["counts"] = Guarded.make(rows, 1, torch.int32, 0, room[1])
        self.workspace = runner.dirty_workspace(plan)

    def run(self, *, stats: bool = False) -> Any:
        """Enqueue the call; its statistics if asked for."""
        call = {n: v for n, v in self.call.items() if n not in ("lengths", "ks", "live", "overlap")}
        slots = self.call.get("ks")
        if slots is not None:
            call["max_k"] = self.plan.problem.k
        if self.call.get("live") is not None:
            call["num_rows"] = self.call["live"]
        call |= {name: guarded.out for name, guarded in self.outputs.items()}
        if "counts" in self.outputs:
            call["counts"] = call["counts"].view(-1)
        scores, lengths, slots = map(runner.on_device, (self.scores, self.call.get("lengths"), slots))
        result = ask(
            scores,
            lengths,
            slots,
            plan=self.plan,
            workspace=self.workspace,
            stats=stats,
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


def live(rows: int | None) -> dict[str, torch.Tensor]:
    """Argument of a call of so many live rows; none of all rows."""
    return {} if rows is None else {"live": torch.tensor([rows], dtype=torch.int32, device=runner.DEVICE)}


class Asked(NamedTuple):
    """A case of a test: a call with the plan that it is forced to, whether its statistics are compared, and runs."""

    plan: Plan
    scores: torch.Tensor
    call: dict[str, Any]
    stats: bool = False
    runs: int = 2


def kernels(asked: Iterable[Asked]) -> Iterator[tuple[Plan, bool]]:
    """Plans of cases, for the compile pool."""
    for one in asked:
        yield one.plan, False
        yield from [(one.plan, True)] * one.stats


def judged(name: str) -> Callable[[Callable[..., Iterable[Asked]]], Callable[..., None]]:
    """Make a test of a function that returns cases, as ``cases`` of the test: kernels are compiled ahead from these.

    `name`, formatted with the test's arguments, is that of the cases in the summary.
    """

    def test_of(cases: Callable[..., Iterable[Asked]]) -> Callable[..., None]:
        @functools.wraps(cases)
        def test(tally: Any, **given: Any) -> None:
            wrong, rows, stats_rows = [], 0, 0
            for number, (plan, scores, call, stats, runs) in enumerate(cases(**given)):
                ready = Served(plan, scores, call)
                found = check(ready, runs=runs) + (compare_stats(ready) if stats else [])
                told = {key: value for key, value in call.items() if not isinstance(value, torch.Tensor)}
                wrong += [f"case {number}, {plan.family}, k={plan.problem.k}, {told}: {text}" for text in found[:3]]
                rows += len(scores)
                stats_rows += len(scores) * stats
            tally.judge(name.format(**given), rows, wrong, stats_rows=stats_rows)

        own = inspect.signature(cases).parameters.values()
        tally = inspect.Parameter("tally", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__, test.cases = inspect.Signature([*own, tally]), cases  # type: ignore[attr-defined]
        return test

    return test_of


def compare_stats(served: Served, *, host: bool = False) -> list[str]:
    """What is wrong with a call that has statistics: with its answer, and what differs from the model's numbers."""
    return counted(served, host=host)[0]


def counted(served: Served, *, host: bool = False) -> tuple[list[str], np.ndarray]:
    """The same, and the model's raw array."""
    call, plan, options = served.call, served.plan, served.plan.problem.options
    served.poison()
    raw = served.run(stats=True).raw
    wrong = [f"with statistics on: {text}" for text in faults(served, host=host)]
    names = ("starts", "ks", "lengths", "ends", "tail", "positions", "block_table")
    given = {n: v.cpu().numpy() for n in names if (v := call.get(n)) is not None}
    scores, lengths = runner.to_numpy(served.scores), given.get("lengths", given.get("ends"))
    k, ks, starts = plan.problem.k, given.get("ks"), given.get("starts")
    own = np.full(len(scores), k) if ks is None else np.clip(ks.astype(np.int64), 0, k)
    if options.entries or options.positions:
        bounds = entries.bounds(options, *scores.shape, lengths=lengths, starts=starts, tails=given.get("tail"))
        table = given.get("block_table")
        places = given.get("positions") if table is None else gathering.positions_of(table, scores.shape[1])
        found = pooling.entries_of(options, scores, *bounds, positions=places)
        parts, k = entries.forced(options, found.total, own), entries.selected(options, scores.shape[1], k)[1]
        own = np.full(len(scores), k) if ks is None else np.minimum(parts.slots, k)
        scores, lengths, starts = found.scores, parts.total, found.begin + parts.begin
        options = entries.selecting(options)
    model = Stats.without_slots(len(scores)).raw
    if k:
        model = _model(plan, options, scores, k, own, *windows(options, *scores.shape, lengths=lengths, starts=starts))
    differing = np.flatnonzero((raw != model[: len(raw)]).any(1))
    for row in differing[:3]:
        columns = np.flatnonzero(raw[row] != model[row])
        shown = ", ".join(f"{STATS_COLUMNS[c]} {raw[row][c]} (model {model[row][c]})" for c in columns)
        wrong.append(f"row {row} of {len(differing)} whose statistics differ: {shown}")
    return wrong, model


def _model(plan, options, scores, k, wanted, begins, valid) -> np.ndarray:
    """`reference.select`, rows in parallel."""
    arguments = harness.model_arguments(plan) | {"max_k": k, "tie_break": options.tie_break}

    def one(row: int) -> list[int]:
        window = widen(ranked(scores[row, begins[row] : begins[row] + valid[row]], options.ranking))
        return reference.select_row(window, int(wanted[row]), row_id=row, **arguments)[1].columns()

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(len(scores))))
    return np.array(found, np.int32).reshape(len(scores), len(STATS_COLUMNS))
