"""The same selection from other libraries and through PyTorch's compilers, on the GPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import ksieve
from answers import RANKINGS, random_row
from flat_calls import ask, verified
from gpu import runner
from ksieve.core.errors import KsieveError
from ksieve.core.groups import grouped
from ksieve_lab import oracle

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(runner.HOST, reason="needs the CUDA backend")]

ROWS, WIDTH, K = 6, 40_000, 512


def calls_ahead():
    """What the programs call, for its kernels; also on the host, which compiles code of its own."""
    x, n = (torch.from_numpy(array) for array in made())
    for scores, lengths in ((x.cuda(), n.cuda()), (x.repeat(2, 1).cuda(), n.repeat(2).cuda()), (x, n)):
        yield partial(ksieve.topk, scores, lengths, K)
        yield partial(ksieve.select, scores, lengths, k=K, deterministic=True, values=True)
        yield partial(ksieve.select, scores, k=K, values=True)
    split = ksieve.plan(rows=ROWS, width=WIDTH, k=K, device="cuda", family="stream_split")
    yield partial(ksieve.topk, x.cuda(), n.cuda(), plan=split)


@pytest.fixture
def problem():
    return made()


def made():
    rng = np.random.default_rng(4)
    lengths = np.array([WIDTH, 100, K, K + 1, 0, 30_000], np.int32)
    return rng.standard_normal((ROWS, WIDTH), dtype=np.float32), lengths


def assert_exact(problem, indices):
    oracle.assert_exact(*problem, K, np.asarray(indices))


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_torch_compile(backend, problem):
    scores, lengths = (torch.from_numpy(x).cuda() for x in problem)

    def select(x, n):
        return ksieve.topk(x * 1.0, n, K) + 0

    indices = torch.compile(select, fullgraph=True, backend=backend)(scores, lengths)
    assert_exact(problem, indices.cpu())


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12), reason="this PyTorch cannot trace a frozen dataclass"
)
def test_torch_compile_with_a_plan_and_an_output(problem):
    scores, lengths = (torch.from_numpy(x).cuda() for x in problem)
    plan = ksieve.plan(rows=ROWS, width=WIDTH, k=K, device="cuda", family="stream_split").prepare()
    out = torch.full((ROWS, K), 7, dtype=torch.int32, device="cuda")
    live = torch.tensor([ROWS], dtype=torch.int32, device="cuda")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def select(x, n, o, m):
        ksieve.topk(x, n, plan=plan, out=o, num_rows=m)

    select(scores, lengths, out, live)
    assert_exact(problem, out.cpu())


def test_torch_compile_under_cuda_graphs(problem):
    scores, lengths = (torch.from_numpy(x).cuda() for x in problem)
    select = torch.compile(lambda x, n: ksieve.topk(x, n, K), fullgraph=True, mode="reduce-overhead")
    for turn in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        shifted = scores.roll(turn, 1)
        indices = select(shifted, lengths)
        assert_exact((shifted.cpu().numpy(), problem[1]), indices.cpu())


def test_cupy(problem):
    cupy = pytest.importorskip("cupy")
    scores, lengths = (cupy.asarray(x) for x in problem)
    indices = ksieve.topk(scores, lengths, K)
    assert isinstance(indices, cupy.ndarray)
    assert indices.dtype == cupy.int32
    assert_exact(problem, cupy.asnumpy(indices))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        again = ksieve.topk(scores[:, ::1], lengths, K, out=cupy.full((ROWS, K), 9, cupy.int32))
        stream.synchronize()
    assert_exact(problem, cupy.asnumpy(again))


def test_jax(problem):
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip(f"JAX sees no GPU, only {jax.default_backend()}")
    scores, lengths = (jax.device_put(x, jax.devices("gpu")[0]) for x in problem)
    indices = ksieve.topk(scores, lengths, K)
    assert isinstance(indices, jax.Array)
    assert_exact(problem, indices)


def test_jax_in_a_program(problem):
    """On the stream of XLA, whose other kernels make the scores and read the answer, without a wait in between."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip(f"JAX sees no GPU, only {jax.default_backend()}")
    scores, lengths = problem
    call = {"k": K, "deterministic": True, "values": True}

    def select(x, n):
        indices, values = ask(jax.numpy.roll(x, 1, axis=1), n, **call)
        return indices + 1, values

    want = ask(np.roll(scores, 1, axis=1), lengths, **call)
    program = jax.jit(select)
    for indices, values in [program(scores, lengths) for _ in range(50)]:
        np.testing.assert_array_equal(indices, want[0] + 1)
        np.testing.assert_array_equal(values, want[1])
    batch = jax.jit(jax.vmap(select))(np.stack([scores, scores]), np.stack([lengths, lengths]))
    np.testing.assert_array_equal(batch[0][1], want[0] + 1)
    changes = jax.jit(jax.grad(lambda x: ask(x, k=K, values=True)[1].sum()))(scores)
    assert np.count_nonzero(changes) == ROWS * K
    plan = ksieve.plan(rows=ROWS, width=WIDTH, k=K)
    with pytest.raises(jax.errors.JaxRuntimeError, match="plan: got scores of device cuda"):
        jax.block_until_ready(jax.jit(lambda x: ksieve.topk(x, plan=plan))(scores))


JAX_CALLS = {
    "blocks": lambda rng: {"block_size": 8, "force_first": 1, "force_last": 2, "forced_extra": True, "counts": True},
    "blocks and tails": lambda rng: {
        "block_size": 16, "expand": 16, "tail": rng.integers(0, WIDTH, ROWS, np.int32), "values": True,
    },
    "pools": lambda rng: {"expand": 4, "tail": rng.integers(0, 4 * WIDTH, ROWS, np.int32), "values": True},
    "positions": lambda rng: {"positions": rng.permuted(np.tile(np.arange(WIDTH, dtype=np.int32), (ROWS, 1)), axis=1)},
    "block table": lambda rng: {
        "block_table": rng.permutation(ROWS * WIDTH // 4).astype(np.int32).reshape(ROWS, -1), "raw": True,
        "offsets": np.arange(ROWS, dtype=np.int32),
    },
    "k of each row": lambda rng: {"block_size": 8, "k": np.arange(ROWS, dtype=np.int32), "max_k": K, "counts": True},
    "no slots": lambda rng: {"k": 0, "values": True, "counts": True},
    "forced entries alone": lambda rng: {"k": 0, "force_last": 3, "forced_extra": True, "counts": True},
}  # fmt: skip


@pytest.mark.parametrize("name", JAX_CALLS)
def test_jax_programs_take_what_eager_calls_take(problem, name):
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip(f"JAX sees no GPU, only {jax.default_backend()}")
    scores, lengths = problem
    call = {"k": K, "deterministic": True} | JAX_CALLS[name](np.random.default_rng(3))
    arrays = {"lengths": lengths} | {key: value for key, value in call.items() if isinstance(value, np.ndarray)}

    def select(x, given):
        found = ksieve.select(x, **grouped({**call, **given}))
        return tuple(part for part in found if part is not None)

    want = select(scores, arrays)
    program = jax.jit(select)
    pair = jax.tree.map(lambda array: np.stack([array, array]), (scores, arrays))
    answers = [
        program(scores, arrays),
        jax.vmap(program)(scores, arrays),
        [part[1] for part in jax.vmap(program)(*pair)],
    ]
    for answer in answers:
        for mine, theirs in zip(answer, want, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    if call.get("values"):
        finite = jax.jit(jax.grad(lambda x: jax.numpy.where(jax.numpy.isfinite(v := select(x, arrays)[1]), v, 0).sum()))
        assert finite(scores).sum() == np.count_nonzero(np.isfinite(want[1]))


@pytest.mark.parametrize("tie_break", [None, "low", "high"])
@pytest.mark.parametrize("order", [False, "index", "value"])
@pytest.mark.parametrize("ranking", RANKINGS)
def test_verify_judges_every_option_on_the_device(ranking, order, tie_break):
    """All answers of small rows: the verdict is that of the host, for which the unit tests hold the definition."""
    for seed, index_base in enumerate(["row", "start"]):
        options = {"order": order, "tie_break": tie_break, "index_base": index_base}
        row = random_row(30 + seed, ranking=ranking, **options)
        answers = row.answers()
        scores, rows = np.tile(row.scores, (len(answers), 1)), len(answers)
        call = row.arguments(rows) | {"num_rows": rows - 9}
        on_device = {name: torch.from_numpy(x).cuda() if isinstance(x, np.ndarray) else x for name, x in call.items()}
        device_scores = torch.from_numpy(scores).cuda()
        expected = verified(scores, indices=answers, **call)
        for block_bytes in (10_000, 1 << 26):
            found = verified(
                device_scores[None], indices=torch.from_numpy(answers).cuda()[None], block_bytes=block_bytes,
                **{n: x[None] if isinstance(x, torch.Tensor) else x for n, x in on_device.items()},
            )  # fmt: skip
            assert str(found) == str(expected)
            np.testing.assert_array_equal(found.reasons, expected.reasons)


def test_another_device_than_the_current_one(problem):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    scores, lengths = (torch.from_numpy(x).to("cuda:1") for x in problem)
    with pytest.raises(KsieveError, match="lengths"):
        ksieve.topk(scores, lengths.to("cuda:0"), K)
    indices = ksieve.topk(scores, lengths, K)
    assert indices.device == scores.device
    assert_exact(problem, indices.cpu())
    with pytest.raises(KsieveError, match="device"):
        ksieve.topk(scores, lengths, plan=ksieve.plan(rows=ROWS, width=WIDTH, k=K, device="cuda:0"))
