"""The judge of PyTorch operations and the oracle of sorted lists agree on right and on broken answers."""

from __future__ import annotations

import numpy as np
import pytest

import entries as oracle
import ksieve
from cases import pairwise
from entry_calls import AXES, built, columns_of
from ksieve.lab.bench import entry_judge
from oracle import ranks

torch = pytest.importorskip("torch")

CASES = pairwise(AXES | {"dtype": ("float32",), "outputs": ("given",), "policy": (None,)})


def by_lists(x, k, call, out, raw, values, counts):
    score = ranks(x, largest=call.get("largest", True), nan=call.get("nan"))
    try:
        for row in range(len(x)):
            oracle.check_row(score, x, row, k, call, out[row], raw[row], values[row], counts[row])
    except AssertionError:
        return False
    return True


def by_operations(x, k, call, *outputs):
    asked = {n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in call.items()}
    live, own = asked.pop("live", None), asked.pop("ks", None)
    asked |= {"k": k} if own is None else {"k": own, "max_k": k}
    names = ("out", "raw_out", "values_out", "counts_out")
    given = {name: torch.from_numpy(array) for name, array in zip(names, outputs, strict=True)}
    reasons = entry_judge.wrong_rows(torch.from_numpy(np.ascontiguousarray(x)), asked, given, live)
    return not any(bool(wrong.any()) for wrong in reasons.values())


def test_they_agree():
    rng, verdicts = np.random.default_rng(4), [0, 0]
    for number, case in enumerate(CASES):
        x, k, call = built(case, number)
        if not x.size or not columns_of(k, call):
            continue
        shape = len(x), columns_of(k, call)
        out = np.zeros(shape, call.get("index_dtype", "int32"))
        outputs = out, out.copy(), np.zeros(shape, np.float32), np.zeros(len(x), np.int32)
        given = {n: v for n, v in call.items() if n not in ("ks", "live", "lengths")}
        given |= dict(zip(("out", "raw_out", "values_out", "counts_out"), outputs, strict=True))
        given |= {"max_k": k} if "ks" in call else {}
        given |= {"num_rows": call["live"]} if "live" in call else {}
        ksieve.topk(x, call.get("lengths"), call.get("ks", k), return_values=True, return_raw=True, **given)
        assert by_lists(x, k, call, *outputs) and by_operations(x, k, call, *outputs), case
        for change in range(6):
            broken = [array.copy() for array in outputs]
            array, row = broken[(change + number) % 3], rng.integers(len(x))
            slot, other = rng.integers(shape[1], size=2)
            if change % 3 == 0:
                array[row, slot] += 1
            elif change % 3 == 1:
                array[row, [slot, other]] = array[row, [other, slot]]
            else:
                array[row, slot] = -1
            verdict = by_lists(x, k, call, *broken)
            assert by_operations(x, k, call, *broken) == verdict, (case, change)
            verdicts[verdict] += 1
    assert min(verdicts) > 50, verdicts
