"""Calibration: its intervals cover, its predictions are the model's own rates, and held-back rows can refute it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from typer.testing import CliRunner

import ksieve
from flat_calls import ask
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import LINES_64, PAPER_64, PEAK, POLICIES, SamplingPolicy
from ksieve.core.stats import Route
from ksieve.model import reference
from ksieve.planning import memory
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.writer import CaptureWriter
from ksieve_lab.read_counts import check_traffic
from ksieve_lab.study import calibrate as calibration
from ksieve_lab.study import costs, predict
from ksieve_lab.study.intervals import estimate_mean, estimate_rate, wilson
from ksieve_lab.study.measure import KEPT
from ksieve_lab.study.ranked import rank_rows
from ksieve_lab.workloads import write_synthetic

RESULTS = ROOT / "benchmarks" / "results"


# ---- intervals --------------------------------------------------------------------------------------------


def test_wilson_is_the_textbook_interval():
    assert wilson(0.1, 100) == pytest.approx((0.0552, 0.1744), abs=1e-4)  # Brown, Cai and DasGupta's example form
    assert wilson(0.0, 50)[0] == 0.0
    assert wilson(0.0, 50)[1] == pytest.approx(3.8416 / (50 + 3.8416), abs=1e-3)
    assert wilson(1.0, 50)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(("mean", "clumped"), [(0.02, False), (0.02, True), (0.2, True)])
def test_rate_intervals_cover(mean, clumped):
    """Rows in 16 blocks of 16, a probability each; 256 further rows draw one phase each."""
    rng = np.random.default_rng(11)
    covered = predicted = 0
    trials = 400
    blocks = np.repeat(np.arange(16), 16)

    def draw():
        centre = rng.gamma(4.0, mean / 4, 16) if clumped else np.full(16, mean)
        return np.clip(np.repeat(centre, 16) * rng.gamma(9.0, 1 / 9, 256), 0, 1)

    for _ in range(trials):
        estimate = estimate_rate(draw(), blocks, 256)
        covered += estimate.low <= mean <= estimate.high
        predicted += estimate.next_low <= (rng.random(256) < draw()).mean() <= estimate.next_high
    assert covered / trials > 0.88
    assert 0.93 < predicted / trials < 0.995


def test_mean_intervals_cover():
    rng = np.random.default_rng(12)
    blocks = np.repeat(np.arange(16), 8)
    covered = predicted = 0
    trials = 400
    for _ in range(trials):
        rows, others = (2 + np.repeat(rng.normal(0, 0.1, 16), 8) + rng.normal(0, 0.1, 128) for _ in range(2))
        estimate = estimate_mean(rows, np.full(128, 0.25), blocks, 128)
        covered += estimate.low <= 2 <= estimate.high
        predicted += estimate.next_low <= (others + rng.normal(0, 0.5, 128)).mean() <= estimate.next_high
    assert 0.90 < covered / trials < 0.99
    assert 0.90 < predicted / trials < 0.99


# ---- predictions ------------------------------------------------------------------------------------------


def phases_of(row: np.ndarray, k: int, policy: SamplingPolicy) -> tuple[ksieve.Stats, np.ndarray]:
    """Run the model on as many copies of a row as there are phases: every phase is met once."""
    copies = np.broadcast_to(row, (policy.stride, row.size))
    lengths = np.full(policy.stride, row.size)
    return reference.select(copies, lengths, k, policy=policy)[1], lengths


@pytest.mark.parametrize(
    "policy",
    [
        predict.with_ranks(SamplingPolicy("quads", 16, group=4, boundary="exact"), 200, 14, None),
        predict.with_ranks(SamplingPolicy("lines", 16, group=32, peaks=True, boundary="exact"), 200, 12, 17),
        predict.with_ranks(SamplingPolicy("single", 32), 200, 7, 11),
    ],
    ids=lambda p: p.name,
)
def test_a_prediction_is_the_models_rate_over_all_phases(policy):
    k, length = 200, 6000
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((3, length)).astype(np.float32)
    rows[1, ::7] += 0.4
    q0, q1 = policy.primary_rank(k), policy.rescue_rank(k)
    ranks = np.array([q for q in (q0, q1) if q])
    columns = [
        predict.try_row(row, policy, ranks, k, np.full(ranks.size, 250))
        for row in rank_rows(rows, np.full(3, length), KEPT * k)
    ]
    tried = predict.Tried(policy, ranks, *(np.stack(c) for c in zip(*columns, strict=True)))
    cost = costs.DEVICE_COSTS["cpu"]
    found = predict.predict(tried, k, cost, predict.Sample(np.full(3, length), np.arange(3), 100), q0, q1)
    every = [phases_of(row, k, policy) for row in rows]
    stats = ksieve.Stats(np.concatenate([s.raw for s, _ in every]))
    traffic = check_traffic(stats, np.concatenate([v for _, v in every]), policy)
    assert found.p_band.value == pytest.approx(traffic.p_band)
    assert found.p_exact.value == pytest.approx(traffic.p_exact)
    assert found.traffic.value == pytest.approx(traffic.predicted)
    assert found.admitted.value == pytest.approx(stats.admitted0.mean() / k)
    assert found.overflow == pytest.approx((stats.admitted0 > 250).mean())
    assert found.p_exact.value > 0, "a case without failures would prove nothing"


def test_a_prediction_of_a_jittered_policy_is_what_rows_meet():
    """Its phases are not the views of as many rows, but as likely as those: the model over 1,000 rows agrees."""
    k, length, rows = 200, 6000, 1000
    policy = predict.with_ranks(SamplingPolicy("j", 16, group=4, boundary="exact", jitter=True), k, 14, None)
    row = np.random.default_rng(6).standard_normal(length).astype(np.float32)
    row[::64] += 0.4
    (ordered,) = rank_rows(row[None], np.array([length]), KEPT * k)
    ranks = np.array([14])
    tries = [predict.try_row(ordered, policy, ranks, k, np.array([250]), seed) for seed in range(20)]
    underfill, admitted, square, direct, _ = (float(np.mean(column)) for column in zip(*tries, strict=True))
    stats = reference.select(np.broadcast_to(row, (rows, length)), np.full(rows, length), k, policy=policy)[1]
    realised = (stats.admitted0 < k).mean()
    assert 0.02 < underfill < 0.5
    assert abs(realised - underfill) < 4 * np.sqrt(underfill * (1 - underfill) * (1 / rows + 1 / 320))
    spread = np.sqrt(square - admitted**2)
    assert abs(stats.admitted0.mean() - admitted) < 4 * spread * np.sqrt(1 / rows + 1 / 320)
    assert direct == 0


# ---- costs ------------------------------------------------------------------------------------------------


def gpu_results() -> list[dict]:
    return [json.loads((RESULTS / f"gpu-operator-k{k}.json").read_text()) for k in (512, 1024, 2048)]


def expected_admitted(policy: SamplingPolicy, k: int, length: int) -> float:
    """Scores that a primary boundary admits of exchangeable positions; a peak is the best of several scores."""
    share = policy.primary_rank(k) / (length / policy.stride / (PEAK if policy.peaks else 1) + 1)
    return length * (1 - (1 - share) ** (1 / PEAK) if policy.peaks else share)


def test_the_gpus_constants_explain_the_committed_results():
    cost = costs.DEVICE_COSTS["h200"]
    errors = []
    for payload in gpu_results():
        k = payload["settings"]["k"]
        for shape in payload["results"]["shapes"]:
            own, rows = shape["selectors"]["ksieve"], shape["rows"]
            if rows < 2048 or own["policy"] not in ("lines-64", "lines-128"):
                continue
            policy = POLICIES[own["policy"]]
            length = shape["read_bytes"] / rows / 4
            admitted = expected_admitted(policy, k, shape["width"])
            model = float(cost.row_ns(policy, length, admitted, 1))
            errors.append(abs(model / (1e3 * own["median_us"] / rows) - 1))
    assert len(errors) >= 12
    assert np.median(errors) < 0.06
    assert max(errors) < 0.2


def test_lines_cost_less_than_as_many_single_scores():
    for cost in costs.DEVICE_COSTS.values():
        lines = cost.view_ns(LINES_64, 1 << 18)
        assert lines < cost.view_ns(PAPER_64, 1 << 18)
        assert cost.row_ns(None, 1000, 0, 2) == pytest.approx(cost.fixed_ns + 8000 * cost.byte_ns)


# ---- the whole --------------------------------------------------------------------------------------------


def results_of(capture: Capture, **settings: object) -> dict:
    return calibration.calibrate([capture], **settings)[1]["results"]


@pytest.mark.parametrize(("producer", "cost"), [("random_normal", "h200"), ("endpoint_structured", "cpu")])
def test_held_back_rows_meet_the_prediction(tmp_path, producer, cost):
    path = tmp_path / "a.safetensors"
    write_synthetic(path, producer, 128, 16_384, lengths="causal", seed=21, k=256)
    with Capture(path) as capture:
        found = results_of(capture, device=cost)
    assert (found["rows"], found["held_back"]) == (64, 64)
    assert found["came_true"] == dict.fromkeys(predict.QUANTITIES, True), found["realised"]
    ranking = found["ranking"]
    assert [p["row_ns"] for p in ranking] == sorted(p["row_ns"] for p in ranking)
    assert found["chosen"]["row_ns"] <= (1 + predict.SLACK) * ranking[0]["row_ns"]
    boundaries = {view.name: view.boundary for view in predict.shapes()}
    for entry in ranking:
        rescued = entry["rescue_margin"] is not None
        assert entry["p_exact"]["value"] <= entry["p_band"]["value"] or not rescued
        assert not (cost == "h200" and boundaries[entry["policy"]] == "exact" and rescued)


def test_rows_unlike_the_calibrated_ones_refute_the_prediction(tmp_path):
    """Held-back blocks are descending: lines see their top wholly or not at all."""
    rows, width, k = 64, 16_384, 256
    scores = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    held = np.arange(rows) // 2 % 2 == 1
    scores[held] = -np.sort(-scores[held], axis=1)
    with CaptureWriter(tmp_path / "a.safetensors", rows, width, "float32", k=k) as writer:
        writer.write(scores, np.full(rows, width, np.int32))
    with Capture(tmp_path / "a.safetensors") as capture:
        assert np.array_equal(calibration.split_rows(capture, k, None)[1], np.flatnonzero(held))
        assert not all(results_of(capture)["came_true"].values())


def test_the_command_writes_a_policy_that_plans_take(tmp_path, monkeypatch):
    from ksieve_lab.cli.app import app

    monkeypatch.chdir(tmp_path)
    write_synthetic("a.safetensors", "random_normal", 64, 66_000, seed=2, k=256)
    arguments = ["calibrate", "a.safetensors", "--out", "mine.json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "expected of 32 held-back rows" in done.stdout
    assert "the planner's own choice" in done.stdout
    policy = SamplingPolicy.load("mine.json")
    assert policy.name.startswith("calibrated-")
    assert "ksieve calibrate a.safetensors --k 256" in policy.source
    assert ksieve.plan(rows=64, width=66_000, k=256, policy="mine.json").policy == policy
    scores = np.random.default_rng(1).standard_normal((4, 66_000)).astype(np.float32)
    indices, stats = ask(scores, k=256, policy="mine.json", stats=True)
    assert ksieve.verify(scores, None, indices).ok
    assert set(stats.route) <= {Route.CERTIFIED, Route.RESCUED, Route.RECOVERED, Route.RECOVERED_AFTER_BAND}
    content = json.loads(Path("mine.json").read_text())
    assert content["calibration"]["results"]["chosen"]["p_exact"]["high"] > 0


def test_errors_come_before_any_work(tmp_path):
    write_synthetic(tmp_path / "a.safetensors", "random_normal", 15, 4096, k=64)
    with Capture(tmp_path / "a.safetensors") as capture:
        with pytest.raises(ArgumentError, match=r"a\.safetensors, with 15 rows .* at least 16"):
            calibration.calibrate([capture])
        with pytest.raises(ArgumentError, match="device: got 'abacus'; takes one of h200, cpu"):
            calibration.calibrate([capture], device="abacus")
        with pytest.raises(ArgumentError, match="at least one capture"):
            calibration.calibrate([])


def test_half_as_wide_scores_cost_half_the_scan(tmp_path):
    """Nothing but the bytes scanned changes much: views and candidates are counted in scores."""
    prices = []
    for dtype in ("float32", "bfloat16"):
        path = tmp_path / f"{dtype}.safetensors"
        write_synthetic(path, "random_normal", 32, 16_384, dtype=dtype, seed=4, k=256)
        with Capture(path) as capture:
            prices.append(results_of(capture)["chosen"]["row_ns"])
    scan = 2 * 16_384 * costs.DEVICE_COSTS["h200"].byte_ns
    assert prices[0] - prices[1] == pytest.approx(scan, rel=0.25)


def test_clumped_rows_that_overfill_the_plan_are_counted_and_avoided(tmp_path, monkeypatch):
    """Where neighbours are alike, lines admit more than a plan with little room holds, and quads are recommended."""
    for name, value in (("TAIL_SIGMAS", 12), ("PEAK", 1), ("SORTED_PERIODS", 0), ("SPILLED_STEP", 256)):
        monkeypatch.setattr(memory, name, value)
    path, k = tmp_path / "a.safetensors", 2048
    write_synthetic(path, "smooth_structured", 24, 131_072, seed=5, k=k)
    with Capture(path) as capture:
        found = results_of(capture)
        scores = capture.rows_block(0, 1)
    assert found["default"]["policy"] == LINES_64.name
    assert 0.02 < found["default"]["overflow"] < 0.4
    plan = ksieve.plan(rows=4096, width=131_072, k=k, device=DEVICES["h200"], policy=LINES_64)
    copies = np.broadcast_to(scores, (64, scores.shape[1]))
    stats = reference.select(copies, np.full(64, 131_072), k, policy=LINES_64, capacity=plan.capacity)[1]
    assert np.array_equal(stats.scans > 1, stats.admitted0 > plan.capacity), "the model scans those again"
    assert found["chosen"]["overflow"] < 0.01
    assert found["chosen"]["row_ns"] < 0.95 * found["default"]["row_ns"]
