"""Everything that a call can ask for beyond the plain selection, every two of them together, on every backend."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import ksieve
from cases import DTYPES, OPTION_AXES, OPTION_CASES, POLICIES, build_call, options_of, scores_of
from harness import BACKENDS, HOST_BACKENDS, serve_on
from ksieve import Options, Route
from ksieve_lab.oracle import assert_served
from parts import but_for

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def name_of(case):
    return "-".join(str(value).replace(" ", "_") for value in case.values())


def same_bytes(a, b):
    assert a.dtype.itemsize == b.dtype.itemsize and a.shape == b.shape
    unsigned = f"u{a.dtype.itemsize}"
    np.testing.assert_array_equal(a.view(unsigned), b.view(unsigned))


def test_the_table_is_pairwise():
    seen = {(a, c[a], b, c[b]) for c in OPTION_CASES for a in c for b in c if a < b}
    axes = [(a, b) for a in OPTION_AXES for b in OPTION_AXES if a < b]
    wanted = {(a, i, b, j) for a, b in axes for i in OPTION_AXES[a] for j in OPTION_AXES[b]}
    assert seen == wanted and len(OPTION_CASES) < 100


@every_backend
@pytest.mark.parametrize("case", OPTION_CASES, ids=name_of)
def test_pairwise(case, backend):
    inputs, call = build_call(case)
    answer = serve_on(backend, inputs.scores, inputs.k, call, offset=inputs.offset if backend == "cuda" else 0)
    assert answer["indices"].dtype == np.dtype(case["index_dtype"])
    assert_served(inputs.scores, inputs.k, call, answer)
    for name, part in (("out", "indices"), ("values_out", "values"), ("raw_out", "raw")):
        if name in call:
            same_bytes(call[name], answer[part])


@pytest.mark.parametrize("policy", but_for(POLICIES[:4], POLICIES), ids=lambda p: p.name if p else "direct")
def test_statistics_are_the_models(policy):
    """Every policy, and storage too small for a frontier, so that ties have to be collected from the row again."""
    for number, case in enumerate(OPTION_CASES):
        if case["shape"][1] > 2000 and number % 4:
            continue  # the model is slow
        inputs, call = build_call(case)
        rows, width, k = case["shape"]
        made = ksieve.plan(
            rows=rows, width=width, k=k, dtype=case["dtype"], policy=policy or "direct", options=options_of(k, call)
        )
        made = replace(made, capacity=k + (0, 7, 100_000)[number % 3])
        found, model = (serve_on(b, inputs.scores, k, call, plan=made, return_stats=True) for b in HOST_BACKENDS)
        np.testing.assert_array_equal(found.pop("stats").raw, model.pop("stats").raw, err_msg=name_of(case))
        for answer in (found, model):
            assert_served(inputs.scores, k, call, answer)


@every_backend
@pytest.mark.parametrize("tie_break", ["low", "high"])
@pytest.mark.parametrize("policy", but_for(["direct", "quads-16"], ["direct", "paper-64", "paper-128", "quads-16"]))
def test_huge_tie_groups(backend, tie_break, policy):
    """100,000 equal zeros at the boundary: the lowest and the highest of them, whatever storage they overflow."""
    rng = np.random.default_rng(6)
    x = np.zeros((5, 140_001), np.float32)
    x[1, rng.choice(140_001, 1000, replace=False)] = rng.random(1000, dtype=np.float32) + 1
    x[2, rng.choice(140_001, 30_000, replace=False)] = -1.0
    x[2, rng.choice(140_001, 500, replace=False)] = np.inf
    x[3] = np.where(rng.random(140_001) < 0.5, np.float32(-0.0), np.float32(0.0))
    x[4] = np.nan
    call = {"tie_break": tie_break, "sorted": "index", "return_values": True}
    answer = serve_on(backend, x, 2048, call, policy=policy)
    assert_served(x, 2048, call, answer)


@pytest.mark.extended
@every_backend
@pytest.mark.parametrize("tie_break", ["low", "high"])
def test_ties_while_storage_tightens(backend, tie_break):
    """Steps up, down and shuffled: storage fills over and over, each time with another plateau at its edge."""
    steps = (np.arange(120_000) // 700).astype(np.float32)
    x = np.stack([steps, steps[::-1], np.random.default_rng(3).permutation(steps), -np.abs(steps - 80)])
    for k in (1, 699, 700, 2048, 5000):
        for policy in ("direct", "quads-16"):
            call = {"tie_break": tie_break, "sorted": "index"}
            assert_served(x, k, call, serve_on(backend, x, k, call, policy=policy))


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
            made = ksieve.plan(
                rows=1, width=1000, k=100, policy=policy or "direct", options=Options(tie_break=tie_break)
            )
            made = replace(made, capacity=capacity)
            scans.append(int(ksieve.topk(scores, plan=made, return_stats=True, backend=backend)[1].scans[0]))
        assert [n - scans[0] for n in scans] == [0, 0, more], (policy, capacity)


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_windows_read_nothing_else(backend, dtype):
    """Windows at every offset of a 16-byte load; what is outside them would win."""
    rows, width, k = 40, 3000, 33
    dense = scores_of("normal", rows, width, k, dtype)
    call = {"starts": np.arange(rows, dtype=np.int32), "ends": (width - 2 * np.arange(rows)).astype(np.int32)}
    best = {"float32": np.inf, "float16": np.inf, "bfloat16": 0x7F80}[dtype]
    for row in range(rows):
        dense[row, :row], dense[row, width - 2 * row :] = best, best
    before = dense.copy()
    for policy in ("direct", "paper-64"):
        answer = serve_on(backend, dense, k, {**call, "index_base": "start"}, policy=policy)
        assert_served(dense, k, {**call, "index_base": "start"}, answer)
    same_bytes(dense, before)


@every_backend
def test_windows_at_the_edges(backend):
    """Starts before, at and past the end; lengths of every sign; nothing of it wraps."""
    lowest, highest = -(2**31), 2**31 - 1
    edges = np.array([lowest, -1, 0, 1, 49, 50, 51, highest], np.int64)
    starts, bounds = (a.ravel().astype(np.int32) for a in np.meshgrid(edges, edges))
    x = scores_of("normal", starts.size, 50, 9)
    for name in ("lengths", "ends"):
        for base in ("row", "start"):
            call = {"starts": starts, name: bounds, "index_base": base, "sorted": "index"}
            assert_served(x, 9, call, serve_on(backend, x, 9, call))


@every_backend
@pytest.mark.parametrize("next_n", [1, 2, 3, 8])
def test_rows_of_one_request(backend, next_n):
    """Row r of a request sees next_n - 1 - r scores less; padded rows, and lengths no request can have."""
    lengths = np.array([300, 5, 1, 0, -1, -(2**31), 2**31 - 1, 299], np.int32)
    rows = lengths.size * next_n
    x = scores_of("normal", rows, 300, 20)
    for live in (rows, rows - 1, 3, 0):
        for name in ("lengths", "ends"):
            call = {name: lengths, "next_n": next_n, "live": live, "sorted": True, "return_values": True}
            assert_served(x, 20, call, serve_on(backend, x, 20, call))
    call = {"next_n": next_n, "starts": np.zeros(rows, np.int32), "sorted": True}
    assert_served(x, 20, call, serve_on(backend, x, 20, call))


@every_backend
def test_a_k_of_each_row(backend):
    ks = np.array([0, 1, 64, 65, -1, -(2**31), 2**31 - 1, 10, 63, 64], np.int32)
    x = scores_of("few_values", ks.size, 9000, 64)
    lengths = np.array([9000, 9000, 9000, 9000, 9, 9, 9, 9, 63, 64], np.int32)
    for more in ({}, {"sorted": True, "tie_break": "high"}, {"return_values": True}):
        call = {"ks": ks, "lengths": lengths, **more}
        answer = serve_on(backend, x, 64, call, return_stats=True)
        stats = answer.pop("stats")
        assert_served(x, 64, call, answer)
        short = (np.clip(ks, 0, 64) >= lengths) | (ks <= 0)
        np.testing.assert_array_equal(stats.route == Route.SHORT, short)
        np.testing.assert_array_equal(stats.committed0[short], np.minimum(lengths, np.clip(ks, 0, 64))[short])


@every_backend
def test_sample_ranks_are_those_of_the_largest_k(backend):
    """A row of k 5 beside a maximum of 400 keeps the maximum's boundary, so one policy serves a batch."""
    x = scores_of("normal", 2, 4000, 400)
    call = {"ks": np.array([5, 400], np.int32), "return_values": True}
    answer = serve_on(backend, x, 400, call, policy="paper-64", return_stats=True)
    single = serve_on(backend, x, 400, {"return_values": True}, policy="paper-64", return_stats=True)
    np.testing.assert_array_equal(answer["stats"].tau0, single["stats"].tau0)
    np.testing.assert_array_equal(answer["stats"].admitted0, single["stats"].admitted0)
    assert (answer["indices"][0, 5:] == -1).all() and (answer["indices"][0, :5] >= 0).all()


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_bits(backend, dtype):
    """NaN payloads, both zeros and subnormals come back as they were."""
    x = scores_of("random_bits", 6, 400, 50, dtype)
    x[:, ::7] = 0x8000 if dtype == "bfloat16" else np.array(-0.0, x.dtype)
    x[:, 1::7] = 0
    call = {"return_values": True, "sorted": True, "lengths": np.array([400, 399, 60, 20, 0, -1], np.int32)}
    for k in (50, 400):
        answer = serve_on(backend, x, k, call)
        assert_served(x, k, call, answer)
        rows = np.arange(6)[:, None]
        used = answer["indices"] >= 0
        taken = x[rows, np.maximum(answer["indices"], 0)]
        same_bytes(np.ascontiguousarray(answer["values"])[used], taken[used])


@every_backend
def test_int64_indices_do_not_wrap_and_int32_do(backend):
    x = scores_of("normal", 3, 100, 10)
    offsets = np.array([2**31 - 1, -(2**31), 2**31 - 50], np.int32)
    pages = {"page_table": np.full((3, 7), 2**31 - 1, np.int32), "page_size": 16}
    for more in ({"offsets": offsets}, pages):
        for dtype in ("int32", "int64"):
            call = {"index_dtype": dtype, "return_raw": True, **more}
            assert_served(x, 10, call, serve_on(backend, x, 10, call))


@every_backend
@pytest.mark.parametrize("k", [1, 2047, 16_384])
def test_sorted_up_to_the_largest_k(backend, k):
    for family in ("normal", "few_values", "some_nan"):
        x = scores_of(family, 2, 20_000, k)
        for tie_break in ("low", "high"):
            call = {"sorted": True, "tie_break": tie_break, "return_values": True}
            assert_served(x, k, call, serve_on(backend, x, k, call))


@pytest.mark.parametrize("backend", HOST_BACKENDS)
@pytest.mark.parametrize("order", ["value", "index"])
@pytest.mark.parametrize("tie_break", ["low", "high"])
def test_a_row_has_the_same_bytes_in_any_batch(backend, order, tie_break):
    """First, last and in the middle of batches of 1 to 513 rows, under every policy and any number of threads."""
    rng = np.random.default_rng(5)
    row = rng.integers(-3, 4, 700).astype(np.float32)
    options = Options(
        windows="ends", transform="offsets", raw=True, values=True, per_row_k=True, order=order, tie_break=tie_break
    )
    want = None
    for number, rows in enumerate((1, 2, 7, 64, 513)):
        if backend == "reference" and rows > 64:
            continue
        for threads, policy in ((1, POLICIES[number]), (2, POLICIES[-1 - number])):
            plan = ksieve.plan(rows=rows, width=700, k=60, policy=policy or "direct", options=options)
            scores = rng.standard_normal((rows, 700)).astype(np.float32)
            starts, ends = rng.integers(0, 300, rows).astype(np.int32), rng.integers(300, 701, rows).astype(np.int32)
            ks, offsets = rng.integers(0, 61, rows).astype(np.int32), rng.integers(0, 9, rows).astype(np.int32)
            for at in {0, rows // 2, rows - 1}:
                scores[at], starts[at], ends[at], ks[at], offsets[at] = row, 3, 690, 50, 1000
            given = {"starts": starts, "ends": ends, "offsets": offsets, "backend": backend}
            answer = ksieve.topk(scores, k=ks, plan=replace(plan, threads=threads, capacity=64), **given)
            for at in {0, rows // 2, rows - 1}:
                found = [part[at].tobytes() for part in answer]
                want = want or found
                assert found == want, (rows, at, threads)


def test_a_thousand_runs_are_one():
    """Threads that run at once, over and over, write the same bytes."""
    scores = scores_of("few_values", 40, 4000, 100)
    plan = ksieve.plan(rows=40, width=4000, k=100, options=Options(order="value", tie_break="high", values=True))
    plan = replace(plan, threads=2)

    def run(_):
        return b"".join(part.tobytes() for part in ksieve.topk(scores, plan=plan))

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(run, range(1000)))) == 1
