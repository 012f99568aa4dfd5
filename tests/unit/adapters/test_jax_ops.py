"""`ksieve.topk` in JAX programs: equal to the eager call under every transformation, with its checks and errors."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import ksieve  # noqa: E402
from cuda_fakes import fake_backend, make_plan, plan_of  # noqa: E402
from flat_calls import ask  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.core.device import DEVICES  # noqa: E402
from ksieve.core.errors import ArgumentError, BackendError  # noqa: E402
from ksieve.core.groups import grouped  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from ksieve.frontends.jax import ops as jax_ops  # noqa: E402
from ksieve.frontends.jax.ffi import Handler  # noqa: E402
from ksieve.planning.plan_text import encode_plan  # noqa: E402
from ksieve_lab.oracle import assert_exact  # noqa: E402
from xla_frames import FakeXla  # noqa: E402

ROWS, WIDTH, K = 6, 700, 9
rng = np.random.default_rng(11)
SCORES = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
LENGTHS = np.array([700, 3, 0, -5, 9000, 350], np.int32)
STARTS = np.array([0, 5, 690, -3, 100, 699], np.int32)
TABLE = rng.integers(0, 1000, (5, 44), dtype=np.int32)
REQUESTS = np.array([4, 0, 3, 9, 1, -1], np.int32)
PLACES = rng.permutation(ROWS * WIDTH).astype(np.int32).reshape(ROWS, WIDTH) - 500
PARTS = rng.permutation(ROWS * 70).astype(np.int32).reshape(ROWS, 70) - 30
KS = np.array([0, 9, 4, -1, 99, 1], np.int32)
FIXED = {"deterministic": True}

CALLS = {
    "plain": {},
    "lengths": {"lengths": LENGTHS},
    "ends": {"ends": LENGTHS},
    "windows": {"lengths": LENGTHS, "starts": STARTS, "index_base": "start", "values": True},
    "windows with ends": {"ends": LENGTHS, "starts": STARTS, "raw": True},
    "requests": {"lengths": LENGTHS[:2], "next_n": 3},
    "k of each row": {"k": KS, "max_k": K, "values": True},
    "pages": {"page_table": TABLE, "page_size": 16, "row_to_request": REQUESTS, "raw": True},
    "pages of requests": {"page_table": TABLE, "page_size": 16, "next_n": 2, "values": True},
    "offsets": {"offsets": STARTS, "values": True},
    "order": {"sorted": True, "tie_break": "high", "values": True, "raw": True},
    "live rows": {"num_rows": np.array([4], np.int32), "lengths": LENGTHS},
    "live rows, scalar": {"num_rows": np.array(2, np.int32)},
    "live rows, int": {"num_rows": 1},
    "live rows, NumPy int": {"num_rows": np.int64(2)},
    "live rows, large int": {"num_rows": 2**64, "lengths": LENGTHS},
    "live rows, negative int": {"num_rows": -(2**64)},
    "no slots": {"k": 0, "lengths": LENGTHS, "values": True, "raw": True, "counts": True},
    "no slots of any row": {"k": KS, "max_k": 0, "counts": True},
    "no slots but those of forced entries": {"k": 0, "force_last": 2, "forced_extra": True, "counts": True},
    "blocks": {"block_size": 8, "ends": LENGTHS, "starts": STARTS, "values": True, "raw": True, "counts": True},
    "blocks and forced entries": {"block_size": 16, "force_first": 1, "force_last": 2, "values": True},
    "blocks with a k of each row": {"block_size": 8, "force_last": 2, "forced_extra": True, "k": KS, "max_k": K},
    "positions of blocks": {"block_size": 8, "expand": 8, "lengths": LENGTHS, "values": True, "counts": True},
    "blocks and a tail": {"block_size": 8, "expand": 8, "tail": LENGTHS - 3, "offsets": STARTS, "values": True},
    "pools": {"expand": 4, "tail": 3 * LENGTHS[:3], "next_n": 2, "values": True, "raw": True},
    "scores from elsewhere": {"positions": PLACES, "starts": STARTS, "sorted": True, "values": True},
    "scores of blocks": {"block_table": PARTS, "lengths": LENGTHS, "counts": True, "values": True},
    "scores of blocks in pages": {"block_table": PARTS, "page_table": TABLE, "row_to_request": REQUESTS},
}

VECTORS = ("lengths", "starts", "ends", "offsets", "tail", "k", "positions", "block_table")
"""Arrays with an entry for each row."""

BY_ROWS = [name for name, call in CALLS.items() if not {"next_n", "num_rows", "page_table"} & set(call)]


def split(call):
    arrays = {name: value for name, value in call.items() if isinstance(value, np.ndarray)}
    return arrays, {name: value for name, value in call.items() if name not in arrays}


def topk(scores, arrays, scalars):
    """The indices, or a tuple of them and of what else is asked for."""
    found = ksieve.select(scores, **grouped({"k": K} | FIXED | scalars | arrays))
    parts = tuple(part for part in found if part is not None)
    return parts if len(parts) > 1 else parts[0]


def same(got, want):
    got, want = (part if isinstance(part, tuple) else (part,) for part in (got, want))
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", CALLS)
def test_jit_equals_the_eager_call(name):
    arrays, scalars = split(CALLS[name])
    want = topk(SCORES, arrays, scalars)
    same(jax.jit(lambda s, a: topk(s, a, scalars))(SCORES, arrays), want)
    same(jax.jit(lambda s: topk(s, arrays, scalars))(jnp.asarray(SCORES)), want)
    if arrays:
        same(jax.jit(lambda a: topk(SCORES, a, scalars))(arrays), want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_are_the_scores_bit_for_bit(dtype):
    bits = rng.integers(0, 1 << 32, (4, 64), dtype=np.uint64)
    kind = np.dtype(jnp.dtype(dtype))
    scores = bits.astype(f"u{kind.itemsize}").view(kind)  # NaN payloads, subnormals, infinities
    for k in (8, 64, 70):
        indices, values = jax.jit(lambda s, k=k: ask(s, k=k, values=True, **FIXED))(scores)
        want = np.take_along_axis(scores, np.maximum(indices, 0), 1)
        want[np.asarray(indices) < 0] = -np.inf
        assert values.dtype == kind and np.asarray(values).tobytes() == want.tobytes()
        same(indices, np.asarray(ask(jnp.asarray(scores), k=k, **FIXED)))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (1, 1)])
def test_empty_matrices(shape):
    scores = np.zeros(shape, np.float32)
    call = dict(k=2, values=True, **FIXED)
    same(jax.jit(lambda s: ask(s, **call))(scores), ask(scores, **call))
    changes = jax.grad(lambda s: jnp.where(jnp.isfinite(v := ask(s, **call)[1]), v, 0).sum())(scores)
    same(changes, np.ones(shape, np.float32))


def test_64_bit_indices():
    with pytest.raises(ArgumentError, match="jax_enable_x64"):
        jax.jit(lambda s: ksieve.topk(s, k=K, index_dtype="int64"))(SCORES)
    with jax.enable_x64(True):
        call = {"index_dtype": "int64", "offsets": STARTS, "raw": True}
        same(jax.jit(lambda s: topk(s, {}, call))(SCORES), topk(SCORES, {}, call))


@pytest.mark.parametrize("name", CALLS)
def test_vmap_equals_one_call_after_the_other(name):
    arrays, scalars = split(CALLS[name])
    batches = {key: np.stack([np.roll(value, turn) for turn in range(4)]) for key, value in arrays.items()}
    scores = np.stack([np.roll(SCORES, turn, axis=1) for turn in range(4)])
    parts = [topk(scores[i], {key: np.asarray(value[i]) for key, value in batches.items()}, scalars) for i in range(4)]
    parts = [part if isinstance(part, tuple) else (part,) for part in parts]
    want = tuple(np.stack(part) for part in zip(*parts, strict=True))
    want = want if len(want) > 1 else want[0]
    mapped = jax.vmap(lambda s, a: topk(s, a, scalars))
    same(mapped(scores, batches), want)
    nested = {key: value.reshape(2, 2, *value.shape[1:]) for key, value in batches.items()}
    twice = jax.jit(jax.vmap(mapped))(scores.reshape(2, 2, ROWS, WIDTH), nested)
    same(jax.tree.map(lambda part: part.reshape(4, *part.shape[2:]), twice), want)
    if arrays:  # scores of all, arrays of each
        part = jax.jit(jax.vmap(lambda a: topk(SCORES, a, scalars)))(batches)
        first = jax.tree.map(lambda array: array[0], part)
        same(first, topk(SCORES, arrays, scalars))


@pytest.mark.parametrize("name", BY_ROWS)
def test_one_row_and_any_rank_equal_the_eager_call(name):
    arrays, scalars = split(CALLS[name])
    assert set(arrays) <= set(VECTORS)
    want = topk(SCORES, arrays, scalars)
    program = jax.jit(lambda s, a: topk(s, a, scalars))
    same(jax.vmap(program)(SCORES, arrays), want)
    row = jax.tree.map(lambda array: np.asarray(array[1]), arrays)
    same(program(SCORES[1], row), jax.tree.map(lambda array: array[1], want))
    deep = jax.tree.map(lambda array: array.reshape(2, 3, *array.shape[1:]), (SCORES, arrays, want))
    same(program(*deep[:2]), deep[2])
    same(jax.vmap(program, in_axes=1, out_axes=1)(*deep[:2]), deep[2])


def test_requests_of_any_rank():
    scalars = {"next_n": 3, "values": True}
    program = jax.jit(jax.vmap(lambda s, n: topk(s, {"lengths": n}, scalars)))
    scores, lengths = SCORES.reshape(2, 1, 3, WIDTH), LENGTHS[:2].reshape(2, 1)
    want = topk(SCORES, {"lengths": LENGTHS[:2]}, scalars)
    same(jax.tree.map(lambda array: array.reshape(ROWS, K), program(scores, lengths)), want)


def test_slots_that_are_not_filled():
    arrays = {"lengths": LENGTHS}
    program = jax.jit(lambda s: topk(s, arrays, {"counts": True, "fill": False}))
    indices, counts = program(SCORES)
    want, used = topk(SCORES, arrays, {"counts": True})
    same(counts, used)
    same(np.where(np.arange(K) < used[:, None], indices, -1), want)


GROUPS = {
    "without arrays": {"blocks": ksieve.Blocks(8, force_last=2)},
    "bounds and blocks": {
        "bounds": ksieve.RowBounds(starts=STARTS, ends=LENGTHS, index_base="start"),
        "blocks": ksieve.Blocks(8, expand=8, tail=LENGTHS - 3),
    },
    "pages of gathered scores": {
        "gathered": ksieve.SelectedBlocks(PARTS),
        "transform": ksieve.PageTable(TABLE, 16, row_to_request=REQUESTS),
    },
    "offsets": {"gathered": ksieve.Positions(PLACES), "transform": ksieve.Offsets(STARTS)},
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_arguments_of_programs(name):
    groups = GROUPS[name]

    def program(scores, groups):
        return tuple(ksieve.select(scores, k=K, values=True, deterministic=True, **groups)[:2])

    want = program(SCORES, groups)
    same(jax.jit(program)(SCORES, groups), want)
    batch = jax.tree.map(lambda array: np.stack([array, array]), (SCORES, groups))
    mapped = jax.jit(jax.vmap(program))(*batch)
    same(mapped, jax.tree.map(lambda array: np.stack([array, array]), want))


def test_groups_are_pytrees_before_any_other_call():
    code = (
        "import jax, numpy as np, ksieve, ksieve.frontends.jax.ops\n"
        "select = jax.jit(lambda s, blocks: ksieve.topk(s, k=3, blocks=blocks))\n"
        "assert select(np.zeros((2, 64), np.float32), ksieve.Blocks(8, force_last=1)).shape == (2, 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plan_serves_each_part_of_a_batch():
    plan = dispatch.plan_of(rows=ROWS, width=WIDTH, k=K, options=Options(order="index", tie_break="low"))
    scores = np.stack([SCORES, -SCORES])
    mapped = jax.jit(jax.vmap(lambda s: ksieve.topk(s, plan=plan)))(scores)
    same(mapped, np.stack([topk(SCORES, {}, {}), topk(-SCORES, {}, {})]))


GRADIENTS = {
    "rows": {},
    "lengths": {"lengths": LENGTHS},
    "windows": {"lengths": LENGTHS, "starts": STARTS, "index_base": "start"},
    "pages": {"page_table": TABLE, "page_size": 16, "row_to_request": REQUESTS},
    "pages and windows": {"page_table": TABLE, "starts": STARTS, "index_base": "start"},
    "offsets and raw": {"offsets": STARTS, "raw": True},
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_values(name):
    """The weights of the slots arrive at the scores' positions, which the index call without a transform says."""
    arrays, scalars = split(GRADIENTS[name])
    weights = rng.standard_normal((ROWS, K)).astype(np.float32)

    def loss(scores):
        values = topk(scores, arrays, scalars | {"values": True})[1]
        return jnp.sum(jnp.where(jnp.isfinite(values), values, 0) * weights)

    windows = {key: value for key, value in arrays.items() if key in ("lengths", "starts")}
    positions = topk(SCORES, windows, {})
    want = np.zeros_like(SCORES)
    for row, slot in np.argwhere(positions >= 0):
        want[row, positions[row, slot]] += weights[row, slot]
    assert np.count_nonzero(want) > 20
    same(jax.grad(loss)(SCORES), want)
    same(jax.jit(jax.grad(loss))(SCORES), want)
    same(jax.vmap(jax.grad(loss))(np.stack([SCORES, SCORES])), np.stack([want, want]))
    direction = rng.standard_normal(SCORES.shape).astype(np.float32)
    change = jax.jvp(loss, (SCORES,), (direction,))[1]
    np.testing.assert_allclose(change, np.sum(want.astype(np.float64) * direction), rtol=1e-4)
    assert not np.any(jax.grad(lambda s: jnp.sum(jax.grad(loss)(s) ** 2))(jnp.asarray(SCORES)))


def test_a_gradient_with_a_plan_that_has_no_raw_indices():
    options = Options(values=True, transform="offsets", order="index", tie_break="low")
    plan = dispatch.plan_of(rows=ROWS, width=WIDTH, k=K, options=options)
    changes = jax.grad(lambda s: ask(s, plan=plan, offsets=STARTS, values=True)[1].sum())(SCORES)
    want = np.zeros_like(SCORES)
    np.put_along_axis(want, topk(SCORES, {}, {}), 1, 1)
    same(changes, want)


def test_indices_carry_no_gradient():
    assert not np.any(jax.grad(lambda s: s.sum() * 0 + ksieve.topk(s, k=K).sum())(SCORES))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"k": -1}, "k: got -1; takes an int"),
        ({"out": True}, "out: got bool, which is not taken while JAX traces"),
        ({"counts": LENGTHS}, "counts: .* not taken while JAX traces"),
        ({"counts": True, "fill": 0}, "fill: got 0; takes True or False"),
        ({"block_size": 8, "positions": PLACES}, "block_size: got 8 with positions"),
        ({"lengths": LENGTHS.astype(np.int64)}, "lengths: got 'int64' while JAX's 64-bit types are off"),
        ({"starts": STARTS.astype(np.int64)}, "starts: got 'int64' while JAX's 64-bit types are off"),
        ({"lengths": LENGTHS[:3]}, r"lengths: got shape \(3,\); takes shape \(6,\)"),
        ({"lengths": LENGTHS.astype(np.float32)}, "lengths: got dtype float32; takes dtype int32"),
        ({"lengths": [1, 2]}, r"lengths: got list; .*jax\.numpy\.asarray\(lengths\) first"),
        ({"num_rows": True}, "num_rows: got bool"),
        ({"num_rows": 3.0}, "num_rows: got float"),
        ({"next_n": 4}, "next_n: got 4; takes a divisor"),
        ({"out": np.zeros((ROWS, K), np.int32)}, "out: got numpy.ndarray, which is not taken while JAX traces"),
        ({"values": SCORES}, "values: .* not taken while JAX traces"),
        ({"workspace": 5}, "workspace: got int, which is not taken while JAX traces"),
        ({"stats": True}, "stats: got True; takes False while JAX traces"),
        ({"plan": 3}, "plan: got int"),
        ({"plan": ksieve.plan(rows=2, width=WIDTH, k=K)}, "plan: got rows 6; takes at most the planned 2"),
        ({"k": 5, "plan": ksieve.plan(rows=8, width=WIDTH, k=K)}, "k: got 5; takes 9"),
    ],
)
def test_arguments_are_checked_while_tracing(call, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        jax.eval_shape(lambda s: ask(s, **{"k": K} | call), SCORES)


def test_scores_are_checked_while_tracing():
    for scores, message in (
        (np.zeros((), np.float32), r"scores: got shape \(\)"),
        (np.zeros((2, 5), np.int32), "scores: got dtype int32"),
        (np.zeros((2, 5), jnp.float8_e5m2), "scores: got dtype float8_e5m2"),
    ):
        with pytest.raises(ArgumentError, match=message):
            jax.jit(lambda s: ksieve.topk(s, k=2))(scores)
    with pytest.raises(ArgumentError, match=r"k: got jax.* a constant: static_argnames"):
        jax.jit(lambda s, k: ksieve.topk(s, k=k))(SCORES, 3)
    with pytest.raises(ArgumentError, match=r"scores: got list; .*jax\.numpy\.asarray\(scores\)"):
        jax.jit(lambda n: ksieve.topk([[1.0]], n, 1))(LENGTHS[:1])


def test_faults_of_a_run_are_errors_of_jax(monkeypatch):
    plan = ksieve.plan(rows=ROWS, width=WIDTH, k=K, device=DEVICES["h200"])
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT: plan: got scores of device cpu"):
        jax.block_until_ready(jax.jit(lambda s: ksieve.topk(s, plan=plan))(SCORES))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(dispatch, "select", interrupted)
    with pytest.raises(jax.errors.JaxRuntimeError, match="CANCELLED: the call of ksieve was interrupted"):
        jax.block_until_ready(jax.jit(lambda s: ksieve.topk(s, k=K))(SCORES))


def test_concrete_arrays_stay_eager():
    scores = jnp.asarray(SCORES)
    text = str(jax.make_jaxpr(lambda s: s + ksieve.topk(scores, k=K).sum())(1.0))
    assert jax_ops.TARGET not in text
    assert jax_ops.TARGET in str(jax.make_jaxpr(lambda s: ksieve.topk(s, k=K))(SCORES))


def test_threads_run_programs_at_once():
    select = jax.jit(lambda s: topk(s, {}, {"values": True}))
    matrices = [np.roll(SCORES, turn, axis=1) for turn in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(select, matrices * 20))
    for matrix, result in zip(matrices * 20, results, strict=True):
        same(result, topk(matrix, {}, {"values": True}))


def test_calls_are_observed_when_they_run(monkeypatch):
    seen = []
    monkeypatch.setattr(dispatch, "observers", (lambda call: seen.append(call.problem),))
    select = jax.jit(lambda s: ksieve.topk(s, k=K))
    for turn in range(1, 3):
        jax.block_until_ready(select(SCORES))
        assert [problem.rows for problem in seen] == [ROWS] * turn


def test_a_process_ends_while_programs_run():
    code = (
        "import jax, jax.numpy as jnp, ksieve\n"
        "select = jax.jit(lambda s: ksieve.topk(jnp.sort(s, axis=1), k=64))\n"
        "jax.block_until_ready(select(jnp.ones((64, 20000))))\n"
        "left = [select(jnp.ones((64, 20000)) * i) for i in range(8)]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_thread_may_be_importing_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", type(sys)("jax"))
    assert_exact(SCORES, None, K, ksieve.topk(SCORES, k=K))


def test_an_old_jax_is_refused_before_the_registration(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 8, 2))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *_, **__: pytest.fail("registered"))
    with pytest.raises(BackendError, match=r"install jax>=0\.8\.3"):
        jax_ops.register(jax_ops.TARGET, jax_ops.run_cuda, jax_ops.run_cuda)


@pytest.fixture
def driver(monkeypatch):
    for fake in fake_backend(monkeypatch, shared=20_000):
        plans = fake.plans = {}
        monkeypatch.setattr(jax_ops, "decode_plan", plans.get)
        yield fake


def selection(driver, plan, *arrays):
    driver.plans[encode_plan(plan)] = plan
    return jax_ops.Program(arrays, plan.problem.k, plan.problem.options, encode_plan(plan)).text


def test_on_cuda_the_call_is_enqueued_on_the_stream_of_xla(driver):
    plan = make_plan(rows=ROWS, width=WIDTH, k=K, index=1)
    xla, handler = FakeXla(stream=0x7FFF00001234, ordinal=1), Handler(jax_ops.run_cuda)
    out = np.full((ROWS, K), -99, np.int32)
    text = selection(driver, plan, "scores", "lengths")
    assert xla.call(handler, [SCORES, LENGTHS], [out], text) is None, xla.errors
    assert_exact(SCORES, LENGTHS, K, out)
    (launch,) = driver.launches
    assert (launch["scores"], launch["lengths"]) == (SCORES.ctypes.data, LENGTHS.ctypes.data)
    assert (launch["stream"], launch["context"], launch["indices"]) == (0x7FFF00001234, 1001, out.ctypes.data)
    driver.waits.clear()
    assert xla.call(handler, [SCORES, LENGTHS], [out], text) is None
    assert driver.waits == []  # the workspace was made by the first call
    pair, two, outs = np.stack([SCORES, -SCORES]), np.stack([LENGTHS, LENGTHS]), np.zeros((2, ROWS, K), np.int32)
    assert xla.call(handler, [pair, two], [outs], text) is None
    assert len(driver.launches) == 4
    for scores, indices in zip(pair, outs, strict=True):
        assert_exact(scores, LENGTHS, K, indices)
    xla.refused = 77
    assert xla.call(handler, [SCORES, LENGTHS], [out], text) == 77


def test_on_cuda_options_pass_the_memory_of_xla(driver):
    driver.asked = options = Options(values=True, transform="offsets", raw=True, order="index", tie_break="low")
    plan = plan_of(ROWS, WIDTH, K, options, "stream")
    out, values, raw = np.zeros((ROWS, K), np.int32), np.zeros((ROWS, K), np.float32), np.zeros((ROWS, K), np.int32)
    xla = FakeXla()
    text = selection(driver, plan, "scores", "offsets")
    assert xla.call(Handler(jax_ops.run_cuda), [SCORES, STARTS], [out, values, raw], text) is None, xla.errors
    same((out, values, raw), topk(SCORES, {"offsets": STARTS}, {"values": True, "raw": True}))


def test_on_cuda_nothing_is_launched_without_slots(driver):
    text = jax_ops.Program(("scores",), 0, Options(values=True, counts=True), None).text
    out, values, counts = np.zeros((ROWS, 0), np.int32), np.zeros((ROWS, 0), np.float32), np.full(ROWS, 7, np.int32)
    xla = FakeXla(stream=0x7FFF00001234)
    assert xla.call(Handler(jax_ops.run_cuda), [SCORES], [out, values, counts], text) is None, xla.errors
    assert driver.fills == [(counts.ctypes.data, counts.nbytes, 0x7FFF00001234)]
    assert not driver.launches and not counts.any()


def test_on_cuda_scores_cannot_be_recorded(driver, monkeypatch):
    monkeypatch.setattr(dispatch, "observers", (lambda call: call.arrays["scores"][0:1],))
    xla, text = FakeXla(), selection(driver, make_plan(rows=ROWS, width=WIDTH, k=K), "scores")
    assert xla.call(Handler(jax_ops.run_cuda), [SCORES], [np.zeros((ROWS, K), np.int32)], text) == 1
    assert xla.errors[0][0].startswith("a recording cannot copy scores in a JAX program") and not driver.launches


def test_xla_refuses_a_stream_on_the_cpu():
    """The function table of the real XLA: the place of its stream getter, and the device's ordinal."""
    ordinals = []

    def run(frame):
        ordinals.append(frame.device())
        frame.stream()

    handler = Handler(run)
    jax.ffi.register_ffi_target("ksieve_stream_probe", jax.ffi.pycapsule(handler.address), platform="cpu")
    probe = jax.ffi.ffi_call("ksieve_stream_probe", jax.ShapeDtypeStruct((), np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="context is not available"):
        jax.block_until_ready(jax.jit(lambda: probe(text=""))())
    assert ordinals == [0]
