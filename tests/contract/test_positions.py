"""Rows gathered from shards: positions in place of indices, counts, and their refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ksieve
from flat_calls import ask, plan_of, verified
from ksieve import ArgumentError
from ksieve.core.device import DEVICES
from ksieve.core.options import Options
from ksieve.planning.families import BY_POSITION

K = 5


def scores(rows=3, width=40):
    return np.random.default_rng(0).random((rows, width), np.float32)


def places(rows=3, width=40, seed=0):
    rng = np.random.default_rng(seed)
    found = np.stack([rng.permutation(3 * width)[:width] for _ in range(rows)]).astype(np.int32)
    return np.where(rng.random((rows, width)) < 0.25, np.int32(-1), found)


def test_verify_refutes_by_positions():
    x, own = np.array([[3, 9, 9, 1, 7]], np.float32), np.array([[40, 8, 5, -1, 2]], np.int32)
    assert ksieve.verify(x, None, np.array([[5, 8, 2]]), gathered=ksieve.Positions(own), tie_break="low")
    for answer, more, message in (
        ([5, 8, 40], {}, "slot 2 holds position 40 with score 3.0, but position 2 with score 7.0 is not selected"),
        ([8, -1], {}, "slot 1 holds the sentinel -1 with valid positions left, the best of them 5 with score 9.0"),
        ([8, 8], {}, "position 8 stands in slots 0 and 1"),
        ([8, 1], {}, "slot 1 holds 1, the position of no score of the row"),
        ([8, 3], {}, "slot 1 holds 3, the position of no score of the row"),
        ([8], {"tie_break": "low"}, "slot 0 holds position 8 with score 9.0, but position 5 with an equal score"),
        ([8, 5], {"sorted": True}, "slot 0 holds position 8 with score 9.0, slot 1 position 5 with score 9.0: equal"),
        ([8, 5, 2, 40, 1], {}, "slot 4 holds 1, the position of no score"),
    ):
        verdict = verified(x, None, np.array([answer]), positions=own, **more)
        assert not verdict and message in str(verdict), str(verdict)
    assert ksieve.verify(x, None, np.array([[8, 5, 2, 40, -1]]), gathered=ksieve.Positions(own))
    assert ksieve.verify(x, None, np.array([[8, 5, 2, 40, -9]]), gathered=ksieve.Positions(own), sentinel=-9)
    for bad, message in (
        ({"positions": own.astype(np.int64)}, "positions: got dtype int64; takes dtype int32"),
        ({"positions": own[:, :4]}, r"positions: got shape \(1, 4\); takes shape \(1, 5\), that of the scores"),
        ({"positions": own, "sentinel": 7}, "sentinel: got 7; takes an int that is no position"),
        ({"positions": own, "index_base": "start"}, "index_base: got 'start' with positions"),
    ):
        with pytest.raises(ArgumentError, match=message):
            verified(x, None, np.array([[5, 8]]), **bad)


def test_a_plan_with_positions():
    options = Options(positions=True, counts=True, order="index", tie_break="low")
    plan = plan_of(rows=3, width=40, k=K, options=options)
    counts = np.zeros(3, np.int32)
    found = ask(scores(), plan=plan, positions=places(), counts=counts)
    np.testing.assert_array_equal(
        found, ksieve.topk(scores(), k=K, gathered=ksieve.Positions(places()), deterministic=True)
    )
    for given, message in (
        ({"counts": counts}, r"a call with positions False \(Positions or SelectedBlocks\); takes positions True"),
        ({"positions": places()}, "a call with counts False; takes counts True"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ask(scores(), plan=plan, **given)
    few = replace(plan, capacity=64, threads=2)
    np.testing.assert_array_equal(ask(scores(), plan=few, positions=places(), counts=counts), found)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"positions": places().astype(np.int64)}, "positions: got dtype int64; takes dtype int32: positions.astype"),
        ({"positions": places(3, 41)}, "positions: got shape (3, 41); takes shape (3, 40), that of the scores"),
        ({"positions": places(3, 80)[:, ::2]}, "positions: got last stride 2; takes last stride 1 (rows contiguous)"),
        ({"positions": places().tolist()}, "positions: got list; takes a NumPy, PyTorch, CuPy or JAX array"),
        ({"positions": places(), "index_base": "start"}, "index_base: got 'start' with positions; takes 'row'"),
        ({"counts": np.zeros(4, np.int32)}, "counts: got shape (4,); takes shape (3,)"),
        ({"counts": np.zeros(3, np.int64)}, "counts: got dtype int64; takes dtype int32"),
        (
            {"counts": np.broadcast_to(np.int32(0), 3)},
            "counts: got strides (0, 0); takes an array that does not overlap itself",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:40],
)
def test_refusals(bad, message):
    with pytest.raises(ArgumentError) as error:
        ask(scores(), k=K, **bad)
    assert str(error.value).startswith(message)


def test_counts_have_memory_of_their_own():
    held = np.zeros(60, np.int32)
    out, counts = held[:15].reshape(3, 5), held[14:17]
    with pytest.raises(ArgumentError, match="counts: got memory that overlaps out"):
        ask(scores(), k=K, out=out, counts=counts)
    with pytest.raises(ArgumentError, match="counts: got memory that overlaps lengths"):
        ask(scores(), counts, k=K, counts=counts)
    counts.flags.writeable = False
    with pytest.raises(ArgumentError, match="counts: got a read-only array"):
        ask(scores(), k=K, counts=counts)


def test_plans_for_a_gpu_do_not_sample_rows_with_positions():
    asked = {"k": K, "device": DEVICES["h200"], "options": Options(positions=True)}
    forced = asked | {"options": Options(positions=True, force_first=1, force_last=2)}
    for rows, width in ((1, 4096), (9, 30_000), (5000, 300), (5000, 262_144), (2, 1 << 20)):
        for given in (asked, forced):
            plan = plan_of(rows=rows, width=width, **given)
            assert plan.family in BY_POSITION and plan.policy is None and not plan.bins, plan
    for more, message in (
        ({"family": "stream"}, "family: got 'stream' with positions; takes one of "),
        ({"family": "register_warp"}, "family: got 'register_warp' with positions"),
        ({"policy": "paper-64"}, "policy: got paper-64 with positions; takes None or 'direct'"),
    ):
        with pytest.raises(ArgumentError) as error:
            plan_of(rows=9, width=4096, **asked, **more)
        assert str(error.value).startswith(message)


def test_a_recording_leaves_them_out(tmp_path):
    import ksieve_lab

    with ksieve_lab.record(tmp_path / "scores.safetensors") as recorder:
        ksieve.topk(scores(), k=K, gathered=ksieve.Positions(places()))
        ksieve.topk(scores(), k=K)
    assert (recorder.seen, recorder.kept) == (2, 1)
