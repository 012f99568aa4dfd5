"""The ablations: run for real on the CPU in small, the profiled kernels compiled, the figures drawn."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import ksieve
from flat_calls import ask
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.policy import PAPER_128
from ksieve.core.stats import STATS_COLUMNS, Route, Stats
from ksieve_lab.bench import ablation, catalog
from ksieve_lab.bench.ablation import activation, phases, steps
from ksieve_lab.bench.machines import Cpu, machine_of, read_prefixes
from ksieve_lab.report import told


@pytest.fixture(scope="module")
def payload():
    """Two calls of 40 rows over 20,000 keys, and four cells of the activation sweep."""
    small = {"backend": "cpu", "step_tokens": 80, "budget_bytes": 20_000 * 4 * 40}
    fixed = small | {"widths": (4096, 8192), "rows": (3, 5)}
    return replace(catalog.find("ablation-cpu"), fixed=fixed).run(shapes="20000", k=128, rounds=1)


def test_every_variant_of_every_part_is_measured_and_exact(payload):
    step = payload["results"]["steps"]["20000"]
    assert step["calls"] == [[40, 20_000], [40, 20_000]]
    assert set(step["variants"]) == set(steps.choices_of(ablation.STEP_PARTS))
    assert all(told.verdicts(payload)) and "5.7 to 7.8" in str(list(told.told(payload))), "what the paper found"
    for name, facts in step["variants"].items():
        assert facts["exact"] is True
        assert facts["step_ms"] > 0
        assert facts["of_floor"] > 0, name
    sampled = step["variants"][steps.paper_policy(128, 1.5).name]
    assert sampled["sampled_rows"] == 80
    assert step["variants"][steps.DIRECT]["sampled_rows"] == 0
    assert step["variants"][steps.DIRECT]["recovery_percent"] is None


def test_a_deeper_target_admits_more_and_misses_less(payload):
    variants = payload["results"]["steps"]["20000"]["variants"]
    by_margin = [variants[steps.paper_policy(128, m).name] for m in steps.MARGINS]
    admitted = [v["admitted_mean"] for v in by_margin]
    missed = [v["primary_missed_percent"] for v in by_margin]
    assert admitted == sorted(admitted)
    assert admitted[-1] > admitted[0]
    assert missed == sorted(missed, reverse=True)
    assert missed[0] > 10
    on = variants[steps.RESCUED]
    assert on["recovery_percent"] <= on["primary_missed_percent"]


def test_rates_are_those_of_the_statistics():
    raw = np.zeros((6, len(STATS_COLUMNS)), np.int32)
    raw[:, 0] = [Route.CERTIFIED, Route.RESCUED, Route.RECOVERED, Route.RECOVERED_AFTER_BAND, Route.DIRECT, Route.SHORT]
    raw[:, STATS_COLUMNS.index("admitted0")] = [200, 90, 80, 30, -1, -1]
    tally = steps.Tally([{"median_us": 500.0, "exact": True}], [Stats(raw)])
    facts = tally.facts(1, 400.0)
    assert (facts["sampled_rows"], facts["primary_missed_percent"], facts["recovery_percent"]) == (4, 75, 50)
    assert (facts["admitted_mean"], facts["step_ms"], facts["of_floor"]) == (100, 0.5, 0.8)
    tally.times.append({"median_us": 500.0, "exact": False})
    assert tally.facts(2, 400.0)["step_ms"] is None


class SlowMachine(Cpu):
    """Clock readings made up from the routes: what a wave costs is known."""

    def time(self, scores, lengths, k, choices, rounds, peers):
        found = {}
        for name, choice in choices.items():
            stats = self.stats(scores, lengths, k, choice)
            extra = {Route.RESCUED: 30.0, Route.RECOVERED: 90.0}
            cost = 100.0 + max((extra.get(Route(r), 0.0) for r in stats.route), default=0.0)
            found[name] = {"median_us": cost, "exact": True, "of_floor": 0.5}
        return {"floor_us": 50.0, "selectors": found}


def test_recovery_is_what_missed_rows_take_longer_than_certified_ones():
    calls = ablation.terminal_step(20_000, step_tokens=600, budget_bytes=20_000 * 4 * 300)
    settings = catalog.find("ablation-cpu").read(k=1024, rounds=1)
    wave = steps.run_step(SlowMachine(), calls, ["rescue"], settings, lambda: None)["wave"]
    assert wave["rows"] > 3
    assert (wave["rescue_us"], wave["recovery_us"]) == (30, 90)


def test_a_wave_keeps_the_phase_of_its_rows():
    machine, k = Cpu(), 64
    scores, lengths = machine.scores(300, 9000, np.full(300, 9000, np.int32), "normal", 5)
    wave = steps._Wave(machine, 9000)
    choices = {steps.RESCUED: (None, replace(PAPER_128, min_rank=1))}
    wave.collect(scores, lengths, lengths, k, choices)
    taken = np.flatnonzero(wave._valid)
    assert taken.size
    stats = machine.stats(wave._matrix, wave._valid, k, choices[steps.RESCUED])
    assert (stats.route[taken] == Route.RESCUED).all(), "a row that moved was sampled elsewhere"
    assert (np.delete(stats.route, taken) == Route.SHORT).all()


def test_the_crossover_is_a_median_over_cells():
    def cell(width, rows, exact_us, sampled_us, good=True):
        return {
            "width": width, "rows": rows, "scores": "endpoint",
            "selectors": {
                activation.EXACT: {"median_us": exact_us, "exact": True},
                "s = 64": {"median_us": sampled_us, "exact": good},
            },
        }  # fmt: skip

    cells = [cell(16384, 1, 10, 20), cell(16384, 2, 10, 5), cell(16384, 3, 10, 8), cell(16384, 4, 10, 1, good=False)]
    (row,) = activation.summary(cells)
    assert row["s = 64"] == {"median": 1.25, "least": 0.5, "most": 2, "won": 2, "cells": 3}
    assert "ksieve" not in row


def test_arguments_are_checked_before_anything_runs():
    with pytest.raises(ArgumentError, match=r"^only: got 'speed'"):
        catalog.find("ablation").read(only="speed")
    with pytest.raises(ArgumentError, match=r"^backend: got 'tpu'"):
        machine_of("tpu")
    with pytest.raises(ArgumentError, match=r"^scores: got 'factors:x'"):
        Cpu().scores(1, 10, np.array([10], np.int32), "factors:x", 0)


def test_the_plain_read_reads_prefixes_alone():
    scores = np.array([[1, 5, 9], [2, 8, 3]], np.float32)
    assert read_prefixes(scores, np.array([2, 0], np.int32)) == 5
    assert read_prefixes(scores, np.array([2, 2], np.int32)) == 8


@pytest.mark.parametrize(
    ("family", "policy"),
    [("stream_unsampled", "direct"), ("stream", steps.paper_policy(128, 1.5))],
)
def test_the_profiled_kernels_compile_as_the_shipped_ones_do(family, policy):
    """A kernel that was rewritten so that a stamp has no place fails here, not on a GPU."""
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.core") is None:
        pytest.skip("cuda-core is not installed")
    from ksieve.backends.cuda.jit.build import shortcomings

    plan = ksieve.plan(rows=4096, width=262_144, k=2048, device=DEVICES["h200"], family=family, policy=policy)
    spec, cubin = phases.compiled(plan)
    assert shortcomings(plan, spec, cubin.resources) == []


def test_a_kernel_without_a_place_for_a_stamp_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(phases.STAMPS, "stream/select.cuh", (("no such line", "x"),))
    with pytest.raises(BackendError, match=r"stream/select.cuh has 0 places"):
        phases.profiled_sources(tmp_path)


def test_stamped_cycles_become_microseconds():
    counts = np.zeros((3, 16), np.int64)
    counts[0, :6] = [1000, 2000, 500, 500, 4000, 2000]
    counts[1, :6] = [3000, 2000, 500, 500, 6000, 3000]
    found = phases.split(counts)
    assert found["clock_ghz"] == pytest.approx(2)
    assert found["row_us"]["proposal"] == pytest.approx(1)
    assert (found["total_us"], found["rows"]) == (pytest.approx(2.5), 2)
    with pytest.raises(BackendError, match="no row left a profile"):
        phases.split(counts[2:])


def test_the_profiled_kernel_runs_in_place_of_the_statistics_one_and_leaves_no_trace(monkeypatch):
    from cuda_fakes import FakeArray, FakeDriver, forget, make_plan
    from ksieve.backends.cuda.jit import cache
    from ksieve.backends.cuda.jit.compile import Cubin
    from ksieve.backends.cuda.jit.spec import kernel_spec
    from ksieve.backends.cuda.runtime import driver as cuda_driver
    from ksieve.backends.cuda.runtime import launch

    fake = FakeDriver()
    forget()
    monkeypatch.setattr(cuda_driver, "_instance", fake)
    monkeypatch.setattr(cache, "obtain", lambda spec, *_: (Cubin(b"code", ""), True))
    scores, plan = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32), make_plan()
    out = FakeArray(np.zeros((8, 4), np.int32))

    def function_used():
        ask(FakeArray(scores), plan=plan, out=out, stats=True)
        return fake.launches[-1]["function"]

    try:
        assert function_used() == 1
        with phases._in_place_of(plan, 0, 77):
            assert function_used() == 77
        assert function_used() == 1
        forget()
        with phases._in_place_of(plan, 0, 78):
            assert function_used() == 78
        assert (0, kernel_spec(plan, stats=True)) not in launch._functions
    finally:
        forget()
