"""What a row costs the CPU backend beyond one read: scores stored and compared again, and further reads, as counted."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ksieve
from flat_calls import ask
from ksieve.backends.cpu import runner, short, simd
from ksieve.backends.cpu.rows import address_of
from ksieve.model import guess
from ksieve_lab.bench import cpu_worst_rows
from ksieve_lab.workloads.producers import PRODUCERS

MOST = 6
"""Times a random row's work that contract line C21 allows any row."""

SHAPES = [*cpu_worst_rows.SHAPES, (32_768, 100), (8192, 100), (4096, 2048)]


@pytest.mark.extended
@pytest.mark.parametrize(("width", "k"), SHAPES)
@pytest.mark.parametrize("policy", [None, "direct"])
def test_no_row_that_a_search_finds_costs_more(width: int, k: int, policy: str | None) -> None:
    plan = ksieve.plan(rows=1, width=width, k=k, policy=policy)
    found = cpu_worst_rows.search(plan, 400, seed=5)
    print(f"{width} {k}: {found.times_random:.2f}")
    assert 1 <= found.times_random <= MOST


def test_a_row_aimed_at_a_known_guess_costs_no_more_under_another_seed() -> None:
    """The guess sees far better scores than the rest, so that its cutoff admits too few, and the rest ascends."""
    width, k = 131_072, 2048
    plan = ksieve.plan(rows=1, width=width, k=k)
    row = np.sort(np.random.default_rng(1).random(width, dtype=np.float32))
    assert plan.policy is not None
    row[plan.policy.view(0, width)] -= 10
    for attempt in range(guess.MOST_GUESSES):
        row[guess.positions(guess.state_of(cpu_worst_rows.KNOWN_SEED, 0, attempt), width)] += 10
    plain = np.random.default_rng(2).random((1, width), dtype=np.float32)
    usual = runner.row_work(plan, plain, 77)[0]
    assert runner.row_work(plan, row[None], 77)[0] <= MOST * usual
    assert runner.row_work(plan, row[None], cpu_worst_rows.KNOWN_SEED)[0] > runner.row_work(plan, row[None], 77)[0]


@pytest.mark.parametrize("family", PRODUCERS)
def test_no_short_row_takes_more_passes(family: str) -> None:
    keys = np.empty(simd.SHORT, np.uint32)
    for width, k in ((100, 8), (1000, 3), (5000, 4999), (simd.SHORT, 16)):
        row, slots = PRODUCERS[family](1, width, seed=3, k=k)[0], np.empty(k, np.int32)
        passes = short.select_short(address_of(row), width, 0, address_of(slots), k, address_of(keys), 0, 0)
        assert ksieve.verify(row[None], None, slots[None]).ok
        assert passes <= 38


def test_no_answer_depends_on_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    scores = np.round(rng.standard_normal((12, 40_000)), 2).astype(np.float32)
    scores[::3].sort(axis=1)
    for options in ({}, {"tie_break": "low"}, {"tie_break": "high"}, {"sorted": True}):
        answers = []
        for seed in (0, 1, 2**62):
            monkeypatch.setattr(runner, "fresh_seed", lambda seed=seed: seed)
            answers.append(ask(scores, k=500, **options))
        np.testing.assert_array_equal(answers[0], answers[1])
        np.testing.assert_array_equal(answers[0], answers[2])


def test_seeds_come_from_the_system() -> None:
    seeds = {guess.fresh_seed() for _ in range(100)}
    assert len(seeds) == 100 and all(0 <= seed < 1 << 63 for seed in seeds)


def test_a_plan_says_what_is_stored() -> None:
    for width, k, policy in (
        (131_072, 2048, None),
        (16_384, 2048, "direct"),
        (1 << 20, 16_384, None),
        (300, 100, None),
    ):
        plan = ksieve.plan(rows=1, width=width, k=k, policy=policy)
        assert plan.capacity == runner.stored_candidates(plan, width)


COUNTED = """
import numpy as np
from ksieve.backends.cpu import simd

# Every read of a row goes through `tile_of`: here it counts the scores that it is asked for.
counter = np.zeros(1, np.int32)
address, plain = counter.ctypes.data, simd.tile_of

@simd.jit
def tile_of(row, first, last, size, convert, wide):
    simd_store(address, np.int32(simd_load(address) + np.uint32(last - first)))
    return plain(row, first, last, size, convert, wide)

simd_store, simd_load = simd.store_i32, simd.load_u32
simd.tile_of = tile_of

import ksieve
from ksieve.dispatch import select
from ksieve.model import guess
from ksieve.backends.cpu import runner
runner.fresh_seed = lambda: 1

L, k = 131_072, 2048
rng = np.random.default_rng(0)
plain_row = rng.random((1, L), dtype=np.float32)
ties = plain_row - 2
at = rng.permutation(L)
ties[0, at[:13_000]] = 0
ties[0, at[:1_000]] = 1
ascending = np.sort(plain_row[0])
for attempt in range(guess.MOST_GUESSES):
    ascending[guess.positions(guess.state_of(1, 0, attempt), L)] += 10
missed = np.sort(plain_row[0])
missed[ksieve.plan(rows=1, width=L, k=k).policy.view(0, L)] += 10
rows = {"random": plain_row, "ties": ties, "ascending": ascending[None], "missed": missed[None]}
for name, row in rows.items():
    for policy in (None, "direct"):
        for tie_break in ("low", "high"):
            counter[0] = 0
            call = (row, None, k, None, None, None, None, {"tie_break": tie_break})
            answer = select(*call, policy=policy).indices
            read = -(-int(counter[0]) // L)
            again = select(*call, policy=policy, stats=True)
            model = select(*call, policy=policy, stats=True, backend="reference")
            assert np.array_equal(answer, again.indices)
            print(name, policy, tie_break, read, again.stats.scans[0], model.stats.scans[0])
"""


@pytest.mark.extended
def test_scans_are_the_reads_that_are_made() -> None:
    """The scores read are counted by another piece of code than the statistics, in kernels compiled for it."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COUNTED)],
        # What is read does not depend on LLVM's optimisations, a third of the compilation.
        env=os.environ | {"NUMBA_NUM_THREADS": "1", "NUMBA_OPT": "0", "KSIEVE_CACHE_DIR": os.devnull},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert len(found) == 16
    for *case, read, counted, model in found:
        assert read == counted == model, (case, read, counted, model)
    scans = {tuple(case[:3]): int(case[3]) for case in found}
    assert scans["random", "None", "high"] == 1 and scans["ties", "None", "low"] == 1
    assert scans["ties", "None", "high"] == 2  # twelve thousand ties at rank k, of which the last are wanted
    assert max(scans.values()) >= 3  # a row aimed at the seed that the call uses
