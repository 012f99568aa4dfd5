"""Everything that a call can ask for beyond the plain selection, every two of them together, on every backend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ksieve
from cases import OPTION_CASES, POLICIES, build_call, options_of, scores_of
from flat_calls import ask, plan_of
from harness import BACKENDS, HOST_BACKENDS, serve_on
from ksieve.core.options import Options
from ksieve_lab.oracle import assert_served
from parts import but_for

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def name_of(case):
    return "-".join(str(value).replace(" ", "_") for value in case.values())


def same_bytes(a, b):
    assert a.dtype.itemsize == b.dtype.itemsize and a.shape == b.shape
    unsigned = f"u{a.dtype.itemsize}"
    np.testing.assert_array_equal(a.view(unsigned), b.view(unsigned))


@every_backend
@pytest.mark.parametrize("case", OPTION_CASES, ids=name_of)
def test_pairwise(case, backend):
    inputs, call = build_call(case)
    answer = serve_on(backend, inputs.scores, inputs.k, call, offset=inputs.offset if backend == "cuda" else 0)
    assert answer["indices"].dtype == np.dtype(case["index_dtype"])
    assert_served(inputs.scores, inputs.k, call, answer)
    for name, part in (("out", "indices"), ("values", "values"), ("raw", "raw")):
        if not isinstance(call.get(name), bool | None):
            same_bytes(call[name], answer[part])


@pytest.mark.parametrize("policy", but_for(POLICIES[:4], POLICIES), ids=lambda p: p.name if p else "direct")
def test_statistics_are_the_models(policy):
    """Every policy, and storage too small for a frontier, so that ties have to be collected from the row again."""
    for number, case in enumerate(OPTION_CASES):
        if case["shape"][1] > 2000 and number % 4:
            continue  # the model is slow
        inputs, call = build_call(case)
        rows, width, k = case["shape"]
        made = plan_of(
            rows=rows, width=width, k=k, dtype=case["dtype"], policy=policy or "direct", options=options_of(k, call)
        )
        made = replace(made, capacity=k + (0, 7, 100_000)[number % 3])
        found, model = (serve_on(b, inputs.scores, k, call, plan=made, stats=True) for b in HOST_BACKENDS)
        np.testing.assert_array_equal(found.pop("stats").raw, model.pop("stats").raw, err_msg=name_of(case))
        for answer in (found, model):
            assert_served(inputs.scores, k, call, answer)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_what_ties_cost_is_counted(backend):
    """One more traversal for the highest where half of the storage might not hold the ties and what is better."""
    exact = ksieve.SamplingPolicy("exact", 4, boundary="exact", min_rank=1)
    plateau = np.repeat([2.0, 1.0, 0.0], [50, 900, 50]).astype(np.float32)[None]
    spread = np.arange(1000, dtype=np.float32)[None]
    for scores, policy, capacity, more in (
        (plateau, exact, 100_000, 0),
        (plateau, None, 300, 1),
        (plateau, exact, 300, 1),
        (spread, exact, 300, 0),
        (spread, None, 300, 0),
    ):
        scans = []
        for tie_break in ("any", "low", "high"):
            made = plan_of(rows=1, width=1000, k=100, policy=policy or "direct", options=Options(tie_break=tie_break))
            made = replace(made, capacity=capacity)
            scans.append(int(ask(scores, plan=made, stats=True, backend=backend)[1].scans[0]))
        assert [n - scans[0] for n in scans] == [0, 0, more], (policy, capacity)


@every_backend
def test_sample_ranks_are_those_of_the_largest_k(backend):
    """A row of k 5 beside a maximum of 400 keeps the maximum's boundary, so one policy serves a batch."""
    x = scores_of("normal", 2, 4000, 400)
    call = {"ks": np.array([5, 400], np.int32), "values": True}
    answer = serve_on(backend, x, 400, call, policy="paper-64", stats=True)
    single = serve_on(backend, x, 400, {"values": True}, policy="paper-64", stats=True)
    np.testing.assert_array_equal(answer["stats"].tau0, single["stats"].tau0)
    np.testing.assert_array_equal(answer["stats"].admitted0, single["stats"].admitted0)
    assert (answer["indices"][0, 5:] == -1).all() and (answer["indices"][0, :5] >= 0).all()
