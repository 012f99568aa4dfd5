"""The CPU backend against the sorting oracle (indices) and the NumPy model (every statistics column)."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os

import numpy as np
import pytest
from conftest import SEED
from hypothesis import given, settings
from hypothesis import strategies as st

import ksieve
from cases import CASES, DTYPES, FAMILIES, POLICIES, build, lengths_of, scores_of
from flat_calls import ask
from ksieve.backends.cpu import runner as cpu
from ksieve.backends.cpu.rows import placed
from ksieve.core.policy import LINES_64, PAPER_64, PAPER_128, PEAK, QUADS_16, SamplingPolicy
from ksieve.core.stats import STATS_COLUMNS, Route
from ksieve.model import guess, reference
from ksieve.model.epilogue import Finish
from ksieve_lab.oracle import assert_exact

CAPACITIES = (1, 3000, 1 << 40)
"""Candidates of the model: as few as allowed (k), a few, all. `make_plan` raises them to k."""

CANARY = -7


def make_plan(scores, k, policy, capacity=16_384, held=0, threads=1):
    dtype = {"uint16": "bfloat16"}.get(scores.dtype.name, scores.dtype.name)
    plan = ksieve.plan(
        rows=scores.shape[0],
        width=scores.shape[1],
        k=k,
        dtype=dtype,
        policy="direct" if policy is None else policy,
        device=ksieve.DeviceInfo("cpu", threads=threads),
    )
    return dataclasses.replace(plan, capacity=max(capacity, k), resident_width=held)


def select(plan, scores, lengths, stats=True, pad=3):
    """Run the kernels into a poisoned output with `pad` guard columns; return indices and raw statistics."""
    rows, k = scores.shape[0], plan.problem.k
    buffer = np.full((rows, k + pad), CANARY, np.int32)
    lengths = np.full(rows, scores.shape[1], np.int32) if lengths is None else lengths
    found = cpu.run(plan, placed(scores), lengths, buffer[:, :k], stats)
    assert (buffer[:, k:] == CANARY).all(), "wrote past the end of a row of out"
    assert (found is None) == (not stats)
    return buffer[:, :k], None if found is None else found.raw


def check(scores, lengths, k, policy, capacity=16_384, held=0):
    """Exact, and equal to the model in every column; return the statistics."""
    plan = make_plan(scores, k, policy, capacity, held)
    indices, raw = select(plan, scores, lengths)
    assert_exact(scores, lengths, k, indices)
    expected = reference.select(scores, lengths, k, **cpu.model_arguments(plan, scores.shape[1]))[1].raw
    wrong = np.argwhere(raw != expected)
    assert wrong.size == 0, [(int(r), STATS_COLUMNS[c], int(raw[r, c]), int(expected[r, c])) for r, c in wrong[:5]]
    silent, none = select(plan, scores, lengths, stats=False)
    assert none is None
    np.testing.assert_array_equal(silent, indices)
    return ksieve.Stats(raw)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_table(case):
    """Every family, shape, layout and dtype of the table, under every policy."""
    inputs = build(case)
    for i, policy in enumerate(POLICIES):
        capacity, held = CAPACITIES[i % 3], (0, 3000)[i % 2]
        check(inputs.scores, inputs.lengths, inputs.k, policy, capacity, held)


@st.composite
def problems(draw):
    rows, width = draw(st.integers(0, 4)), draw(st.integers(1, 3000) | st.sampled_from((4095, 4096, 4097)))
    k = draw(st.integers(1, min(width + 3, 600)))
    family, dtype = draw(st.sampled_from(sorted(FAMILIES))), draw(st.sampled_from(DTYPES))
    dense = scores_of(family, rows, width, k, dtype, draw(st.integers(0, 1 << 20)))
    pitched = np.full((rows, width + draw(st.integers(0, 70))), 0, dense.dtype)
    pitched[:, :width] = dense
    lengths = lengths_of(draw(st.sampled_from(("none", "full", "ragged", "edges", "short"))), rows, width, k)
    group = draw(st.sampled_from((1, 2, 4, 8)))
    policy = draw(
        st.none()
        | st.builds(
            SamplingPolicy,
            name=st.just("drawn"),
            stride=st.sampled_from((1, 2, 4, 16, 64)),
            margin=st.sampled_from((0.3, 1.0, 1.5)),
            rescue_margin=st.none() | st.sampled_from((1.5, 1.75, 4.0)),
            group=st.just(group),
            peaks=st.booleans() if group % PEAK == 0 else st.just(False),
            boundary=st.sampled_from(("coarse", "exact")),
            min_rank=st.sampled_from((1, 2, 16)),
            jitter=st.booleans(),
        )
    )
    capacity, held = draw(st.sampled_from((k, 2 * k + 1, 1 << 40))), draw(st.sampled_from((0, 1000)))
    return pitched[:, :width], lengths, k, policy, capacity, held


@settings(max_examples=400)
@given(problems())
def test_property(problem):
    check(*problem)


# ---- rows that no family of the table has -----------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("policy", [None, PAPER_128])
def test_row_made_against_a_known_guess_too(policy, order):
    """The guess sees far better scores than the rest: it underfills, and sorted rows refill storage."""
    width = 150_000
    x = np.sort(np.random.default_rng(1).standard_normal(width))[::order].astype(np.float32)
    at = guess.positions(guess.state_of(SEED, 0, 0), width)
    x[at] += 100
    x = np.ascontiguousarray(x[None])
    assert at.size > 2048
    for k in (2048, at.size + 100, 8000):
        check(x, None, k, policy)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("capacity", [1, 300, 5000, 1 << 40])
def test_rows_of_nan_but_for_a_few_numbers(share, capacity):
    """A boundary that is NaN sets NaN apart: numbers are the candidates, however often the view saw NaN."""
    k, width = 400, 20_000
    numbers = int(share * k)
    rng = np.random.default_rng(12)
    bits = rng.integers(1, 1 << 23, (6, width), dtype=np.uint32) | np.uint32(0x7F800000)
    bits |= rng.integers(0, 2, bits.shape, dtype=np.uint32) << np.uint32(31)
    for r, row in enumerate(bits):
        drawn = rng.standard_normal(numbers, dtype=np.float32)
        row[rng.permutation(width)[:numbers]] = (np.float32(-np.inf) if r % 2 else drawn).view(np.uint32)
    for policy in (
        SamplingPolicy("wide", 16, margin=3.0, boundary="exact"),
        SamplingPolicy("rescued", 16, margin=3.0, rescue_margin=4.0, boundary="exact"),
        SamplingPolicy("once", 16, margin=1.0, boundary="exact", min_rank=width // 16 * 2 // 3),
        dataclasses.replace(LINES_64, stride=16),
        dataclasses.replace(LINES_64, stride=16, jitter=False),
    ):
        stats = check(bits.view(np.float32), None, k, policy, capacity)
        nan = stats.tau0 == -1
        assert nan.all() or policy.name not in ("wide", "rescued", "once")
        assert (stats.admitted0[nan] == width).all()
        assert (stats.committed0[nan] == (0 if numbers >= k else numbers)).all()
        assert (stats.frontier0[nan] == (numbers if numbers >= k else width - numbers)).all()
        assert (stats.scans[nan] == 1).all()


def test_group_wider_than_a_batch():
    x = scores_of("normal", 3, 70_001, 100)
    for peaks in (False, True):
        for jitter in (False, True):
            check(x, None, 100, SamplingPolicy("wide groups", 2, group=2048, peaks=peaks, min_rank=3, jitter=jitter))


def test_periodic_rows_are_ordinary_to_a_jittered_view():
    """What is one class of the regular view, best or worst scores alone, neither underfills nor floods a row."""
    width, k = 65_536, 512
    x = np.random.default_rng(8).standard_normal((8, width), dtype=np.float32)
    for policy in (LINES_64, QUADS_16):
        for shift, route in ((10, Route.RECOVERED), (-10, Route.CERTIFIED)):
            scores = x.copy()
            for r in range(len(x)):
                scores[r, policy.view_of_phase(policy.phase(r), width)] += shift
            regular = check(scores, None, k, dataclasses.replace(policy, jitter=False))
            jittered = check(scores, None, k, policy)
            assert set(regular.route) == {route}
            assert shift > 0 or (regular.admitted0 > width // 2).all()
            assert set(jittered.route) == {Route.CERTIFIED}
            assert (jittered.admitted0 < 10 * k).all()


# ---- layouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 2, 3, 64])
def test_misaligned_output(offset):
    """Scores may begin at any byte too: `test_host_arrays_may_start_at_any_byte` of the contract."""
    rows, width, k = 3, 5001, 300
    scores = scores_of("normal", rows, width, k)
    out = np.frombuffer(bytearray(offset + rows * k * 4), np.int32, rows * k, offset).reshape(rows, k)
    cpu.run(make_plan(scores, k, None), placed(scores), np.full(rows, width, np.int32), out, False)
    assert_exact(scores, None, k, out)


def test_rows_end_where_memory_ends():
    """The last row is followed by an unreadable page: nothing past it may be read."""
    if not hasattr(ctypes.CDLL(None), "mprotect"):
        pytest.skip("no mprotect")
    page, width = mmap.PAGESIZE, 1003
    region = mmap.mmap(-1, 3 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + 2 * page), ctypes.c_size_t(page), 0) == 0
    for size, dtype in ((4, np.float32), (2, np.float16), (2, np.uint16)):
        row = np.frombuffer(region, dtype, width, 2 * page - width * size)[None]
        row[...] = scores_of("normal", 1, width, 10, "float16" if size == 2 else "float32").view(dtype)
        check(row, None, 10, None)
        check(row, np.array([1 << 30], np.int32), 10, POLICIES[3])


# ---- threads, processes, floating-point modes ------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_makes_its_own_threads():
    x = scores_of("normal", 8, 30_000, 64)
    plan = make_plan(x, 64, PAPER_64, threads=3)
    expected = select(plan, x, None)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if (select(plan, x, None)[0] == expected).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_thread_count_follows_the_environment(monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    assert cpu.thread_count() == 3
    monkeypatch.setenv("NUMBA_NUM_THREADS", "none")
    assert 1 <= cpu.thread_count() <= (os.cpu_count() or 1)


# ---- the compiled finish ---------------------------------------------------------------------------------


OPTIONS = (
    {"sorted": True},
    {"values": True, "raw": True, "index_dtype": "int64"},
    {"page_table": np.arange(16 * 600, dtype=np.int32).reshape(16, 600), "page_size": 8},
    {"offsets": np.arange(16, dtype=np.int32), "deterministic": True},
)


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_no_row_is_finished_in_python(monkeypatch, number):
    """The model's finish holds the GIL, so that two threads took longer than one."""
    scores = np.random.default_rng(3).random((16, 4096), np.float32)
    want = ask(scores, k=20, backend="reference", **OPTIONS[number])
    finished = []
    real = Finish._write

    def write(self, rows, local):
        finished.append(rows)
        real(self, rows, local)

    monkeypatch.setattr(Finish, "_write", write)
    found = ask(scores, k=20, backend="cpu", **OPTIONS[number])
    assert not finished
    for one, other in zip(*((a if isinstance(a, tuple) else (a,)) for a in (want, found)), strict=True):
        assert np.array_equal(np.sort(one, axis=1), np.sort(other, axis=1))
