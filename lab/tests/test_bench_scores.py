"""Scores of the GPU benches, made by the same code on the CPU: every family shows what it is named for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT

import ksieve
from bench_host import factor_file
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.policy import LINES_64, PAPER_128, QUADS_16
from ksieve.core.stats import Route

torch = pytest.importorskip("torch")
from flat_calls import ask  # noqa: E402
from ksieve.tuning.tasks import endpoint_structured  # noqa: E402
from ksieve_lab.bench import adversarial_gpu as hard  # noqa: E402
from ksieve_lab.bench import scores  # noqa: E402

ROWS, WIDTH, K = 6, 8192, 256
REAL = ROOT.parent / "shared" / "data" / "indexer_minilm_a.safetensors"


def made(name, policy=LINES_64, rows=ROWS, seed=0):
    matrix = torch.full((rows, WIDTH), 7.0)
    lengths = torch.full((rows,), WIDTH, dtype=torch.int32)
    lengths[-1] = WIDTH // 2
    hard.fill(name, matrix, lengths, K, policy, seed)
    return matrix.numpy(), lengths.numpy()


@pytest.mark.parametrize("name", hard.FAMILIES)
def test_a_family_fills_and_is_selected_from_exactly(name):
    matrix, lengths = made(name)
    assert np.array_equal(matrix.view(np.int32), made(name)[0].view(np.int32)), "the same seed gives other bits"
    indices = ksieve.topk(matrix, lengths, K)
    assert ksieve.verify(matrix, lengths, indices).ok


REGULAR = replace(QUADS_16, name="regular quads", jitter=False)
WHOLE = replace(QUADS_16, name="every score", stride=1, jitter=True)


@pytest.mark.parametrize("policy", [LINES_64, QUADS_16, REGULAR, PAPER_128], ids=lambda p: p.name)
def test_periodic_rows_go_through_every_class(policy):
    peaks, hole, phases = (
        made(n, policy, rows=policy.stride)[0] for n in ("stride_peak", "stride_hole", "stride_every_phase")
    )
    met = set()
    for row in range(policy.stride):
        klass = policy.view_of_phase(policy.phase(row), WIDTH)
        rest = np.setdiff1d(np.arange(WIDTH), klass)
        assert peaks[row, klass].min() > peaks[row, rest].max()
        assert hole[row, klass].max() < hole[row, rest].min()
        top = set(np.flatnonzero(phases[row] > hard.FAR / 2) // policy.group % policy.stride)
        met.add((top.pop() - policy.phase(row)) % policy.stride)
        assert not top
    assert met == set(range(policy.stride)), "not every phase relative to the regular view was met"


@pytest.mark.parametrize("policy", [LINES_64, QUADS_16, REGULAR, PAPER_128, WHOLE], ids=lambda p: p.name)
@pytest.mark.parametrize("width", [WIDTH, WIDTH - 8, WIDTH - 2003])
def test_rows_against_the_view_are_the_views_positions(policy, width):
    for first in (0, 1_000_000, (1 << 31) - 80):
        mask = hard.view(torch.arange(first, first + 70)[:, None], width, policy).numpy()
        assert mask.shape == (70, width)
        for row in range(70):
            assert np.array_equal(np.flatnonzero(mask[row]), policy.view(first + row, width))


@pytest.mark.parametrize("policy", [LINES_64, QUADS_16], ids=lambda p: p.name)
def test_rows_against_the_view_force_the_rare_routes(policy):
    width, k = 8 * WIDTH, 2048
    matrix, lengths = torch.empty(ROWS, width), torch.full((ROWS,), width, dtype=torch.int32)
    for name in ("view_peak", "view_hole"):
        hard.fill(name, matrix, lengths, k, policy)
        indices, stats = ask(matrix.numpy(), k=k, policy=policy, stats=True)
        assert ksieve.verify(matrix.numpy(), None, indices).ok
        if name == "view_peak":
            assert set(stats.route) == {Route.RECOVERED}
        else:
            assert (stats.admitted0 > 0.9 * width).all()


def test_rows_of_the_host_come_again_bit_for_bit():
    nan, _ = made("nan_sprinkled", rows=2 * hard.BASE + 1)
    bits = nan.view(np.uint32)
    assert np.array_equal(bits[: hard.BASE], bits[hard.BASE : 2 * hard.BASE]) and not np.array_equal(bits[0], bits[2])
    assert (np.isnan(nan) & ((bits & 0x00400000) == 0)).any(), "no NaN stayed a signalling one"
    assert np.isnan(made("all_nan")[0]).all()


def test_sources_by_name():
    assert scores.source_of("endpoint") is endpoint_structured
    matrix = torch.empty(64, 4096)
    scores.source_of("normal")(matrix, None, 3)
    assert abs(float(matrix.mean())) < 0.02 and abs(float(matrix.std()) - 1) < 0.02
    for text in ("real", "factors:", "factors"):
        with pytest.raises(ArgumentError, match=r"^scores: got"):
            scores.source_of(text)


def test_factors_give_the_scores_of_the_capture(tmp_path):
    path = tmp_path / "f.safetensors"
    tensors = factor_file(path)
    fill = scores.source_of(f"factors:{path}")
    matrix = torch.empty(5, 40)
    fill(matrix, None, 0)
    from ksieve_lab.captures.format import Capture

    with Capture(path) as capture:
        assert np.allclose(matrix.numpy(), capture.rows_block(0, 5), rtol=1e-5, atol=1e-6)
    few = torch.empty(2, 30)
    fill(few, None, 0)
    assert np.allclose(few.numpy(), matrix.numpy()[3:, 10:], rtol=1e-5), "few rows are the last queries and keys"
    large = torch.empty(12, 100)
    fill(large, None, 0)
    assert np.isfinite(large.numpy()).all()
    for row in large.numpy():
        positive = row[row > 0]
        assert len(np.unique(positive)) == len(positive), "a score came twice"
    assert len({row.tobytes() for row in large.numpy()}) == 12
    assert tensors["q"].shape[0] == 5


def test_factors_are_asked_for(tmp_path):
    path = tmp_path / "scores.safetensors"
    from ksieve_lab.workloads import write_synthetic

    write_synthetic(path, "random_normal", 2, 16)
    with pytest.raises(FileFormatError, match="not an indexer's factors"):
        scores.source_of(f"factors:{path}")


@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL.name} is not beside this checkout")
def test_real_factors_rank_as_their_description_says():
    matrix = torch.empty(4, 16_384)
    scores.source_of(f"factors:{REAL}")(matrix, None, 0)
    values = matrix.numpy()
    assert (values >= 0).all() and 0 < (values == 0).mean() < 0.05
    assert math.isfinite(float(values.max())) and values.max() > 1
