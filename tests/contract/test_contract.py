"""One test or more for every line of docs/reference/contract.md, each citing the line's number."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import ksieve
import ksieve_lab
from cases import CASES, DTYPES, FAMILIES, WIDE_CASES, build, clamp, first_k, lengths_of, scores_of
from flat_calls import ask, plan_of, verified
from harness import BACKENDS, HOST_BACKENDS, model_arguments, serve_on, to_cuda, topk_on
from ksieve import ArgumentError, KsieveError, Route, VerificationError, distributed, logits
from ksieve import running as tiles
from ksieve.core.keys import widen
from ksieve.core.options import Options
from ksieve.core.policy import POLICIES as NAMED
from ksieve.model import reference
from ksieve_lab.oracle import assert_exact, assert_served
from ksieve_lab.read_counts import check_traffic
from parts import but_for

CITED: dict[str, list[str]] = {}

every_backend = pytest.mark.parametrize("backend", BACKENDS)


def cites(*ids):
    """Mark a test as the proof of contract lines."""

    def note(test):
        for line in ids:
            CITED.setdefault(line, []).append(test.__name__)
        return test

    return note


def plain(rows=6, width=500, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def test_every_line_is_cited_and_every_citation_is_a_line(root):
    text = (root / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\* \*\*(C\d+)\*\* ", text, flags=re.MULTILINE)
    assert lines == [f"C{n + 1}" for n in range(len(lines))], "numbers must be unique and in order"
    assert len(lines) > 30
    assert set(CITED) == set(lines), f"untested: {set(lines) - set(CITED)}; unwritten: {set(CITED) - set(lines)}"
    mentioned = set(re.findall(r"\bC\d+\b", text))
    assert mentioned <= set(lines)


# ---- the answer --------------------------------------------------------------------------------------------


@cites("C1", "C2", "C4", "C5", "C6", "C14", "C15")
@every_backend
@pytest.mark.parametrize("case", CASES + WIDE_CASES, ids=str)
def test_case_table(case, backend):
    inputs = build(case)
    found = topk_on(backend, inputs.scores, inputs.lengths, case.k, offset=inputs.offset)
    assert found.dtype == np.int32 and found.shape == (case.rows, case.k)
    assert_exact(inputs.scores, inputs.lengths, case.k, found)
    assert ksieve.verify(inputs.scores, inputs.lengths, found, k=case.k)


@cites("C3", "C20")
@every_backend
def test_every_slot_is_written(backend):
    scores, lengths = plain(9), lengths_of("edges", 9, 500, 40)
    out = np.full((9, 40), 123_456_789, dtype=np.int32)
    topk_on(backend, scores, lengths, 40, out=out)
    assert_exact(scores, lengths, 40, out)
    pitched = np.full((9, 64), 123_456_789, dtype=np.int32)
    if backend != "cuda":
        assert topk_on(backend, scores, lengths, 40, out=pitched[:, :40]).base is pitched
        assert_exact(scores, lengths, 40, pitched[:, :40])
        assert (pitched[:, 40:] == 123_456_789).all()


@cites("C6", "C18")
@every_backend
@pytest.mark.parametrize("policy", [None, "direct", "paper-64", "paper-128"])
def test_a_hundred_thousand_copies_at_the_boundary(backend, policy):
    rng = np.random.default_rng(6)
    row = np.full(140_001, 0.25, dtype=np.float32)
    row[rng.choice(row.size, 20_000, replace=False)] = -1.0
    row[rng.choice(row.size, 1000, replace=False)] = 2.0
    scores = np.stack([row, -row, np.zeros_like(row), np.full_like(row, np.nan)])
    assert_exact(scores, None, 2048, topk_on(backend, scores, None, 2048, policy=policy))


@cites("C7")
@every_backend
@pytest.mark.parametrize("policy", ["direct", *NAMED])
def test_any_named_policy_is_exact_on_any_backend(backend, policy):
    for family in ("normal", "sampled_high", "sampled_low", "relu_plateau", "one_coarse_bin"):
        scores = scores_of(family, 3, 40_000, 2048)
        assert_exact(scores, None, 2048, topk_on(backend, scores, None, 2048, policy=policy))


# ---- lengths and live rows ---------------------------------------------------------------------------------


@cites("C8")
@every_backend
def test_lengths_are_clamped(backend):
    scores = plain(7)
    wild = np.array([-1, -(1 << 31), 501, (1 << 31) - 1, 0, 500, 499], dtype=np.int32)
    found = topk_on(backend, scores, wild, 20)
    assert_exact(scores, [0, 0, 500, 500, 0, 500, 499], 20, found)
    assert (found[:2] == -1).all()


@cites("C9")
@every_backend
@pytest.mark.parametrize(("asked", "live"), [(0, 0), (4, 4), (6, 6), (7, 6), (-3, 0), ((1 << 31) - 1, 6)])
def test_live_rows(backend, asked, live):
    scores, out = plain(), np.full((6, 20), 77, dtype=np.int32)
    scores[live:] = np.nan
    lengths = np.full(6, 500, dtype=np.int32)
    lengths[live:] = -5
    found = topk_on(backend, scores, lengths, 20, out=out, num_rows=np.array([asked], dtype=np.int32))
    assert_exact(scores[:live], None, 20, found[:live])
    assert (found[live:] == -1).all() and (out == found).all()


# ---- the order of scores -----------------------------------------------------------------------------------


@cites("C10")
@every_backend
@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF])
def test_nan_is_last(backend, bits):
    scores = np.full((2, 300), -np.inf, dtype=np.float32)
    scores.view(np.uint32)[:, ::2] = bits
    found = topk_on(backend, scores, None, 150)
    assert (found % 2 == 1).all()
    found = topk_on(backend, scores, None, 151)
    assert ((found % 2 == 0).sum(axis=1) == 1).all()
    assert_exact(scores, None, 151, found)


@cites("C11")
@every_backend
def test_zeros_are_equal(backend):
    """Neither zero is preferred over a better score, and together they are one plateau."""
    scores = np.where(np.arange(400) % 3 == 0, -0.0, 0.0).astype(np.float32)[None].repeat(2, axis=0)
    scores[0, 7], scores[1, 7] = 1e-45, -1e-45
    found = topk_on(backend, scores, None, 399)
    assert 7 in found[0] and 7 not in found[1]
    assert ksieve.verify(scores[:, :6], None, np.array([[0], [1]]))
    assert ksieve.verify(scores[:, :6], None, np.array([[1], [0]]))


@cites("C12")
@every_backend
def test_infinities_and_subnormals_are_numbers(backend):
    ladder = np.array(
        [np.inf, 3.4e38, 1.0, 1.2e-38, 3e-45, 1.4e-45, 0, -1.4e-45, -3e-45, -1.2e-38, -1, -3.4e38, -np.inf]
    )
    scores = np.random.default_rng(0).permutation(ladder).astype(np.float32)[None]
    for k in range(1, ladder.size):
        found = topk_on(backend, scores, None, k)
        assert sorted(scores[0, found[0]], reverse=True) == ladder[:k].astype(np.float32).tolist()


@cites("C13")
@every_backend
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_scores_are_compared_exactly(backend, dtype):
    for family in FAMILIES:
        scores = scores_of(family, 3, 700, 33, dtype)
        assert_exact(scores, None, 33, topk_on(backend, scores, None, 33))
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    every = np.random.default_rng(1).permutation(every)[None]
    every = every.view(np.float16) if dtype == "float16" else every
    for k in (1, 1000, 40_000):
        assert_exact(every, None, k, topk_on(backend, every, None, k))


# ---- memory ------------------------------------------------------------------------------------------------


@cites("C15")
@every_backend
@pytest.mark.parametrize("width", [1, 3, 127, 1025, 33_333])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_any_pitch_width_and_base(backend, width, dtype):
    dense = scores_of("normal", 3, width, 10, dtype)
    for offset in range(4):
        for gap in (0, 1, 3):
            held = np.zeros(offset + 3 * (width + gap), dtype=dense.dtype)
            scores = held[offset:].reshape(3, width + gap)[:, :width]
            scores[...] = dense
            assert_exact(dense, None, 10, topk_on(backend, scores, None, 10, offset=offset))


@cites("C15")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_host_arrays_may_start_at_any_byte(backend, dtype):
    dense = scores_of("normal", 3, 40_000, 500, {4: "float32"}.get(np.dtype(dtype).itemsize, "bfloat16")).view(dtype)
    odd = np.frombuffer(b"\0" + dense.tobytes(), dtype=dtype, offset=1).reshape(dense.shape)
    assert not odd.flags.aligned
    assert_exact(dense, None, 500, topk_on(backend, odd, None, 500))


@cites("C16")
@every_backend
@pytest.mark.parametrize("garbage", [np.inf, np.nan, 1e30])
def test_what_is_not_valid_does_not_matter(backend, garbage):
    held = np.full((5, 40_010), garbage, dtype=np.float32)
    lengths = np.array([40_000, 39_999, 17, 33_333, 0], dtype=np.int32)
    for row, length in zip(held, lengths, strict=True):
        row[:length] = np.random.default_rng(length).standard_normal(length)
    scores = held[:, :40_000]
    live = np.array([4], dtype=np.int32)
    found = topk_on(backend, scores, lengths, 512, num_rows=live)
    assert_exact(scores[:4], lengths[:4], 512, found[:4])


@cites("C17")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_inputs_are_not_written(backend):
    scores, lengths, live = plain(), lengths_of("edges", 6, 500, 20), np.array([5], dtype=np.int32)
    for array in (scores, lengths, live):
        array.flags.writeable = False  # writing would raise or crash; the copies catch a kernel that does neither
    before = [a.copy() for a in (scores, lengths, live)]
    topk_on(backend, scores, lengths, 20, num_rows=live)
    for array, copy in zip((scores, lengths, live), before, strict=True):
        assert array.tobytes() == copy.tobytes()


@cites("C17")
@pytest.mark.gpu
def test_inputs_are_not_written_on_cuda():
    scores, lengths = plain(), lengths_of("edges", 6, 500, 20)
    device = to_cuda(scores), to_cuda(lengths)
    ksieve.topk(*device, 20)
    assert device[0].cpu().numpy().tobytes() == scores.tobytes()
    assert device[1].cpu().numpy().tobytes() == lengths.tobytes()


MEMORY_PROBE = """
import json, re, sys
from pathlib import Path
import numpy as np
import ksieve
import ksieve_lab
from cases import scores_of

def resident(field):
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(field + r":\\s+(\\d+) kB", status)[1]) * 1024

def grown(call):
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before

rows, width, k = 2, 2_000_000, 2048
plan = ksieve.plan(rows=rows, width=width, k=k)
out = np.zeros((rows, k), dtype=np.int32)
ksieve.topk(np.zeros((2, 50_000), dtype=np.float32), k=100)
peaks = {"a held frontier": grown(lambda: np.ones(width, dtype=np.int32))}
for family in sys.argv[1:]:
    scores = scores_of(family, rows, width, k)
    peaks[family] = grown(lambda: ksieve.topk(scores, plan=plan, out=out))
    assert ksieve.verify(scores, None, out), family
print(json.dumps([plan.device.threads, peaks]))
"""


@cites("C18")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_memory_of_the_cpu_backend_is_bounded_by_the_plan():
    """256 KiB a thread at k <= 2048: for random rows, and for frontiers of millions that nothing could hold.

    Tracing cannot see what compiled code allocates, so a process reads its own peak; glibc is told to give
    every buffer its own pages, or memory freed earlier would hide what is allocated.
    """
    families = ("normal", "all_equal", "one_coarse_bin", "relu_plateau", "sampled_low")
    folder = ROOT / "tests" / "support"
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "PYTHONPATH": str(folder)}
    result = subprocess.run(
        [sys.executable, "-c", MEMORY_PROBE, *families],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    threads, peaks = json.loads(result.stdout)
    if peaks.pop("a held frontier") < 6 << 20:
        pytest.skip("this system's peak-memory counter does not follow allocations")
    # A mebibyte over the promise for what Python and the kernel's page accounting themselves add.
    assert max(peaks.values()) <= threads * 256 * 1024 + (1 << 20), peaks


@cites("C19")
@every_backend
@pytest.mark.parametrize(
    ("rows", "width", "k"), [(0, 100, 5), (3, 0, 5), (0, 0, 1), (5, 1, 1), (3, 100, 1), (2, 10, 500), (2, 1, 1 << 20)]
)
def test_extreme_shapes(backend, rows, width, k):
    scores = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    found = topk_on(backend, scores, None, k)
    assert found.shape == (rows, k)
    assert_exact(scores, None, k, found)


@cites("C19")
@every_backend
@pytest.mark.extended
def test_largest_k_on_a_longer_row(backend):
    k = 1 << 20
    scores = scores_of("normal", 1, k + 100_001, k)
    assert_exact(scores, None, k, topk_on(backend, scores, None, k))


@cites("C20")
def test_results_belong_to_the_callers_library():
    torch = pytest.importorskip("torch")
    scores = torch.from_numpy(plain())
    found = ksieve.topk(scores, k=20)
    assert isinstance(found, torch.Tensor) and found.dtype == torch.int32 and found.device == scores.device
    out = torch.empty((6, 20), dtype=torch.int32)
    assert ksieve.topk(scores, k=20, out=out) is out and torch.equal(out, found)
    assert type(ksieve.topk(plain(), k=20)) is np.ndarray


# ---- cost --------------------------------------------------------------------------------------------------


@cites("C21", "C22")
@every_backend
@pytest.mark.parametrize("shape", [(3, 3001, 100), (3, 40_000, 2048), (2, 131_072, 2048)], ids=str)
def test_cost_of_any_family(backend, shape):
    rows, width, k = shape
    for family in FAMILIES:
        scores = scores_of(family, rows, width, k)
        plan = ksieve.plan(rows=rows, width=width, k=k, device="cuda" if backend == "cuda" else "cpu")
        _, stats = topk_on(backend, scores, None, plan=plan, stats=True)
        traffic = check_traffic(
            stats,
            [width] * rows,
            plan.policy,
            splits=plan.splits,
            resident_width=plan.resident_width,
            family=plan.family,
        )
        assert traffic.ok, (family, str(traffic))
        assert (stats.scans <= 7).all(), family
        fits = (stats.route == Route.CERTIFIED) & (stats.frontier0 <= plan.capacity)
        assert (stats.scans[fits] == 1).all(), family


@cites("C23")
@every_backend
@pytest.mark.parametrize("case", WIDE_CASES[::2], ids=str)
def test_statistics_are_the_models_on_wide_rows(case, backend):
    inputs = build(case)
    device = "cuda" if backend == "cuda" else "cpu"
    plan = ksieve.plan(rows=case.rows, width=case.width, k=case.k, pitch=inputs.pitch, dtype=case.dtype, device=device)
    lengths = clamp(inputs.lengths, case.rows, case.width)
    _, model = reference.select(inputs.scores, lengths, case.k, **model_arguments(plan))
    _, found = topk_on(backend, inputs.scores, inputs.lengths, plan=plan, offset=inputs.offset, stats=True)
    np.testing.assert_array_equal(found.raw, model.raw)


# ---- errors ------------------------------------------------------------------------------------------------


@cites("C24", "C25")
@pytest.mark.parametrize("backend", ["auto", *HOST_BACKENDS])
def test_errors_name_the_argument_and_write_nothing(backend):
    out = np.full((6, 20), 7, dtype=np.int32)
    bad = {
        "lengths": ({"lengths": np.zeros(6, np.int16)}, "dtype int16; takes dtype int32 or int64: ", "lengths.astype"),
        "k": ({"k": -1}, "-1; takes an int from 0 to 1048576", ""),
        "policy": ({"policy": "fast"}, "'fast'; takes a SamplingPolicy or one of", ""),
        "workspace": ({"workspace": out}, "numpy.ndarray, which is not taken on the CPU", ""),
    }
    for name, (options, told, remedy) in bad.items():
        with pytest.raises(ArgumentError) as error:
            ask(plain(), backend=backend, out=out, **{"k": 20, **options})
        assert isinstance(error.value, ValueError) and isinstance(error.value, KsieveError)
        assert error.value.message == str(error.value) and str(error.value).startswith(f"{name}: got {told}")
        assert error.value.remedy.startswith(remedy)
    assert (out == 7).all()


@cites("C25")
@pytest.mark.gpu
def test_errors_on_cuda_write_nothing():
    torch = pytest.importorskip("torch")
    scores, out = to_cuda(plain()), torch.full((6, 20), 7, dtype=torch.int32, device="cuda")
    for options in ({"lengths": torch.zeros(6, dtype=torch.int16, device="cuda")}, {"policy": "fast"}, {"k": -1}):
        with pytest.raises(ArgumentError):
            ask(scores, out=out, **{"k": 20, **options})
    assert bool((out == 7).all())


@cites("C27")
def test_arrays_that_could_be_misread_are_refused():
    torch = pytest.importorskip("torch")
    x = plain()
    for scores in (np.ma.masked_less(x, 0), x.astype(">f4"), x[:, ::2], x.T, torch.from_numpy(x).to_sparse()):
        with pytest.raises(ArgumentError, match=r"^scores: "):
            ksieve.topk(scores, k=20)


@cites("C27")
@pytest.mark.gpu
def test_devices_may_not_mix():
    with pytest.raises(ArgumentError, match=r"^lengths: got device cpu; takes the scores' device, cuda:0"):
        ksieve.topk(to_cuda(plain()), np.zeros(6, dtype=np.int32), 20)
    with pytest.raises(ArgumentError, match=r"^lengths: got device cuda:0; takes the scores' device, cpu"):
        ksieve.topk(plain(), to_cuda(np.zeros(6, dtype=np.int32)), 20)


# ---- plans -------------------------------------------------------------------------------------------------


@cites("C28")
def test_equal_facts_give_equal_plans():
    facts = {"rows": 512, "width": 131_072, "k": 2048, "pitch": 131_080, "dtype": "bfloat16"}
    one, two = plan_of(**facts), plan_of(**facts)
    assert one == two and hash(one) == hash(two) and str(one) == str(two) and one.reason
    with pytest.raises(AttributeError):
        one.capacity = 5


@cites("C29")
@every_backend
def test_a_plan_serves_smaller_calls_and_refuses_larger_ones(backend):
    device = "cuda" if backend == "cuda" else "cpu"
    plan = ksieve.plan(rows=8, width=40_000, k=512, device=device)
    for rows, width in ((8, 40_000), (3, 40_000), (8, 700), (1, 1), (0, 10)):
        scores = plain(rows, width)
        assert_exact(scores, None, 512, topk_on(backend, scores, None, plan=plan))
    for scores, why in (
        (plain(9, 100), "rows 9"),
        (plain(1, 40_001), "width 40001"),
        (plain(2, 100).astype(np.float16), "dtype float16"),
    ):
        with pytest.raises(ArgumentError, match=rf"^plan: got .*{why}"):
            topk_on(backend, scores, None, plan=plan)


@cites("C30")
@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 8192, 512), (64, 131_072, 2048), (2, 524_288, 2048)], ids=str)
def test_a_planned_call_is_captured_and_replayed(shape):
    torch = pytest.importorskip("torch")
    rows, width, k = shape
    plan = ksieve.plan(rows=rows, width=width, k=k, device="cuda")
    workspace = plan.workspace()
    scores, lengths = to_cuda(plain(rows, width)), torch.full((rows,), width, dtype=torch.int32, device="cuda")
    live = torch.tensor([rows], dtype=torch.int32, device="cuda")
    out = torch.empty((rows, k), dtype=torch.int32, device="cuda")

    def call():
        ksieve.topk(scores, lengths, plan=plan, workspace=workspace, out=out, num_rows=live)

    def allocations():
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    call()
    before = allocations()
    call()
    assert allocations() == before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for seed in range(3):
        fresh = plain(rows, width, seed=seed + 1)
        ragged = lengths_of("ragged", rows, width, k, seed=seed)
        count = rows - seed
        scores.copy_(torch.from_numpy(fresh))
        lengths.copy_(torch.from_numpy(ragged))
        live.fill_(count)
        out.fill_(99)
        graph.replay()
        found = out.cpu().numpy()
        assert_exact(fresh[:count], ragged[:count], k, found[:count])
        assert (found[count:] == -1).all()


@cites("C31")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_threads_may_call_at_once(backend):
    inputs = [scores_of(f, 4, 40_000, 512) for f in ("normal", "relu_plateau", "sampled_high", "one_coarse_bin")]
    start = threading.Barrier(len(inputs))

    def call(scores):
        start.wait()
        return [topk_on(backend, scores, None, 512) for _ in range(2)]

    with ThreadPoolExecutor(len(inputs)) as pool:
        for scores, found in zip(inputs, pool.map(call, inputs), strict=True):
            for indices in found:
                assert_exact(scores, None, 512, indices)


# ---- verification ------------------------------------------------------------------------------------------


@cites("C32")
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("sentinel", [-1, 2**31 - 1])
def test_verify_accepts_exactly_the_exact_answers(dtype, sentinel):
    """All 216 triples of the sentinel and five positions, at every length, against the definition itself."""
    scores = np.array([[1.0, 3.0, 3.0, 2.0, 9.0]], dtype=np.float32)
    for length in (0, 1, 2, 3, 4):
        for code in range(216):
            answer = [sentinel if p == 5 else p for p in (code // 36, code // 6 % 6, code % 6)]
            needed = min(length, 3)
            real = answer[:needed]
            right = all(p == sentinel for p in answer[needed:]) and all(0 <= p < length for p in real)
            right = right and len(set(real)) == needed
            if right:
                best = sorted(scores[0, :length].tolist(), reverse=True)[:needed]
                right = sorted((float(scores[0, p]) for p in real), reverse=True) == best
            verdict = ksieve.verify(scores, np.array([length]), np.array([answer], dtype=dtype), sentinel=sentinel)
            assert verdict.ok == right, (length, answer)


@cites("C32")
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_verify_on_the_device_agrees_with_the_host(dtype):
    for family in FAMILIES:
        scores = scores_of(family, 9, 3001, 64, dtype)
        lengths = lengths_of("edges", 9, 3001, 64)
        answer = first_k(scores, lengths, 64)
        answer[4, 3] = answer[4, 2]
        device = to_cuda(scores), to_cuda(lengths), to_cuda(answer)
        for given in (lengths, device[1]):
            for block_bytes in (10_000, 1 << 26):
                found = ksieve.verify(device[0], given, device[2], block_bytes=block_bytes)
                expected = ksieve.verify(scores, lengths, answer)
                assert str(found) == str(expected), family
                np.testing.assert_array_equal(found.reasons, expected.reasons)
        assert str(ksieve.verify(device[0], None, answer)) == str(ksieve.verify(scores, None, answer))


@cites("C33")
def test_a_refutation_says_where_and_why():
    scores = plain(40)
    answer = first_k(scores, None, 20)
    left = int(np.argsort(-scores[31])[20])
    answer[31, 7], out = left, int(answer[31, 7])
    verdict = ksieve.verify(scores, None, answer)
    assert verdict.rows == 40 and verdict.failed_rows.tolist() == [31]
    first = verdict.first
    assert (first.row, first.slots, first.positions) == (31, (7,), (left,))
    assert first.worst == (left, float(scores[31, left])) and first.best_left == (out, float(scores[31, out]))
    assert (verdict.nan_scores, verdict.tied_rows) == (0, 0)


@cites("C34")
def test_verify_never_holds_a_source_whole():
    class Rows:
        rows, width, largest = 300, 20_000, 0

        def rows_block(self, begin, end):
            Rows.largest = max(Rows.largest, end - begin)
            return np.stack([np.roll(np.arange(20_000, dtype=np.float32), r) for r in range(begin, end)])

    answer = np.stack([(np.arange(19_990, 20_000) + r) % 20_000 for r in range(300)])
    tracemalloc.start()
    try:
        assert ksieve.verify(Rows(), None, answer, block_bytes=400_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert Rows.largest == 5 and peak < 4_000_000  # the matrix is 24 MB


# ---- options -----------------------------------------------------------------------------------------------


def served(backend, scores, k, call, **more):
    answer = serve_on(backend, scores, k, call, **more)
    stats = answer.pop("stats", None)
    assert_served(scores, k, call, answer)
    return answer if stats is None else (answer, stats)


EDGES = np.array([-(2**31), -1, 0, 1, 99, 100, 101, 2**31 - 1], np.int64)


@cites("C35")
@every_backend
@pytest.mark.parametrize("base", ["row", "start"])
def test_windows(backend, base):
    starts, bounds = (a.ravel().astype(np.int32) for a in np.meshgrid(EDGES, EDGES))
    scores = plain(starts.size, 100)
    for call in ({"lengths": bounds}, {"ends": bounds}, {}):
        served(backend, scores, 20, {"starts": starts, "index_base": base, **call})


@cites("C35", "C15")
@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_is_a_row(backend, dtype):
    """The same statistics and scores as of the window alone, at any alignment, whatever lies outside."""
    scores = scores_of("normal", 8, 9000, 300, dtype)
    starts = np.arange(8, dtype=np.int32)
    ends = starts + np.int32(8500)
    windows = np.stack([row[s : s + 8500] for row, s in zip(scores, starts, strict=True)])
    for row, s in zip(scores, starts, strict=True):
        row[:s] = row[s + 8500 :] = 0x7F80 if dtype == "bfloat16" else np.inf
    call = {"starts": starts, "ends": ends, "index_base": "start", "deterministic": True, "values": True}
    found = serve_on(backend, scores, 300, call, policy="paper-64", stats=True)
    alone = serve_on(backend, windows, 300, {"deterministic": True, "values": True}, policy="paper-64", stats=True)
    np.testing.assert_array_equal(found["indices"], alone["indices"])
    assert found["values"].tobytes() == alone["values"].tobytes()
    np.testing.assert_array_equal(found["stats"].raw, alone["stats"].raw)


@cites("C36")
@every_backend
@pytest.mark.parametrize("next_n", [1, 2, 5])
def test_rows_of_a_request(backend, next_n):
    bounds = EDGES.astype(np.int32)
    scores = plain(bounds.size * next_n, 100)
    for call in ({"lengths": bounds}, {"ends": bounds}, {"starts": np.full(len(scores), 7, np.int32)}, {}):
        for live in (len(scores), len(scores) - 1, 0):
            served(backend, scores, 20, {"next_n": next_n, "live": live, **call})


@cites("C37")
@every_backend
def test_each_row_has_its_k(backend):
    ks = np.array([0, 1, 19, 20, 21, -5, -(2**31), 2**31 - 1], np.int32)
    answer, stats = served(backend, plain(8), 20, {"ks": ks}, stats=True)
    assert (answer["indices"][[0, 5, 6]] == -1).all()
    assert (stats.scans[[0, 5, 6]] == 0).all() and (stats.sampled[[0, 5, 6]] == 0).all()


@cites("C38", "C39")
@every_backend
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_transforms(backend, index_dtype):
    rng = np.random.default_rng(8)
    scores, lengths = plain(6), np.array([500, 499, 10, 0, -1, 501], np.int32)
    pitched = rng.integers(-(2**31), 2**31, (6, 40)).astype(np.int32)
    tables = {"page_table": pitched[:, :32], "page_size": 16}
    for more in (
        {"offsets": rng.integers(-(2**31), 2**31, 6).astype(np.int32)},
        tables,
        {**tables, "page_table": pitched[:4, :20]},
        {**tables, "row_to_request": np.array([5, 0, 6, -1, 2**31 - 1, 3], np.int32)},
        {"page_table": rng.permutation(500).astype(np.int32)[None], "row_to_request": np.zeros(6, np.int32)},
    ):
        call = {"lengths": lengths, "index_dtype": index_dtype, "raw": True, **more}
        answer = served(backend, scores, 20, call)
        plainly = topk_on(backend, scores, lengths, 20, sorted="index")
        np.testing.assert_array_equal(np.sort(answer["raw"]), np.sort(plainly))


@cites("C40")
@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_the_scores_bits(backend, dtype):
    for family in ("random_bits", "signed_zero", "subnormal", "some_nan"):
        scores = scores_of(family, 5, 400, 30, dtype)
        answer = served(backend, scores, 30, {"values": True, "lengths": np.array([400, 31, 30, 5, 0], np.int32)})
        chosen = np.take_along_axis(scores, np.maximum(answer["indices"], 0).astype(np.int64), axis=1)
        used, bits = answer["indices"] >= 0, f"u{scores.itemsize}"
        np.testing.assert_array_equal(answer["values"].view(bits)[used], chosen.view(bits)[used])


@cites("C41")
@every_backend
@pytest.mark.parametrize("order", [True, "value", "index"])
def test_slots_in_order(backend, order):
    for family in ("few_values", "some_nan", "signed_zero", "infinities", "normal"):
        scores = scores_of(family, 6, 400, 60)
        for tie_break in (None, "low", "high"):
            call = {"sorted": order, "tie_break": tie_break, "values": True}
            served(backend, scores, 60, {**call, "lengths": np.array([400, 61, 60, 59, 0, 400], np.int32)})


@cites("C42")
@every_backend
@pytest.mark.parametrize("tie_break", ["low", "high"])
@pytest.mark.parametrize("policy", but_for(["direct", "lines-64"], ["direct", *NAMED]))
def test_ties_go_to_one_end(backend, tie_break, policy):
    for family in ("all_equal", "relu_plateau", "few_values", "boundary_plateau", "all_nan"):
        for shape in ((3, 300, 40), (2, 120_000, 2048)):
            rows, width, k = shape
            scores = scores_of(family, rows, width, k)
            served(backend, scores, k, {"tie_break": tie_break, "sorted": "index"}, policy=policy)


@cites("C43")
@every_backend
def test_the_same_bytes_in_any_batch_under_any_plan(backend):
    row = scores_of("relu_plateau", 1, 70_000, 2048)
    call = {"sorted": True, "deterministic": True, "values": True}
    first = None
    for rows in (1, 2, 3, 17):
        for policy in ("direct", "paper-64", "quads-16"):
            scores = scores_of("normal", rows, 70_000, 2048)
            scores[-1] = row
            answer = serve_on(backend, scores, 2048, call, policy=policy)
            found = answer["indices"][-1].tobytes() + answer["values"][-1].tobytes()
            first = first or found
            assert found == first, (rows, policy)


@cites("C43")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_bytes_with_any_number_of_threads(threads):
    scores = scores_of("few_values", 200, 3000, 70)
    options = Options(order="index", tie_break="high", values=True)
    plan = plan_of(rows=200, width=3000, k=70, options=options)
    want = ask(scores, plan=replace(plan, threads=1), values=True)
    for _ in range(5):
        found = ask(scores, plan=replace(plan, threads=threads), values=True)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(found, want, strict=True))


@cites("C44", "C23")
@every_backend
@pytest.mark.parametrize(
    "call",
    [{"sorted": True, "values": True, "index_dtype": "int64"}, {"tie_break": "high"}, {"deterministic": True}],
    ids=lambda call: "-".join(call),
)
def test_what_options_cost(backend, call):
    """The statistics are the model's, and the model's are those of the plain call, but for one scan of a tie-break."""
    order = {"sorted": "value", "deterministic": "index"}.get(next(iter(call)), "any")
    tie_break = {"tie_break": "high", "deterministic": "low"}.get(next(iter(call)), "any")
    values = "values" in call
    options = Options(order=order, tie_break=tie_break, values=values, index_dtype="int64" if values else "int32")
    device = "cuda" if backend == "cuda" else "cpu"
    plan = plan_of(rows=3, width=40_000, k=2048, device=device, options=options)
    own = model_arguments(plan)
    most = 0
    for family in FAMILIES:
        scores = scores_of(family, 3, 40_000, 2048)
        found = serve_on(backend, scores, 2048, call, plan=plan, stats=True)["stats"]
        _, model = reference.select(scores, None, 2048, options=options, **own)
        _, plainly = reference.select(scores, None, 2048, **own)
        np.testing.assert_array_equal(found.raw, model.raw, err_msg=family)
        more = model.scans - plainly.scans
        assert ((more == 0) | (more == 1)).all() and (tie_break != "any" or not more.any()), family
        most = max(most, int(more.max()))
        model.scans[:] = plainly.scans
        np.testing.assert_array_equal(model.raw, plainly.raw, err_msg=family)
    # The CPU stores candidates by ascending position, and so needs no scan more for the lowest of equal scores.
    assert most == (tie_break == "high" or (tie_break == "low" and plan.family != "cpu"))


@cites("C45", "C29")
@every_backend
def test_a_plan_has_options(backend):
    device = "cuda" if backend == "cuda" else "cpu"
    options = Options(windows="lengths", order="value", values=True, index_dtype="int64", index_base="start")
    plan = plan_of(rows=8, width=500, k=20, device=device, options=options)
    assert plan == plan_of(rows=8, width=500, k=20, device=device, options=options) and "order='value'" in str(plan)
    scores, starts, lengths = plain(), np.arange(6, dtype=np.int32), np.full(6, 400, np.int32)
    indices, values = topk_on(backend, scores, lengths, plan=plan, starts=starts, index_base="start", values=True)
    call = {"starts": starts, "lengths": lengths, "sorted": True, "index_base": "start", "index_dtype": "int64"}
    assert_served(scores, 20, call, {"indices": indices, "values": values})
    for more, name in (
        ({"starts": None}, "windows"), ({"sorted": "index"}, "order"), ({"tie_break": "low"}, "tie_break"),
        ({"index_dtype": "int32"}, "index_dtype"), ({"offsets": starts}, "transform"), ({"raw": True}, "raw"),
        ({"next_n": 2, "lengths": lengths[:3]}, "next_n"), ({"values": False}, "values"),
    ):  # fmt: skip
        asked = {"starts": starts, "index_base": "start", "lengths": lengths, "values": True, **more}
        with pytest.raises(ArgumentError, match=rf"^plan: got a call with {name} "):
            topk_on(backend, scores, asked.pop("lengths"), plan=plan, **asked)


@cites("C24", "C25", "C26")
@pytest.mark.parametrize("backend", ["auto", *HOST_BACKENDS])
def test_outputs_are_memory_of_their_own(backend):
    held = np.zeros((6, 500), dtype=np.float32)
    slots = held.view(np.int32)[:, :20]
    fresh, before = np.full((6, 40), 7, np.int32), held.copy()
    for outputs, message in (
        ({"raw": slots}, "raw: got memory that overlaps scores"),
        ({"values": held[:, :20]}, "values: got memory that overlaps scores"),
        ({"out": fresh[:, :20], "raw": fresh[:, 19:39]}, "raw: got memory that overlaps out"),
        ({"raw": fresh[:, :20], "starts": fresh[0, :6]}, "raw: got memory that overlaps starts"),
        ({"raw": fresh[:, :20].astype(np.int64)}, "raw: got dtype int64; takes dtype int32"),
        ({"values": held[:, :20].astype(np.float16)}, "values: got dtype float16; takes dtype float32"),
    ):
        with pytest.raises(ArgumentError, match="^" + re.escape(message)):
            ask(held, k=20, backend=backend, **outputs)
    assert (fresh == 7).all() and (held == before).all()


# ---- what callers of a general top-k pass ------------------------------------------------------------------

MIXED = ("normal", "few_values", "random_bits", "mostly_nan", "infinities", "signed_zero", "all_nan")


@cites("C46", "C10", "C13")
@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest(backend, dtype):
    """The answer by sorting, and byte for byte that of the negated scores, with statistics; values are not negated."""
    for family in MIXED:
        for rows, width, k in ((6, 300, 40), (3, 40_000, 512)):
            scores = scores_of(family, rows, width, k, dtype)
            bits = np.dtype(f"u{scores.itemsize}")
            negated = (scores.view(bits) ^ bits.type(1 << (8 * scores.itemsize - 1))).view(scores.dtype)
            lengths = lengths_of("ragged", rows, width, k)
            call = {"lengths": lengths, "largest": False, "values": True}
            if width < 1000:
                for more in ({}, {"sorted": True}, {"tie_break": "high"}, {"starts": np.arange(rows, dtype=np.int32)}):
                    served(backend, scores, k, call | more)
            fixed = {"lengths": lengths, "sorted": True, "tie_break": "low"}
            found = serve_on(backend, scores, k, call | fixed, policy="paper-64", stats=True)
            other = serve_on(backend, negated, k, fixed, policy="paper-64", stats=True)
            np.testing.assert_array_equal(found["indices"], other["indices"])
            assert (found["stats"].scans <= 7).all()
            for name in ("route", "admitted0", "frontier0", "committed0", "filled", "sampled"):
                np.testing.assert_array_equal(getattr(found["stats"], name), getattr(other["stats"], name))
            unused = found["values"].view(bits)[found["indices"] < 0]
            worst = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}[dtype]
            assert (unused == worst).all()


@cites("C47", "C10")
@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_is_the_greatest_if_asked_for(backend, dtype):
    for family in MIXED:
        scores = scores_of(family, 6, 300, 40, dtype)
        lengths = lengths_of("ragged", 6, 300, 40)
        for more in ({}, {"sorted": True}, {"tie_break": "low", "sorted": "index"}, {"tie_break": "high"}):
            call = {"lengths": lengths, "nan": "highest", "values": True, **more}
            answer = served(backend, scores, 40, call)
            if more.get("sorted") is True:
                is_nan = np.isnan(widen(answer["values"]))
                assert (np.diff(is_nan.astype(int), axis=1) <= 0).all(), "NaN comes first"
        fixed = {"lengths": lengths, "deterministic": True, "largest": False}
        smallest = [serve_on(backend, scores, 40, fixed | {"nan": nan})["indices"] for nan in (None, "last", "highest")]
        assert all((found == smallest[0]).all() for found in smallest)


@cites("C48")
@every_backend
@pytest.mark.parametrize("leading", [(), (5,), (2, 3), (2, 1, 4), (1, 1, 1, 3), (0, 4), (3, 0)])
def test_scores_of_any_rank(backend, leading):
    rng = np.random.default_rng(3)
    rows = int(np.prod(leading))
    flat = rng.integers(-9, 9, (rows, 200)).astype(np.float32)
    vectors = {
        "lengths": rng.integers(-1, 210, rows).astype(np.int32),
        "starts": rng.integers(0, 50, rows).astype(np.int32),
        "offsets": rng.integers(-9, 9, rows).astype(np.int32),
    }
    ks = rng.integers(0, 9, rows).astype(np.int32)
    more = {"sorted": True, "tie_break": "low", "values": True, "raw": True, "stats": True}
    scores, shaped = flat.reshape(*leading, 200), {name: v.reshape(leading) for name, v in vectors.items()}
    bounds = [vectors.pop("lengths"), shaped.pop("lengths")]
    # A scalar array k is no array k: scores of one dimension take an int.
    several = [(7, 7, {})] + ([(ks, ks.reshape(leading), {"max_k": 8})] if leading else [])
    for k, shaped_k, most in several:
        want = topk_on(backend, flat, bounds[0], k, **vectors, **most, **more)
        found = topk_on(backend, scores, bounds[1], shaped_k, **shaped, **most, **more)
        for one, other in zip(found[:-1], want[:-1], strict=True):
            assert one.shape == (*leading, most.get("max_k", k)) and one.dtype == other.dtype
            np.testing.assert_array_equal(one.reshape(other.shape), other)
        np.testing.assert_array_equal(found[-1].raw, want[-1].raw)
        assert ksieve.verify(
            scores,
            bounds[1],
            found[2],
            k=shaped_k,
            bounds=ksieve.RowBounds(starts=shaped["starts"]),
            sorted=True,
            tie_break="low",
        )
    out = np.full((*leading, 7), 99, np.int32)
    topk_on(backend, scores, None, 7, out=out, deterministic=True)
    np.testing.assert_array_equal(out.reshape(rows, 7), topk_on(backend, flat, None, 7, deterministic=True))


@cites("C48")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_leading_dimensions_collapse_without_a_copy_or_are_refused(backend):
    x = plain(24, 50).reshape(2, 3, 4, 50)
    padded = np.zeros((2, 3, 4, 64), np.float32)
    padded[..., :50] = x
    wide = np.full((2, 3, 4, 9), 99, np.int32)
    found = ask(padded[..., :50], k=5, sorted=True, out=wide[..., :5], backend=backend)
    assert found.base is wide and (wide[..., 5:] == 99).all()
    np.testing.assert_array_equal(found, ask(x, k=5, sorted=True, backend=backend))
    request = ask(x, np.full((2, 3, 2), 50, np.int32), 5, next_n=2, sorted=True, backend=backend)
    again = ask(x, np.full(12, 50, np.int32), 5, next_n=2, sorted=True, backend=backend)
    np.testing.assert_array_equal(request, again)
    torch = pytest.importorskip("torch")
    many = padded.reshape(2, 3, 2, 2, 64)[:, :2, :1]
    for bad, remedy in ((many, "np.ascontiguousarray"), (torch.from_numpy(x)[:, :2, :3], "contiguous()")):
        with pytest.raises(ArgumentError, match=rf"^scores: got shape .* at most two.*: .*{re.escape(remedy)}"):
            ask(bad, k=5, backend=backend)
    for name, array in (
        ("lengths", np.zeros(24, np.int32)),
        ("starts", np.zeros((2, 12), np.int32)),
        ("out", np.zeros((24, 5), np.int32)),
    ):
        with pytest.raises(ArgumentError, match=rf"^{name}: got shape .*takes shape \(2, 3, 4"):
            ask(x, k=5, backend=backend, **{name: array})


@cites("C49", "C15")
@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_all_the_same_one(backend, dtype):
    """As in one row searched in many windows; the result is that of copies of it."""
    one = scores_of("few_values", 1, 3001, 64, dtype)
    same = np.lib.stride_tricks.as_strided(one, (9, 3001), (0, one.itemsize))
    call = {
        "starts": np.arange(9, dtype=np.int32) * 50, "ends": np.arange(9, dtype=np.int32) * 350, "sorted": True,
        "tie_break": "high", "values": True,
    }  # fmt: skip
    answer = served(backend, same, 64, call)
    copies = serve_on(backend, np.ascontiguousarray(same), 64, call)
    assert all(answer[name].tobytes() == copies[name].tobytes() for name in answer)
    assert_exact(same, None, 64, topk_on(backend, same, None, 64))
    assert ksieve.plan(rows=9, width=3001, k=64, pitch=0).policy == ksieve.plan(rows=9, width=3001, k=64).policy


@cites("C49", "C26")
def test_rows_of_scores_may_overlap_and_those_of_outputs_may_not():
    x = plain(1)
    for pitch in (1, 499, -7):
        rows = np.lib.stride_tricks.as_strided(plain(9).reshape(-1)[1000:], (4, 500), (4 * pitch, 4))
        np.testing.assert_array_equal(
            ksieve.topk(rows, k=3, sorted=True), ksieve.topk(np.ascontiguousarray(rows), k=3, sorted=True)
        )
    with pytest.raises(ArgumentError, match=r"^out: got strides .*do not overlap"):
        ksieve.topk(np.tile(x, (4, 1)), k=3, out=np.lib.stride_tricks.as_strided(np.zeros(3, np.int32), (4, 3), (0, 4)))
    with pytest.raises(ArgumentError, match=r"^pitch: got 499"):
        ksieve.plan(rows=4, width=500, k=3, pitch=499)


@cites("C50", "C8")
@every_backend
@pytest.mark.parametrize("next_n", [1, 3])
def test_lengths_of_64_bits(backend, next_n):
    """Numbers beyond 32 bits, whose low halves are other lengths."""
    bounds = np.array([-(2**63), -(2**32) + 5, -1, 0, 5, 499, 500, 501, 2**31, 2**32 + 7, 2**63 - 1], np.int64)
    near = np.clip(bounds, -1000, 1000).astype(np.int32)
    scores = plain(bounds.size * next_n)
    starts = np.arange(len(scores), dtype=np.int32) * 3
    for name in ("lengths", "ends"):
        for more in ({}, {"starts": starts}):
            call = {"next_n": next_n, "deterministic": True, **more}
            found = served(backend, scores, 20, call | {name: bounds, "sorted": "index", "tie_break": "low"})
            other = serve_on(backend, scores, 20, call | {name: near})
            np.testing.assert_array_equal(found["indices"], other["indices"])


@cites("C50", "C45")
@every_backend
def test_a_plan_has_a_dtype_of_lengths(backend):
    device = "cuda" if backend == "cuda" else "cpu"
    lengths = np.full(6, 9, np.int64)
    options = Options(length_dtype="int64")
    plans = [plan_of(rows=6, width=500, k=20, device=device, options=o) for o in (Options(), options)]
    np.testing.assert_array_equal(
        np.sort(topk_on(backend, plain(), lengths, plan=plans[1])),
        np.sort(topk_on(backend, plain(), lengths.astype(np.int32), plan=plans[0])),
    )
    topk_on(backend, plain(), None, plan=plans[1])
    for given, plan, got in ((lengths, plans[0], "int64"), (lengths.astype(np.int32), plans[1], "int32")):
        with pytest.raises(ArgumentError, match=rf"^plan: got a call with length_dtype '{got}' \(lengths or ends\)"):
            topk_on(backend, plain(), given, plan=plan)


@cites("C51", "C9")
@every_backend
def test_a_live_row_count_on_the_host(backend):
    scores, lengths = plain(9), lengths_of("ragged", 9, 500, 40)
    for count in (-5, 0, 1, 8, 9, 10, 2**70, np.int64(3), np.uint8(2)):
        array = np.array([min(max(int(count), -100), 100)], np.int32)
        for more in ({}, {"values": True, "index_dtype": "int64"}):
            asked = more | {"deterministic": True, "stats": True}
            found, want = (topk_on(backend, scores, lengths, 40, num_rows=n, **asked) for n in (count, array))
            for one, other in zip(found[:-1], want[:-1], strict=True):
                assert one.tobytes() == other.tobytes()
            assert len(found[-1]) == len(want[-1]) == min(max(int(count), 0), 9)


@cites("C52", "C19", "C25")
@every_backend
@pytest.mark.parametrize("leading", [(), (6,), (2, 3)])
def test_no_slots(backend, leading):
    rows = int(np.prod(leading))
    scores = plain(rows).reshape(*leading, 500)
    shape, lengths = (*leading, 0), np.full(leading, 9, np.int32)
    assert topk_on(backend, scores, lengths, 0).shape == shape
    call = {"values": True, "raw": True, "index_dtype": "int64", "stats": True, "num_rows": rows}
    for more in ({}, {"sorted": True, "tie_break": "high", "largest": False}):
        indices, values, raw, stats = topk_on(backend, scores, lengths, 0, **call, **more)
        assert indices.shape == values.shape == raw.shape == shape
        assert indices.dtype == raw.dtype == np.int64 and values.dtype == np.float32
        _, model = reference.select(scores.reshape(rows, 500), None, 0, policy=None)
        np.testing.assert_array_equal(stats.raw, model.raw)
    live = np.array([rows // 2], np.int32)
    assert len(topk_on(backend, scores, None, 0, num_rows=live, stats=True)[1]) == rows // 2
    out = np.zeros(shape, np.int32)
    assert topk_on(backend, scores, None, 0, out=out).shape == shape
    assert ksieve.verify(scores, lengths, out)
    if leading:
        assert topk_on(backend, scores, None, np.ones(leading, np.int32), max_k=0).shape == shape
    for bad in ({"lengths": np.zeros(99, np.int32)}, {"policy": "fast"}, {"sorted": "best"}, {"out": lengths}):
        with pytest.raises(ArgumentError, match=f"^{next(iter(bad))}: "):
            topk_on(backend, scores, bad.pop("lengths", None), 0, **bad)
    with pytest.raises(ArgumentError, match=r"^k: got 0; takes an int from 1 to 1048576: ksieve.topk\(..., k=0\)"):
        ksieve.plan(rows=1, width=9, k=0)


@cites("C53", "C19")
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_order_of_many_slots(backend):
    for family, dtype in zip(("normal", "few_values", "mostly_nan"), DTYPES, strict=True):
        scores = scores_of(family, 3, 60_000, 20_000, dtype)
        lengths = np.array([60_000, 20_001, 19_999], np.int32)
        for asked in ({"sorted": True}, {"tie_break": "high"}, {"sorted": True, "tie_break": "high", "largest": False}):
            found = topk_on(backend, scores, lengths, 20_000, **asked)
            assert verified(scores, lengths, found, k=20_000, **asked), (family, asked)
    short = topk_on(backend, plain(2, 100), None, 1 << 20, deterministic=True)
    assert (short[:, :100] == np.arange(100)).all() and (short[:, 100:] == -1).all()


@cites("C54")
def test_values_carry_the_gradient_of_the_selected_scores():
    torch = pytest.importorskip("torch")
    scores = torch.from_numpy(scores_of("few_values", 4, 300, 20, "float32")).requires_grad_()
    lengths = torch.tensor([300, 10, 0, 21], dtype=torch.int32)
    indices, values = ask(scores, lengths, 20, values=True, largest=False)
    weights = torch.arange(80.0).reshape(4, 20) + 1
    (values.clamp(max=1e9) * weights).sum().backward()
    expected = torch.zeros_like(scores)
    for row, slots in enumerate(indices.tolist()):
        for slot, index in enumerate(slots):
            if index >= 0:
                expected[row, index] = weights[row, slot]
    assert torch.equal(scores.grad, expected)
    with pytest.raises(ArgumentError, match=r"^values: "):
        ask(scores, lengths, 20, values=torch.zeros(4, 20, requires_grad=True))


@cites("C55")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_positions_are_written_and_decide(backend):
    scores = scores_of("few_values", 5, 300, 20)
    rng = np.random.default_rng(0)
    positions = np.stack([rng.permutation(10_000)[:300] for _ in range(5)]).astype(np.int32)
    positions[rng.random(positions.shape) < 0.3] = -1
    scores[positions < 0] = np.inf
    asked = {"positions": positions, "sorted": "index", "tie_break": "high", "values": True}
    found, values = topk_on(backend, scores, None, 20, **asked)
    for row, (slots, held) in enumerate(zip(found.tolist(), values.tolist(), strict=True)):
        score = dict(zip(positions[row].tolist(), scores[row].tolist(), strict=True))
        best = sorted((p for p in score if p >= 0), key=lambda p, score=score: (-score[p], -p))[:20]
        assert slots == sorted(best) and held == [score[p] for p in slots]


@cites("C56")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_used_slots_are_counted(backend):
    counts = np.full(4, 77, np.int32)
    call = {"counts": counts, "num_rows": np.array([3], np.int32), "page_table": np.zeros((1, 1), np.int32)}
    topk_on(backend, plain(4), np.array([500, 3, -1, 9], np.int32), 20, **call)
    assert counts.tolist() == [20, 3, 0, 0]
    topk_on(backend, plain(4), None, np.array([0, 5, 30, -1], np.int32), max_k=20, counts=counts)
    assert counts.tolist() == [0, 5, 20, 0]
    topk_on(backend, plain(4), None, 0, counts=counts)
    assert counts.tolist() == [0] * 4


@cites("C56")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_slots_that_are_not_used_need_not_be_written(backend):
    """This package's own ones on the CPU are; what they hold says nothing, so that `verify` does not read them."""
    counts, lengths = np.zeros(3, np.int32), np.array([500, 3, 0], np.int32)
    found = topk_on(backend, plain(3), lengths, 20, counts=counts, fill=False)
    found = np.where(np.arange(20) < counts[:, None], found, 7)
    assert ksieve.verify(plain(3), lengths, found, counts=counts)
    assert not ksieve.verify(plain(3), lengths, found)
    for wrong, reason in (([19, 3, 0], "slot 19 holds the sentinel"), ([20, 4, 0], "slot 3 holds")):
        verdict = ksieve.verify(plain(3), lengths, found, counts=np.array(wrong))
        assert not verdict and reason in str(verdict), str(verdict)
    found = topk_on(backend, plain(3), lengths, 20)
    for row, wrong in ((1, [20, 4, 0]), (0, [21, 3, 0]), (2, [20, 3, -1])):
        first = ksieve.verify(plain(3), lengths, found, counts=np.array(wrong)).first
        assert first and (first.row, str(first.reason)) == (row, "miscounted")
    for given in ({"fill": False}, {"fill": 1, "counts": counts}):
        with pytest.raises(ArgumentError, match=r"^fill: got "):
            topk_on(backend, plain(3), lengths, 20, **given)
    with pytest.raises(ArgumentError, match=r"^counts: got shape \(2,\)"):
        ksieve.verify(plain(3), lengths, found, counts=counts[:2])
    asked = {"rows": 3, "width": 500, "k": 20, "device": "cpu", "options": Options(counts=True)}
    with pytest.raises(ArgumentError, match=r"got a call with filled False \(fill\); takes filled True"):
        topk_on(backend, plain(3), lengths, None, plan=plan_of(**asked), counts=counts, fill=False)


@cites("C57", "C58")
@pytest.mark.parametrize("layout", [distributed.Contiguous(), distributed.Interleaved(64)], ids=str)
def test_any_number_of_ranks_gives_the_same(layout):
    """In the simulator; tests/unit/distributed runs processes, and their faults."""
    pytest.importorskip("torch")
    lengths = np.array([700, 30, 0, 699], np.int32)
    for family, dtype in zip(("few_values", "some_nan", "random_bits"), DTYPES, strict=True):
        scores = scores_of(family, 4, 700, 90, dtype)
        whole = ksieve.topk(scores, lengths, 90, deterministic=True)
        for schedule in (distributed.Pairs(), distributed.Samples(8), distributed.Digits(8)):
            for world in (1, 2, 5, 16):
                call = {"world": world, "layout": layout, "schedule": schedule, "output": "global"}
                found = ksieve_lab.simulate(scores, lengths, 90, **call)
                assert found.everywhere.astype(np.int32).tobytes() == whole.tobytes()
                other = ksieve_lab.simulate(np.zeros_like(scores), None, 90, **call)
                assert other.messages == found.messages


@cites("C59", "C10", "C11", "C46", "C47")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_ranked_by_their_best_score(backend, dtype):
    for family in ("normal", "some_nan", "signed_zero", "all_equal", "infinities"):
        for ranking in ({}, {"largest": False}, {"nan": "highest"}):
            scores = scores_of(family, 3, 331, 20, dtype)
            call = {"lengths": np.array([331, 325, 5], np.int32), "block_size": 6, "deterministic": True}
            served(backend, scores, 20, call | {"values": True} | ranking)


@cites("C60")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_a_window_that_begins_inside_a_block(backend):
    scores, starts = np.array([[9, 9, 1, 2, 3, 4, 5, 6, 9]], np.float32), np.array([2], np.int32)
    ends = np.array([8], np.int32)
    call = {"starts": starts, "ends": ends, "block_size": 4, "sorted": True, "values": True}
    for base, numbers, values in (("row", [1, 0], [6, 2]), ("start", [1, 0], [6, 4])):
        found, held = topk_on(backend, scores, None, 2, index_base=base, **call)
        assert found.tolist() == [numbers] and held.tolist() == [values]
    positions = topk_on(backend, scores, None, 2, expand=4, **call)[0]
    assert positions.tolist() == [[4, 5, 6, 7, 2, 3, -1, -1]]
    local = topk_on(backend, scores, None, 2, expand=4, index_base="start", **call)[0]
    assert local.tolist() == [[4, 5, 0, 1, 2, 3, -1, -1]]


@cites("C61")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_forced_entries_rank_above_all_others(backend):
    scores = np.array([[0, 5, 3, 9, 4, np.nan]], np.float32)
    both = {"force_first": 1, "force_last": 1}
    for k, call, expected in (
        (3, both, [0, 5, 3]),
        (3, both | {"forced_extra": True}, [0, 5, 3, 1, 4]),
        (3, {"force_first": 2, "forced_extra": True}, [0, 1, 3, 4, 2]),
        (2, {"force_last": 2, "tie_break": "high"}, [5, 4]),
        (np.array([1], np.int32), both | {"max_k": 2, "tie_break": "high"}, [5, -1]),
        (np.array([1], np.int32), both | {"max_k": 2, "tie_break": "low"}, [0, -1]),
        (np.array([0], np.int32), both | {"max_k": 2, "forced_extra": True}, [0, 5, -1, -1]),
        (4, {"force_first": 2, "force_last": 2, "lengths": [3]}, [0, 1, 2, -1]),
    ):
        lengths = np.array(call.pop("lengths"), np.int32) if "lengths" in call else None
        assert topk_on(backend, scores, lengths, k, sorted=True, **call).tolist() == [expected]
        ordered = topk_on(backend, scores, lengths, k, sorted="index", **call)[0]
        assert sorted(ordered[ordered >= 0]) == ordered[ordered >= 0].tolist() == sorted(e for e in expected if e >= 0)


@cites("C62", "C56")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_selected_entries_are_written_as_positions(backend):
    scores, counts = np.array([[0, 5, 3, 9, 4, 7, 1]], np.float32), np.zeros(1, np.int32)
    call = {"sorted": True, "counts": counts}
    found = topk_on(backend, scores, None, 3, block_size=3, expand=3, force_last=1, **call)
    assert found.tolist() == [[6, 3, 4, 5, 0, 1, 2, -1, -1]] and counts == 7
    found = topk_on(backend, scores, None, 2, expand=3, offsets=np.array([100], np.int32), **call)
    assert found.tolist() == [[109, 110, 111, 115, 116, 117]] and counts == 6
    beside = topk_on(backend, scores, None, 1, expand=2, force_first=1, forced_extra=True, **call)
    assert beside.tolist() == [[0, 1, 6, 7]]


@cites("C63", "C36")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_the_tail_stands_behind_the_entries(backend):
    scores = np.tile(np.array([0, 5, 3, 9], np.float32), (5, 1))
    tail = np.array([17, 16, 15, 3, -2], np.int32)
    found = topk_on(backend, scores, None, 2, expand=4, tail=tail, sorted=True)
    assert found.shape == (5, 11)
    used = [row[row >= 0].tolist() for row in found]
    pools = [[*range(12, 16), *range(4, 8)], [*range(4, 8), *range(8, 12)]]
    assert used == [[*pools[0], 16], pools[0], [*pools[1], 12, 13, 14], [0, 1, 2], []]
    assert all((row[len(own) :] == -1).all() for row, own in zip(found, used, strict=True))
    requests = topk_on(backend, scores[:2], None, 2, expand=4, tail=tail[:1], next_n=2, sorted=True)
    np.testing.assert_array_equal(requests, [found[1], found[0]])
    lengths = np.array([4, 3, 1, 0, 4], np.int32)
    blocks = topk_on(backend, scores, lengths, 1, block_size=2, expand=2, tail=lengths, sorted=True)
    assert blocks.tolist() == [[2, 3, -1], [0, 1, 2], [0, -1, -1], [-1] * 3, [2, 3, -1]]


@cites("C64", "C40", "C55")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_values_and_candidates_of_entries(backend):
    scores = np.array([[-0.0, 0.0, 3, 9, np.nan, 7, 1]], np.float32)
    call = {"expand": 2, "values": True, "sorted": True, "tail": np.array([7], np.int32)}
    found, values = topk_on(backend, scores, None, 3, block_size=2, **call)
    assert found.tolist() == [[2, 3, 4, 5, 0, 1, 6]]
    assert values.view(np.uint32).tolist() == [
        np.array([9, 9, 7, 7, -0.0, -0.0, -np.inf], np.float32).view(np.uint32).tolist()
    ]
    pools = np.array([[5, -1, 2**31 - 1, 0, 3, 9, 2]], np.int32)
    call = {
        "positions": pools,
        "expand": 2,
        "sorted": "index",
        "force_first": 1,
        "force_last": 1,
        "values": True,
    }
    found, values = topk_on(backend, scores, None, 3, **call)
    assert found.tolist() == [[0, 1, 4, 5, 18, 19]]
    assert values[0, :2].tolist() == [9, 9] and values[0, -2:].tolist() == [7, 7]
    statistics = [ask(scores, k=2, block_size=2, force_first=1, backend=b, stats=True)[1].raw for b in HOST_BACKENDS]
    np.testing.assert_array_equal(*statistics)


@cites("C65")
@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_positions_of_a_block_table(backend):
    scores = scores_of("few_values", 3, 60, 9)
    table = np.array([[7, 0, -1, 2**29, 3], [-5, 2**28, 1, 2, 4], [-1] * 5], np.int32)
    spread = np.repeat(table.astype(np.int64), 12, axis=1) * 12 + np.arange(60) % 12
    positions = np.where((spread < 0) | (spread >= 2**31), -1, spread).astype(np.int32)
    for call in (
        {"deterministic": True},
        {"sorted": True, "tie_break": "high"},
        {"force_last": 2, "deterministic": True},
    ):
        found = topk_on(backend, scores, None, 20, block_table=table, **call)
        np.testing.assert_array_equal(found, topk_on(backend, scores, None, 20, positions=positions, **call))
        judged = {"sorted": "index", "tie_break": "low"} if "deterministic" in call else call
        judged |= {"force_last": call.get("force_last")}
        assert verified(scores, None, found, block_table=table, **judged)
    for bad, message in (
        ({"block_table": np.zeros((3, 7), np.int32)}, "got shape (3, 7); takes shape (3, n), with n a divisor"),
        ({"block_table": np.zeros((3, 0), np.int32)}, "got shape (3, 0); takes shape (3, n)"),
        ({"block_table": table.astype(np.int64)}, "got dtype int64; takes dtype int32"),
    ):
        with pytest.raises(ArgumentError, match=f"^block_table: {re.escape(message)}"):
            topk_on(backend, scores, None, 5, **bad)
        with pytest.raises(ArgumentError, match=f"^block_table: {re.escape(message)}"):
            verified(scores, None, found, **bad)
    with pytest.raises(ArgumentError, match=r"^block_size: got 4 with positions"):
        topk_on(backend, scores, None, 5, block_table=table, block_size=4)


@cites("C71")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@every_backend
def test_segments_are_rows(backend, dtype):
    """Empty, short and long ones; bounds in front of the scores, behind them, and in front of a row's start."""
    flat = scores_of("few_values", 1, 3000, 9)[0]
    indptr = np.array([-7, 5, 5, 40, 900, 890, 2000, 3001, 4000], dtype)
    starts = np.clip(indptr[:-1].astype(np.int64), 0, 3000)
    for longest in (0, 300):
        lengths = np.maximum(np.clip(indptr[1:].astype(np.int64), 0, 3000) - starts, 0)
        lengths = np.minimum(lengths, longest or 3000)
        matrix = np.zeros((8, 3000), np.float32)
        for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            matrix[row, :length] = flat[start : start + length]
        for mean in (0, 1, 3000):
            call = {"indptr": indptr, "max_length": longest, "mean_length": mean}
            found = topk_on(backend, flat, None, 60, deterministic=True, **call)
            np.testing.assert_array_equal(
                found, topk_on(backend, matrix, lengths.astype(np.int32), 60, deterministic=True)
            )
            assert verified(flat, None, found, sorted="index", tie_break="low", **call)
        wrong = found.copy()
        wrong[5, 0] = wrong[5, 1] + 1
        assert not verified(flat, None, wrong, **call)


@cites("C72")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"lengths": np.ones(2, np.int32)}, "indptr: got an array together with lengths"),
        ({"block_size": 8}, "bounds: got Segments with Blocks"),
        ({"expand": 2}, "bounds: got Segments with Blocks"),
        ({"positions": np.zeros((2, 9), np.int32)}, "bounds: got Segments with Positions"),
        ({"scores": np.zeros((1, 9), np.float32)}, r"scores: got shape \(1, 9\); takes flat scores"),
        ({"indptr": np.zeros((1, 3), np.int32)}, r"indptr: got shape \(1, 3\); takes shape \(rows \+ 1,\)"),
        ({"indptr": np.zeros(0, np.int32)}, r"indptr: got shape \(0,\); takes shape \(rows \+ 1,\)"),
        ({"indptr": np.zeros(6, np.int32)[::2]}, "indptr: got stride 2; takes a contiguous vector"),
        ({"max_length": -1}, "max_length: got -1; takes an int from 0"),
    ],
)
def test_segments_are_refused(more, message):
    call = {"scores": np.zeros(9, np.float32), "indptr": np.array([0, 4, 9], np.int32)} | more
    scores, lengths = call.pop("scores"), call.pop("lengths", None)
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ask(scores, lengths, 2, **call)
    if call["indptr"].strides == (4,):  # a verdict reads vectors of any strides
        with pytest.raises(ArgumentError, match=f"^{message}"):
            verified(scores, lengths, np.zeros((2, 2), np.int32), **call)


# ---- tiles of columns; test_running.py and test_candidates.py have every dtype, ranking and option ----------------


@cites("C66", "C67", "C68")
def test_tiles_in_any_order():
    scores = scores_of("few_values", 4, 50, 9)
    for first, second in ((slice(0, 30), slice(30, 50)), (slice(30, 50), slice(0, 30))):
        running = ksieve.Running(4, 9, 30, tie_break="high")
        assert running.cutoff.tolist() == [-np.inf] * 4
        running.push(scores[:, first], first.start)
        before = running.finish(sorted="index")
        with pytest.raises(ArgumentError, match=r"^first_column: got 10 with 30 columns"):
            running.push(scores[:, :30], 10)
        np.testing.assert_array_equal(running.finish(sorted="index"), before)
        tile = scores[:, second].copy()
        tile[tile < running.cutoff[:, None]] = np.nan
        running.push(tile, second.start)
        right = ksieve.topk(scores, k=9, tie_break="high", sorted="index")
        np.testing.assert_array_equal(running.finish(sorted="index"), right)


@cites("C69", "C70")
def test_a_count_certifies_a_list():
    scores = np.array([[5, 1, 7, 2, 9, 3], [0, 0, 0, 0, 0, 0]], np.float32)
    running = ksieve.Running(2, 2, 6, deterministic=True)
    candidates = tiles.Candidates(running, 6, capacity=3)
    candidates.propose(scores[:, candidates.columns])
    candidates.cutoff[:] = 6, 0
    candidates.counts[:] = 2, 6
    candidates.scores[:] = [[9, 7, 0], [0, 0, 0]]
    candidates.positions[:] = [[4, 4, 0], [0, 1, 2]]
    with pytest.raises(VerificationError, match=r"^the producer's list of row 0 has a position twice"):
        candidates.certify(check=True)
    candidates.positions[0, 1] = 2
    candidates.certify(check=True)
    assert candidates.left.tolist() == [0, 6]
    assert running.finish().tolist() == [[2, 4], [-1, -1]]
    candidates.counts[0] = 1
    with pytest.raises(VerificationError, match=r"^the producer's list of row 0 counts 1"):
        candidates.certify(check=True)
    running.push(scores, 0, candidates.left)
    assert running.finish().tolist() == [[2, 4], [0, 1]]
    with pytest.raises(ArgumentError, match="certify: got tiles pushed since propose"):
        candidates.certify()


# ---- logits; test_logits.py has every dtype and option -------------------------------------------------------------


@cites("C73", "C74", "C75", "C76")
def test_logits_of_rows():
    scores = scores_of("few_values", 5, 400, 9)
    scores[:2, ::3], scores[4, 7] = -np.inf, np.nan
    best = ksieve.select(scores, k=30, sorted=True, tie_break="low", values=True)
    found = logits.statistics(scores, 30, tokens=np.ascontiguousarray(best.indices[:, ::-1]))
    assert found.positions.tolist() == best.indices.tolist() and found.values.tobytes() == best.values.tobytes()
    assert found.ranks[:4].tolist() == [[*range(29, -1, -1)]] * 4
    right = np.log(np.exp(scores[:4].astype(np.float64)).sum(axis=1))
    assert (abs(found.logsumexp[:4] - right) <= 2 * np.spacing(np.maximum(1, abs(right)).astype(np.float32))).all()
    assert found.flags.tolist() == [0, 0, 0, 0, logits.Flags.NAN]
    halves = np.log(np.array([[0.1, 0.4, 0.2, 0.3]], np.float32))
    sets = logits.kept(halves, 4, p=0.75, min_p=0.4, capacity=2)
    assert sets.tokens.tolist() == [[1, 3]] and sets.counts.tolist() == [3]
    assert logits.kept(halves, 4, p=0.75, min_p=0.4, min_p_first=True).counts.tolist() == [2]
    assert [logits.kept(halves, 2, p=0.5, joint=joint).counts.tolist() for joint in (False, True)] == [[1], [2]]
    np.testing.assert_allclose(sets.probabilities, [[4 / 9, 3 / 9]], rtol=1e-6)
    drawn = logits.sample(np.repeat(halves, 3, 0), 4, p=0.75, uniform=np.array([0.4, 0.9, np.nan], np.float32))
    assert drawn.tokens.tolist() == [1, 2, -1]
    assert drawn.flags.tolist() == [0, 0, logits.Flags.INVALID | logits.Flags.EMPTY]
    whole = np.log(np.repeat(np.arange(1, 501, dtype=np.float32), 2))[None]  # a pair of each weight, in whole numbers
    assert logits.kept(whole, p=0.25, capacity=3).tokens.tolist() == [[998, 999, 996]]
    weights = np.repeat(np.arange(500, 0, -1), 2).cumsum() / 250_500  # the running probability
    assert logits.kept(whole, p=0.25, capacity=3).counts.tolist() == [np.count_nonzero(weights < 0.25) + 1]
    assert logits.kept(whole, p=0.9, min_p=0.4995, capacity=3).counts.tolist() == [502]
    found_at = 999 ^ np.count_nonzero(weights <= 0.7) ^ 1  # by position within a pair
    assert logits.sample(whole, uniform=0.7).tokens.tolist() == [found_at]
    alone = logits.statistics(scores[2:3], 30, tokens=np.ascontiguousarray(best.indices[2:3, ::-1]))
    assert [part[0].tobytes() for part in alone] == [part[2].tobytes() for part in found]
