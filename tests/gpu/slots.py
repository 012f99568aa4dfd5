"""What slots hold: judged on the device by PyTorch operations, small answers by the oracle of sorted lists too."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

import entries as oracle
from gpu import runner
from gpu.served import Served
from ksieve.lab.bench import entry_judge
from oracle import ranks

SMALL = 20_000
"""Scores up to which the oracle reads an answer too: it takes a second for 100,000."""


def positions_of(ready: Served) -> torch.Tensor:
    """Positions in the slots, also where they were not asked for: offsets can be subtracted."""
    given = ready.outputs.get("raw_out", ready.outputs["out"]).out
    offsets = ready.call.get("offsets")
    if "raw_out" in ready.outputs or offsets is None:
        return given
    slot = torch.arange(given.shape[1], device=given.device)
    return (given - offsets[:, None]).masked_fill(slot >= ready.outputs["counts_out"].out, -1)


def refuted(ready: Served) -> list[str]:
    """What is wrong with an answer on the device: rows by reason (`entry_judge.wrong_rows`)."""
    k, live, own = ready.plan.problem.k, ready.call.get("live"), ready.call.get("ks")
    call = {name: value for name, value in ready.call.items() if name not in ("live", "ks")}
    call |= {"k": k} if own is None else {"k": own, "max_k": k}
    outputs = {name: guarded.out for name, guarded in ready.outputs.items()}
    if "counts_out" in outputs:
        outputs["counts_out"] = outputs["counts_out"].view(-1)
    outputs["raw_out"] = positions_of(ready)
    reasons = entry_judge.wrong_rows(ready.scores, call, outputs, None if live is None else int(live))
    if not bool(torch.stack(list(reasons.values())).any()):
        return []
    return [f"{why}: rows {torch.nonzero(found)[:6, 0].tolist()}" for why, found in reasons.items() if found.any()]


def by_lists(ready: Served) -> list[str]:
    """What is wrong with an answer on the host: rows that the oracle refutes."""
    call = {n: v.cpu().numpy() if isinstance(v, torch.Tensor) else v for n, v in ready.call.items()}
    if "live" in call:
        call["live"] = call["live"].item()
    host, k, options = runner.to_numpy(ready.scores), ready.plan.problem.k, ready.plan.problem.options
    score = ranks(host, largest=options.largest, nan=options.nan)
    answer, raw, wrong = ready.answer(), positions_of(ready).cpu().numpy(), []
    for row in range(host.shape[0]):
        values = None if answer["values"] is None else answer["values"][row]
        used = int((raw[row] != -1).sum()) if "counts" not in answer else int(answer["counts"][row, 0])
        try:
            oracle.check_row(score, host, row, k, call, answer["indices"][row], raw[row], values, used)
        except (AssertionError, KeyError) as error:
            wrong.append(f"row {row}: {str(error)[:400]}")
    return wrong


def wrong_rows(ready: Served, *judges: Callable[[Served], list[str]]) -> list[str]:
    """What `judges` find wrong with the answers of two runs: the second meets what the first left in the workspace."""
    judges = judges or ((refuted, by_lists) if ready.scores.numel() <= SMALL else (refuted,))
    for _ in range(2):
        ready.poison()
        ready.run()
        if wrong := [*itertools.chain(*(judge(ready) for judge in judges)), *ready.outside()]:
            return wrong
    return []
