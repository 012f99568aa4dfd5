"""Synthetic producers: deterministic row by row, and each really has the property it is named for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ksieve.core.errors import ArgumentError
from ksieve.core.keys import coarse_bin, order_key
from ksieve.core.policy import PAPER_64, QUADS_16
from ksieve.core.stats import Route
from ksieve.model import reference
from ksieve.planning.choose_cpu import default_policy
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.numbers import narrow
from ksieve_lab.workloads import LENGTHS, PRODUCERS, find_producer, write_synthetic

K, WIDTH = 2048, 131_072
EVERY = pytest.mark.parametrize("name", PRODUCERS)


def rows_of(name, rows=4, width=WIDTH, **options):
    return PRODUCERS[name](rows, width, seed=11, **options)


def bits(scores):
    return scores.view(np.uint32)


def kth(scores, k=K):
    """Largest-but-(k-1) score of each row in contract order, as its ordered key."""
    return np.sort(order_key(scores), axis=1)[:, k - 1]


@EVERY
@pytest.mark.parametrize("width", [0, 1, 2, 3, 9, 10, 64, 1000])
def test_any_small_shape_works_without_a_warning(name, width, recwarn):
    for k in (1, 5, 2048):
        scores = PRODUCERS[name](3, width, seed=5, k=k)
        assert scores.dtype == np.float32 and scores.shape == (3, width) and scores.flags.c_contiguous
    assert PRODUCERS[name](0, width).shape == (0, width)
    assert not recwarn.list


@EVERY
def test_a_row_is_the_same_in_any_block(name):
    whole = PRODUCERS[name](5, 3000, seed=3, first_row=40, k=100)
    single = [PRODUCERS[name](1, 3000, seed=3, first_row=40 + r, k=100) for r in range(5)]
    assert np.array_equal(bits(whole), bits(np.concatenate(single)))


@EVERY
def test_rows_and_seeds_differ_where_there_is_anything_random(name):
    a, b = (PRODUCERS[name](2, 3000, seed=seed, k=100) for seed in (1, 2))
    fixed = name in ("all_equal", "descending_subnormals")
    assert np.array_equal(bits(a), bits(b)) == fixed
    assert np.array_equal(bits(a[0]), bits(a[1])) == fixed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": -1}, "rows: got -1; takes an int from 0"),
        ({"width": 1.0}, "width: got 1.0; takes an int from 0"),
        ({"seed": 1 << 63}, f"seed: got {1 << 63}; takes an int from 0 to 2**63 - 1"),
        ({"first_row": True}, "first_row: got True; takes an int from 0"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ArgumentError) as error:
        PRODUCERS["random_normal"](**{"rows": 1, "width": 4} | options)
    assert str(error.value).startswith(message)


# ---- natural families -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [32_768, 65_536, 131_072, 1 << 20])
def test_end_deciles_hold_the_papers_share_of_the_top(width):
    scores = rows_of("endpoint_structured", 12 if width < 1 << 20 else 3, width)
    top = np.argpartition(-scores, K, axis=1)[:, :K]
    share = ((top < width / 10) | (top >= width * 9 / 10)).mean(axis=1)
    assert (share >= 0.52).all() and (share <= 0.74).all()
    assert share.max() - share.min() > 0.02
    first = (top < width / 10).mean(axis=1)
    assert (first > 0.2).all() and (share - first > 0.2).all()


def test_a_share_out_of_reach_is_refused():
    with pytest.raises(ArgumentError, match=r"share: got \(0.95, 0.96\); takes a range from 0.2 to 0.91"):
        rows_of("endpoint_structured", share=(0.95, 0.96))
    with pytest.raises(ArgumentError, match="a reach of at least 1"):
        rows_of("smooth_structured", 1, reach=0)
    with pytest.raises(ArgumentError, match="block: got 0; takes an int of at least 1"):
        rows_of("v41_blocks", 1, block=0)
    top = np.argpartition(-rows_of("endpoint_structured", 8, share=(0.3, 0.3)), K, axis=1)[:, :K]
    assert np.abs(((top < WIDTH / 10) | (top >= WIDTH * 0.9)).mean(axis=1) - 0.3).max() < 0.05


@pytest.mark.parametrize("positive", [0.0, 0.5, 0.999, 1.0, 2.0])
def test_the_boundary_of_a_relu_plateau_is_where_it_is_asked_for(positive):
    scores = rows_of("relu_plateau", positive=positive)
    assert ((scores > 0).sum(axis=1) == int(positive * K)).all()
    assert ((scores == 0).sum(axis=1) == WIDTH - int(positive * K)).all()
    assert ((kth(scores) == order_key(0.0)) == (positive < 1)).all()


# ---- adversarial families ---------------------------------------------------------------------------------


def test_tie_families_put_rank_k_inside_a_tie():
    equal = rows_of("all_equal", value=-2.5)
    assert (equal == np.float32(-2.5)).all()

    two = rows_of("two_values")
    assert set(np.unique(two)) == {1.0, 2.0}
    assert ((two == 2).sum(axis=1) == [K // 2, WIDTH // 2] * 2).all()

    huge = rows_of("huge_ties")
    assert ((huge == 0.5).sum(axis=1) == 100_000).all()
    assert ((huge > 0.5).sum(axis=1) == K // 2).all()
    assert (kth(huge) == order_key(0.5)).all()

    zeros = rows_of("signed_zeros")
    negative = np.signbit(zeros) & (zeros == 0)
    assert ((zeros > 0).sum(axis=1) == K // 2).all() and not (zeros < 0).any()
    assert (negative.sum(axis=1) > WIDTH // 3).all() and ((zeros == 0).sum(axis=1) == WIDTH - K // 2).all()


def test_narrow_families_are_one_coarse_value_but_many_scores():
    for name, distinct in (("one_coarse_bin", 8000), ("rounds_to_zero", 100_000), ("above_half_range", 100_000)):
        scores = rows_of(name)
        with np.errstate(over="ignore"):
            assert len(np.unique(scores.astype(np.float16))) == 1, name
        assert len(np.unique(coarse_bin(scores))) == 1, name
        assert len(np.unique(scores[0])) > distinct, name


def test_midpoints_sit_on_both_sides_of_bin_borders():
    scores = rows_of("fp16_midpoints")
    assert np.isfinite(scores).all()
    bins, next_worse = coarse_bin(scores), coarse_bin(np.nextafter(scores, np.float32(-np.inf)))
    next_better = coarse_bin(np.nextafter(scores, np.float32(np.inf)))
    assert ((bins != next_worse).mean(axis=1) > 0.25).all()
    assert ((bins != next_better).mean(axis=1) > 0.25).all()
    assert len(np.unique(bins)) > 1800


def assert_defeated(policy, peak, hole):
    full = np.full(len(peak), peak.shape[1])
    _, high = reference.select(peak, full, K, policy=policy)
    # All that the view sees beats everything else: it names a boundary that only its own positions reach.
    assert (high.admitted0 < K).all()
    assert np.isin(high.route, (Route.RECOVERED, Route.RECOVERED_AFTER_BAND)).all()
    _, low = reference.select(hole, full, K, policy=policy)
    assert (low.admitted0 > 0.9 * full).all()


@pytest.mark.parametrize("width", [65_536, WIDTH])
def test_view_families_defeat_the_planned_policy(width):
    assert_defeated(default_policy(width, K), rows_of("view_peak", width=width), rows_of("view_hole", width=width))


@pytest.mark.parametrize("width", [65_536, WIDTH])
def test_stride_families_defeat_a_regular_view_alone(width):
    policy, full = default_policy(width, K), np.full(4, width)
    peak, hole = rows_of("stride_peak", width=width), rows_of("stride_hole", width=width)
    assert_defeated(replace(policy, jitter=False), peak, hole)
    for scores in (peak, hole):
        _, stats = reference.select(scores, full, K, policy=replace(policy, jitter=True))
        assert set(stats.route) <= {Route.CERTIFIED, Route.RESCUED}
        assert (stats.admitted0 < 4 * K).all()


def test_periodic_families_follow_a_policy_by_name_and_by_row():
    by_name = PRODUCERS["stride_peak"](3, 4096, first_row=7, policy="paper-64")
    assert np.array_equal(by_name, PRODUCERS["stride_peak"](3, 4096, first_row=7, policy=PAPER_64))
    assert np.array_equal(by_name, PRODUCERS["view_peak"](3, 4096, first_row=7, policy=PAPER_64))
    viewed = PRODUCERS["view_peak"](3, 4096, first_row=7, policy=QUADS_16)
    for r in range(3):
        assert (np.flatnonzero(by_name[r] > 8) % 64 == PAPER_64.phase(7 + r)).all()
        assert np.array_equal(np.flatnonzero(viewed[r] > 8), QUADS_16.view(7 + r, 4096))
    with pytest.raises(ArgumentError, match="policy: got 'none such'"):
        PRODUCERS["stride_peak"](1, 64, policy="none such")


def test_hostile_blocks_are_what_they_are_named_for():
    equal = rows_of("equal_blocks", width=1003)
    assert (np.pad(equal, ((0, 0), (0, 5)), constant_values=-9).reshape(4, -1, 8).max(2) == 1).all()
    assert ((equal == 1).sum(1) == 126).all()
    one = np.isfinite(rows_of("one_block", width=1003))
    assert (one.sum(1) == 128).all() and (one.argmax(1) == np.arange(4) * 128).all()
    best, worst = rows_of("forced_best", width=1003), rows_of("forced_worst", width=1003)
    ends = (np.arange(1003) < 128) | (np.arange(1003) >= 896)
    assert (best[:, ends].min(1) > best[:, ~ends].max(1)).all()
    assert np.isneginf(worst[::2, ends]).all() and np.isnan(worst[1::2, ends]).all()
    assert np.isfinite(worst[:, ~ends]).all()
    lengths = LENGTHS["blocks"](19, 1003).tolist()
    assert {0, 1, 3, 4, 5, 7, 8, 9, 127, 128, 129, 255, 256, 257, 1002, 1003} <= set(lengths)


def test_infinities_put_rank_k_in_three_places():
    scores = rows_of("infinities", 6)
    assert not np.isnan(scores).any()
    boundary = kth(scores)
    assert (boundary[1::3] == order_key(np.inf)).all()
    assert (boundary[2::3] == order_key(-np.inf)).all()
    assert ((boundary[0::3] > order_key(np.inf)) & (boundary[0::3] < order_key(-np.inf))).all()
    assert np.isposinf(scores).any(axis=1).all() and np.isneginf(scores).any(axis=1).all()


def test_nans_have_any_sign_and_payload_and_may_be_needed():
    scores = rows_of("nan_sprinkled")
    nans = np.isnan(scores)
    assert (nans.sum(axis=1) == [WIDTH // 100, WIDTH - K // 2] * 2).all()
    found = bits(scores)[nans]
    assert 0.4 < (found >> 31).mean() < 0.6
    assert len(np.unique(found)) > 100_000
    assert ((found & 0x400000) == 0).any()  # signalling ones survived
    assert (kth(scores)[1::2] == 0xFFFFFFFF).all()


# ---- captures of producers --------------------------------------------------------------------------------


def test_names_may_have_hyphens_and_unknown_ones_are_listed():
    assert find_producer("relu-plateau") is PRODUCERS["relu_plateau"]
    with pytest.raises(ArgumentError, match="producer: got 'relu'; takes one of random_normal, endpoint_structured"):
        find_producer("relu")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_synthetic_capture_is_its_producer_in_blocks(tmp_path, dtype):
    path, seen = tmp_path / "a.safetensors", []
    write_synthetic(
        path, "infinities", 7, 3000, lengths="adversarial", dtype=dtype, seed=9, k=100, max_bytes=3000 * 4 * 3,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    scores = PRODUCERS["infinities"](7, 3000, seed=9, k=100)
    with Capture(path) as capture:
        assert capture.rows_block(0, 7).tobytes() == narrow(scores, dtype).tobytes()
        assert np.array_equal(capture.lengths, LENGTHS["adversarial"](7, 3000, seed=9, k=100))
        assert (capture.dtype, capture.k, capture.metadata["producer"]) == (dtype, 100, "infinities")
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_options_reach_the_producer_and_are_recorded(tmp_path):
    write_synthetic(tmp_path / "a.safetensors", "all-equal", 2, 5, options={"value": 3.5})
    with Capture(tmp_path / "a.safetensors") as capture:
        assert (capture.rows_block(0, 2) == 3.5).all()
        assert capture.metadata["option_value"] == "3.5"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"producer": "no"}, "producer: got 'no'; takes one of"),
        ({"lengths": "no"}, "lengths: got 'no'; takes one of full, causal, ragged, uniform, adversarial, blocks"),
        ({"dtype": "no"}, "dtype: got 'no'; takes one of"),
        ({"seed": -1}, "seed: got -1; takes an int from 0"),
        ({"rows": -1}, "rows: got -1; takes an int from 0"),
        ({"options": {"slope": 1}}, "options: got slope, which is not taken for this producer"),
        ({"producer": "relu_plateau", "options": {"slope": 1}}, "options: got slope; takes positive"),
    ],
)
def test_a_bad_request_leaves_no_file(tmp_path, options, message):
    with pytest.raises(ArgumentError) as error:
        write_synthetic(tmp_path / "a.safetensors", **{"producer": "random_normal", "rows": 2, "width": 5} | options)
    assert str(error.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


# ---- valid lengths ------------------------------------------------------------------------------------------


INT32 = np.iinfo(np.int32)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize(("rows", "width"), [(0, 0), (0, 9), (3, 0), (5, 1), (40, 7), (9, 100_000)])
def test_any_shape_gives_int32_and_is_deterministic(name, rows, width):
    lengths = LENGTHS[name](rows, width, seed=4, k=16)
    assert lengths.dtype == np.int32 and lengths.shape == (rows,)
    assert np.array_equal(lengths, LENGTHS[name](rows, width, seed=4, k=16))
    if name != "adversarial":
        assert ((lengths >= 0) & (lengths <= width)).all()


def test_full_and_causal():
    assert LENGTHS["full"](3, 8).tolist() == [8, 8, 8]
    assert LENGTHS["causal"](3, 8).tolist() == [6, 7, 8]
    assert LENGTHS["causal"](5, 3).tolist() == [0, 0, 1, 2, 3]
    assert LENGTHS["causal"](8192, 131_072)[[0, -1]].tolist() == [131_072 - 8192 + 1, 131_072]


def test_ragged_and_uniform_span_their_range():
    ragged = LENGTHS["ragged"](5000, 1000, seed=1)
    assert (ragged.min(), ragged.max()) == (800, 1000)
    assert abs(ragged.mean() - 900) < 5
    uniform = LENGTHS["uniform"](20_000, 1000, seed=1)
    assert (uniform.min(), uniform.max()) == (0, 1000)
    assert abs(uniform.mean() - 500) < 10
    assert not np.array_equal(ragged, LENGTHS["ragged"](5000, 1000, seed=2))
    half = LENGTHS["ragged"](500, 1000, low=0.5, high=0.5)
    assert (half == 500).all()


def test_adversarial_lengths_have_every_case():
    lengths = set(LENGTHS["adversarial"](20, 1000, k=64).tolist())
    assert {0, -1, 1, 63, 64, 65, 999, 1000, 1001, INT32.min, INT32.max, -64} <= lengths
