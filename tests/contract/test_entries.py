"""Blocks, forced entries, expansion and tails: hostile rows, gradients, refusals and what `ksieve.verify` refutes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ksieve
from any_call import verdict
from cases import pairwise
from entry_calls import AXES, built, columns_of
from flat_calls import ask, plan_of, verified
from harness import HOST_BACKENDS
from ksieve import ArgumentError
from ksieve.core.groups import grouped
from ksieve.core.options import Options
from ksieve_lab import oracle


def run(x, k, call, backend):
    """Outputs of a call: indices, values, raw indices, statistics and counts."""
    more = {name: value for name, value in call.items() if name not in ("ks", "live", "lengths")}
    slots = call.get("ks", k)
    more |= {"max_k": k} if "ks" in call else {}
    counts = np.full(x.shape[0], 99, np.int32)
    more |= {"values": True, "raw": True, "stats": True, "counts": counts}
    found = ask(x, call.get("lengths"), slots, **more, backend=backend, num_rows=call.get("live"), policy="direct")
    return *found, counts


def check(x, k, call):
    statistics = []
    for backend in HOST_BACKENDS:
        out, values, raw, stats, counts = run(x, k, call, backend)
        statistics.append(stats.raw)
        oracle.assert_served(x, k, call, {"indices": out, "values": values, "raw": raw, "counts": counts})
        found = verdict(x, call, raw, counts)
        assert found, found
    np.testing.assert_array_equal(*statistics)


ROWS = {
    "all blocks equal": np.zeros(96),
    "one block holds everything": np.where(np.arange(96) // 8 == 5, 9, -np.inf),
    "forced entries are the best": np.where((np.arange(96) < 16) | (np.arange(96) >= 80), 9, 1),
    "forced entries are the worst": np.where((np.arange(96) < 16) | (np.arange(96) >= 80), np.nan, 1),
    "blocks of NaN": np.where(np.arange(96) // 8 % 2 == 0, np.nan, np.arange(96)),
    "NaN in each block": np.where(np.arange(96) % 8 == 3, np.nan, np.arange(96)),
    "zeros of both signs": np.where(np.arange(96) % 2 == 0, -0.0, 0.0),
    "shorter than a block": np.arange(5),
    "one score": np.arange(1),
}


FORCED = ({}, {"force_first": 1}, {"force_last": 2}, {"force_first": 2, "force_last": 1, "forced_extra": True})
WRITTEN = ({"block_size": 8}, {"block_size": 8, "expand": 8}, {"expand": 4})
RANKED = ({}, {"largest": False, "tie_break": "high"}, {"nan": "highest", "sorted": "value"})


@pytest.mark.parametrize("number", range(len(ROWS)), ids=ROWS)
def test_hostile_rows(number):
    """In each dtype in turn."""
    wide = np.tile(list(ROWS.values())[number].astype(np.float32), (3, 1))
    made = (wide, wide.astype(np.float16), (wide.view(np.uint32) >> 16).astype(np.uint16))
    dtypes, width = itertools.islice(itertools.cycle(made), number, None), wide.shape[1]
    for force, written, ranked in itertools.product(FORCED, WRITTEN, RANKED):
        call = {"next_n": 1, "lengths": np.array([width, width - 1, 0], np.int32)} | force | written | ranked
        check(next(dtypes), 3, call)
        if "expand" in call:
            tail = np.array([width, max(width - 3, 0), 3], np.int32)
            check(next(dtypes), 3, call | {"tail": tail})


def scores(rows=3, width=40):
    return np.random.default_rng(0).random((rows, width), np.float32)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"block_size": 257}, "block_size: got 257; takes an int from 1 to 256"),
        ({"block_size": 8, "positions": np.zeros((3, 40), np.int32)}, "block_size: got 8 with positions; takes 1"),
        ({"block_size": 8, "expand": 4}, "expand: got 4; takes 8, the block_size"),
        ({"expand": True}, "expand: got True; takes an int from 1 to 256"),
        ({"expand": 2.0}, "expand: got 2.0; takes an int from 1 to 256"),
        ({"expand": 257}, "expand: got 257; takes an int from 1 to 256"),
        ({"force_first": -1}, "force_first: got -1; takes an int from 0 to 1048576"),
        ({"force_first": 6}, "force_first: got 6 forced entries with k=5; takes at most k, or forced_extra=True"),
        ({"force_first": 3, "force_last": 3}, "force_last: got 6 forced entries with k=5; takes at most k"),
        ({"force_last": 1 << 20, "forced_extra": True}, "force_last: got 1048576 forced entries beside k=5"),
        ({"force_last": 1, "forced_extra": "beside"}, "forced_extra: got 'beside'; takes True or False"),
        ({"tail": np.zeros(3, np.int32)}, "tail: got an array without expand; takes expand= with it"),
        ({"tail": np.zeros(2, np.int32), "expand": 4}, "tail: got shape (2,); takes shape (3,)"),
        ({"tail": np.zeros(3), "expand": 4}, "tail: got dtype float64; takes dtype int32"),
        ({"expand": 4, "next_n": 3}, "next_n: got 3 with expand; takes 1, or tail="),
        ({"expand": 4, "out": np.zeros((3, 5), np.int32)}, "out: got shape (3, 5); takes shape (3, 20)"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:40],
)
def test_refusals(bad, message):
    out = bad.get("out")
    with pytest.raises(ArgumentError) as error:
        ask(scores(), k=5, **bad)
    assert str(error.value).startswith(message)
    assert out is None or not out.any()


def test_rows_whose_positions_int32_does_not_hold():
    message = r"^expand: got 4 for a width of 536870912; takes at most 2147483647 positions"
    with pytest.raises(ArgumentError, match=message):
        plan_of(rows=1, width=1 << 29, k=1, options=Options(expand=4))
    # A position whose entry reaches beyond int32 is that of no score.
    x, own = scores(1, 3), np.array([[2**31 - 1, 2**29 - 1, 7]], np.int32)
    for backend in HOST_BACKENDS:
        found = ask(x, k=3, positions=own, expand=4, backend=backend)
        assert found.tolist() == [[28, 29, 30, 31, 2**31 - 4, 2**31 - 3, 2**31 - 2, 2**31 - 1, *[-1] * 4]]


def test_options_that_ask_for_nothing_are_plain():
    assert Options(forced_extra=True) == Options(block_size=1, expand=1, force_first=0) == Options()
    plain = ksieve.topk(scores(), k=5, deterministic=True)
    idle = {"block_size": 1, "force_first": 0, "forced_extra": True, "expand": 1}
    np.testing.assert_array_equal(ask(scores(), k=5, deterministic=True, **idle), plain)


def test_a_plan_has_them():
    options = Options(block_size=4, force_last=1, expand=4, tail=True, order="index", tie_break="low")
    plan = plan_of(rows=3, width=40, k=5, options=options)
    tail = np.array([40, 39, 2], np.int32)
    found = ksieve.topk(scores(), plan=plan, blocks=ksieve.Blocks(4, force_last=1, expand=4, tail=tail))
    asked = {"block_size": 4, "force_last": 1, "expand": 4, "deterministic": True}
    np.testing.assert_array_equal(found, ask(scores(), k=5, tail=tail, **asked))
    assert found.shape == (3, 23)
    with pytest.raises(ArgumentError, match="a call with tail False; takes tail True, which the plan was made for"):
        ksieve.topk(scores(), plan=plan)
    with pytest.raises(ArgumentError, match="a call with force_last 2; takes force_last 1"):
        ksieve.topk(scores(), plan=plan, blocks=ksieve.Blocks(4, force_last=2, expand=4, tail=tail))


@pytest.mark.extended
def test_wide_rows_are_sampled_by_their_blocks():
    x = np.random.default_rng(0).standard_normal((2, 1 << 18)).astype(np.float32)
    assert ksieve.plan(rows=2, width=1 << 18, k=100).policy is not None
    assert plan_of(rows=2, width=1 << 18, k=100, options=Options(block_size=256)).policy is None
    check(x, 100, {"next_n": 1, "block_size": 3, "force_first": 1, "force_last": 2})


def test_any_rank_and_library():
    torch = pytest.importorskip("torch")
    call = {"block_size": 4, "force_last": 1, "expand": 4, "sorted": True}
    flat, held = ask(scores(6), k=3, values=True, **call)
    tensor = torch.from_numpy(scores(6)).reshape(2, 3, 40)
    found, values = ask(tensor, k=3, values=True, **call)
    assert found.shape == values.shape == (2, 3, 12)
    np.testing.assert_array_equal(found.reshape(6, 12).numpy(), flat)
    np.testing.assert_array_equal(values.reshape(6, 12).numpy(), held)
    carrying = tensor.clone().requires_grad_()
    _, values = ask(carrying, k=3, values=True, force_first=1, sorted=True)
    values.sum().backward()
    assert (carrying.grad[..., 0] == 1).all() and carrying.grad.sum() == 18


def arguments_of(k, call):
    """Keywords of `ksieve.select` for a combination of options, with the outputs that a gradient needs."""
    more = {name: value for name, value in call.items() if name not in ("ks", "live")}
    more |= {"k": call["ks"], "max_k": k} if "ks" in call else {"k": k}
    more |= {"counts": True} if call.get("fill") is False else {}
    return grouped(more | {"num_rows": call.get("live"), "values": True, "raw": True})


def gradient_of_torch(x, given, weights):
    """Answer of a call, and the gradient of its weighted values."""
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(x).requires_grad_()
    found = ksieve.select(tensor, **given)
    found.values.backward(torch.from_numpy(weights))
    return found._replace(values=found.values.detach()), tensor.grad


def gradient_of_jax(x, given, weights):
    """The same of a program of JAX."""
    jax = pytest.importorskip("jax")

    def program(scores):
        found = ksieve.select(scores, **given)
        return found.values, found

    wide = any(str(getattr(leaf, "dtype", leaf)) == "int64" for leaf in jax.tree.leaves(given))
    with jax.enable_x64(wide):
        _, back, found = jax.vjp(jax.jit(program), x, has_aux=True)
        return found, back(weights)[0]


@pytest.mark.parametrize(
    ("differentiated", "step"),
    [(gradient_of_torch, 6), (gradient_of_jax, 30), pytest.param(gradient_of_jax, 3, marks=pytest.mark.extended)],
)
def test_values_carry_the_gradient_of_the_scores_that_they_are(differentiated, step):
    """Of some combinations of the options: each slot weighs the first of its entry's best scores."""
    for seed, case in list(enumerate(pairwise(AXES)))[::step]:
        x, k, call = built(case | {"dtype": "float32"}, seed)
        weights = np.arange(1, len(x) * columns_of(k, call) + 1, dtype=np.float32).reshape(len(x), -1)
        answer, changes = differentiated(x, arguments_of(k, call), weights)
        raw = np.asarray(answer.raw)
        found = oracle.entries_of(x, call, np.arange(len(x)))
        gradient, wanted = np.zeros_like(x), np.full_like(weights, -np.inf if call.get("largest", True) else np.inf)
        for row in range(x.shape[0]):
            each = zip(found.begin[row], found.size[row], found.column[row], found.rank[row], strict=True)
            columns = {p: c for b, n, c, rank in each if rank != oracle.NONE for p in range(b, b + n)}
            for slot, position in enumerate(raw[row].tolist()):
                if position in columns:
                    wanted[row, slot] = x[row, columns[position]]
                    gradient[row, columns[position]] += weights[row, slot]
        assert np.asarray(answer.values).tobytes() == wanted.tobytes(), call
        assert np.asarray(changes).tobytes() == gradient.tobytes(), call


def test_programs_of_jax():
    """Every twelfth combination of the options, with 64-bit integers: the oracle's answer."""
    jax = pytest.importorskip("jax")
    for seed, case in list(enumerate(pairwise(AXES)))[5::12]:
        x, k, call = built(case, seed)
        given = arguments_of(k, call) | {"counts": True}
        with jax.enable_x64(True):
            found = jax.jit(lambda s, given=given: ksieve.select(s, **given))(x)
        parts = {name: np.asarray(getattr(found, name)) for name in ("indices", "values", "raw", "counts")}
        oracle.assert_served(x, k, call, parts)


def test_verify_refutes_by_entries():
    x = np.array([[3, 9, 1, 7, 2, 8, 0, 5, 6, 4, 1]], np.float32)  # blocks of 3: 9, 8, 6, 4 (short)
    pairs = {"block_size": 3, "expand": 3, "k": 2}
    newest = pairs | {"force_last": 1}
    pools = {"expand": 4, "k": 2, "tail": np.array([42], np.int32)}
    gathered = {"positions": np.array([[40, 8, 5, -1, 2, 11, 12, 13, 14, 15, 16]], np.int32)}
    beside = {"block_size": 3, "k": 1, "force_first": 1, "force_last": 1, "forced_extra": True}
    for answer, call, message in (
        ([0, 1, 2, 3, 4, 5], pairs, ""),
        ([3, 4, 5, 0, 1, 2], pairs, ""),
        ([0, 1, 2, 9, 10, -1], newest, ""),
        ([9, 10, 0, 1, 2, -1], newest, ""),
        ([0, 1, 2, 6, 7, 8], pairs, "slot 3 holds entry 2 with score 6.0, but entry 1 with score 8.0 is not selected"),
        ([0, 1, 2, 3, 4, 5], newest, "not forced: entry 3 is forced, and not selected"),
        ([0, 1, 2, 3, 5, 4], pairs, "slots from 3 on do not hold the positions of entry 1, all of them in ascending"),
        ([0, 1, 3, 4, 5, -1], pairs, "slots from 0 on do not hold the positions of entry 0"),
        ([0, 1, -1, 3, 4, 5], pairs, "slot 2 holds the sentinel -1 and later slots hold positions"),
        ([0, 1, 2, 0, 1, 2], pairs, "entry 0 stands in slots 0 and 3"),
        ([0, 1, 2, 12, 13, 14], pairs, "slot 3 holds 12, which is of no entry of the row"),
        ([0, 1, 2, -1, -1, -1], pairs, "slot 3 holds the sentinel -1 with entries left, the best of them 1 with score"),
        ([9, 10, 0, 1, 2, -1], newest | {"sorted": "index"}, "slot 0 does not hold entry 0: by position"),
        ([0, 1, 2, 9, 10, -1], newest | {"sorted": True}, "slot 0 does not hold entry 3: forced entries stand first"),
        ([4, 5, 6, 7, 20, 21, 22, 23, 40, 41, -1], pools, ""),
        ([4, 5, 6, 7, 20, 21, 22, 23, -1, -1, -1], pools, "slots before 8 do not end with the tail [40, 42)"),
        ([4, 5, 6, 7, 40, 41, -1, -1, -1, -1, -1], pools, "slot 6 holds the sentinel -1 with entries left, the best"),
        ([4, 5, 6, 7, 40, 41, 42, 43, 40, 41, -1], pools, "slot 4 holds 40, which is of no entry of the row"),
        ([8, 2], gathered | {"force_first": 1}, ""),
        ([8, 5], gathered | {"force_first": 1}, "entry 2 is forced, and not selected"),
        ([8, 7], gathered | {"force_first": 1}, "slot 1 holds 7, which is of no entry of the row"),
        ([0, 1, 3], beside, ""),
        ([0, 2, 3], beside, "slot 1 holds entry 2 with score 6.0, but entry 1 with score 8.0 is not selected"),
        ([0, 1, 2], beside, "entry 3 is forced, and not selected"),
        ([0, 1, 3], beside | {"k": np.array([0], np.int32)}, "slot 1 holds an entry beyond the 2 of the row"),
    ):
        verdict = verified(x, None, np.array([answer]), **call)
        assert bool(verdict) is not bool(message) and message in str(verdict), (answer, str(verdict))
    for bad, message in (
        ({"expand": 4}, r"indices: got shape \(1, 2\); takes shape \(..., 0\), with k entries of 4 slots"),
        ({"block_size": 3, "k": 3}, "k: got 3; takes 2, that of indices"),
        ({"force_first": 3}, "force_first: got 3 forced entries with k=2"),
        ({"block_size": 3, "sentinel": 9}, "sentinel: got 9; takes an int that is no position"),
    ):
        with pytest.raises(ArgumentError, match=message):
            verified(x, None, np.array([[0, 1]]), **bad)


def test_a_recording_has_their_scores(tmp_path):
    import ksieve_lab
    from ksieve_lab.captures import Capture

    with ksieve_lab.record(tmp_path / "scores.safetensors") as recorder:
        ksieve.topk(scores(), np.array([40, 8, 0], np.int32), k=2, blocks=ksieve.Blocks(8, expand=8))
        ksieve.topk(
            scores(4),
            np.array([40, 7], np.int32),
            k=2,
            blocks=ksieve.Blocks(expand=4, tail=np.array([160, 28], np.int32)),
            bounds=ksieve.RowBounds(next_n=2),
        )
    assert (recorder.seen, recorder.kept, recorder.rows) == (2, 2, 7)
    with Capture(tmp_path / "scores.safetensors") as capture:
        assert capture.lengths.tolist() == [40, 8, 0, 40, 40, 7, 7]
