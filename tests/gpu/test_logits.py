"""`ksieve.logits` on CUDA against the CPU, byte for byte: rows that decide a route of the sums, every family and dtype.

The CPU is held to the oracle in tests/contract/test_logits.py, whose random calls run here too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest
import torch

from contract import test_logits as contract
from contract.test_logits_volume import ALL_ROWS, draws
from gpu import HOST, runner
from ksieve import logits
from ksieve.core.arrays import Device
from ksieve.logits import cpu, cuda, problem

pytestmark = pytest.mark.gpu

FAMILIES = {"stream": (5000, 40_000), "stream_unsampled": (1030, 9001), "stream_split": (70_001,)}
"""Widths of the rows of each family."""
DTYPES = ("float32", "float16", "bfloat16")
K = 50


def rows_of(width, dtype, seed=0):
    """Rows of NaN, infinities, plateaus, sorted, peaked, far apart, and far above the scores at reference positions."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((19, width)).astype(np.float32) * 3
    x[1, 5], x[2, 7], x[3], x[4], x[5] = np.nan, np.inf, -np.inf, np.sort(x[4]), 7
    x[6, 11], x[7, 13], x[8], x[9] = 500, x[7].max() + 9, x[8] * 1e7, -3.4e38
    x[10, rng.random(width) < 0.9] = -3.4e38
    x[11, rng.random(width) < 0.999] = -np.inf
    x[12] = rng.choice(np.float32([-1e4, 0, 1, 0.5]), width)
    x[13], x[14], x[15] = np.linspace(-900, 900, width), rng.standard_cauchy(width), x[15] - 1e6
    x[16, 40 : 40 + width // 9] = x[16].max() + 6  # a row that is summed in two parts
    x[17] = rng.integers(0, 40, width) / -64 - 0.0078  # of few scores, which lie beside the middles of bins
    x[18, 1:] = rng.random(width - 1) / 1000 - 9  # in one bin
    x[17:, 0] = 0
    if dtype == "bfloat16":
        return (x.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def bitmask_of(scores, rng):
    """Random words, and those that hide a route of its row: NaN, inf, what samples see, equal scores, all but a few."""
    (rows, width), floats = scores.shape, material_floats(scores)
    words = -(-width // 32)
    bits = rng.random((rows, 32 * (words + 5))) < rng.choice([0.02, 0.5, 0.95], (rows, 1))
    if rows > 16:
        bits[[1, 4, 7, 8, 10, 14]] = False  # all of row 8; NaN in row 1
        bits[0, :width], bits[4, width - 70 : width] = floats[0] < np.median(floats[0]), True
        bits[7, :32] = bits[10, 32 * words - 32 :] = bits[13] = bits[14, 777 % width] = bits[1, 300:320] = True
        bits[2, 7] = bits[6, 11] = False  # inf, and a score far above the others
        bits[5] = np.arange(bits.shape[1]) % 2  # of equal scores
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def calls_of(scores, width, seed=0):
    """Arguments of statistics: none, a token, and others; tokens are among the best scores, and any."""
    rng, rows = np.random.default_rng(seed), len(scores)
    best = np.argsort(-np.nan_to_num(material_floats(scores), nan=-np.inf), 1)[:, : K + 10]
    tokens = rng.integers(-1, width + 1, (rows, 20)).astype(np.int32)
    tokens[:, :10] = np.take_along_axis(best, rng.integers(0, K + 10, (rows, 10)), 1)
    tokens[:, 1:4] = rng.integers(0, 30, (rows, 3))  # of short rows too
    lengths = rng.integers(0, width + 9, rows).astype(np.int32)
    if rows > 5:
        lengths[[0, 3, 5]] = 30, 0, min(700, width)
    temperature = rng.choice(np.float32([0.01, 0.5, 0.7, 1, 1 / 1.4426950, 2.88539, 3, 100, 0, np.nan]), rows)
    yield {}
    yield {"tokens": tokens[:, 0].copy()}
    yield {"tokens": tokens, "lengths": lengths, "temperature": temperature}
    own = rng.integers(-1, K + 10, rows).astype(np.int32)
    yield {"k": own, "max_k": K, "tokens": tokens[:, :8].copy(), "temperature": 0.7}
    allowed = bitmask_of(scores, rng)
    yield {"allowed": allowed, "tokens": tokens}
    yield {"allowed": allowed[:, : -(-width // 32)].copy(), "tokens": tokens[:, :3].copy(), "lengths": lengths}


def material_floats(scores):
    """Scores as float32; uint16 holds bits of bfloat16."""
    return (scores.astype(np.uint32) << 16).view(np.float32) if scores.dtype == np.uint16 else scores.astype(np.float32)


def tensor(array):
    """An array as a tensor of the device."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(runner.DEVICE)
    return torch.from_numpy(array).to(runner.DEVICE)


def array_of(value):
    """A tensor, or an array, as an array of the host."""
    return runner.to_numpy(value) if isinstance(value, torch.Tensor) else value


class OnDevice(problem.Request):
    """A request for arrays of the host, as one for arrays of the emulated device, which are the same."""

    @classmethod
    def of(cls, request):
        described = {name: info._replace(device=Device("cuda", 0)) for name, info in request.described.items()}
        arrays = {name: fake(array) for name, array in request.arrays.items()}
        given = {field.name: getattr(request, field.name) for field in fields(request)}
        return cls(**given | {"arrays": arrays, "described": described})

    def empty(self, dtype, *shape):
        half = {"float16": "float16", "bfloat16": "uint16"}.get(self.dtype, self.dtype)
        return fake(np.empty(shape, dtype or half))


def fake(array):
    """An array of the emulated device."""
    return None if array is None else runner.on_device(torch.from_numpy(array))


def compare(scores, results, fill, family=None, offset=0, **given):
    """Compare the bytes of the device's answer with the CPU's. `fill(backend, request, results)` runs a function."""
    padded = np.zeros((len(scores), scores.shape[1] + 8), scores.dtype)
    padded[:, offset : offset + scores.shape[1]] = scores
    placed = padded[:, offset : offset + scores.shape[1]]
    k, max_k = given.pop("k", K), given.pop("max_k", None)
    request = problem.parse(placed, k, max_k, **given)
    right = results(request)
    fill(cpu, request, right)
    if HOST:
        found = results(request)
        fill(cuda, OnDevice.of(request), type(found)(*map(fake, found)), family)
    else:
        whole = tensor(padded)[:, offset : offset + scores.shape[1]]
        own = {name: tensor(value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
        asked = problem.parse(whole, tensor(k) if isinstance(k, np.ndarray) else k, max_k, **own)
        found = results(asked)
        fill(cuda, asked, found, family)
    for name, a, b in zip(right._fields, right, found, strict=True):
        if a is not None:
            a, b = np.asarray(a), np.asarray(array_of(b))
            a, b = (np.where(x != x, np.nan, x) if x.dtype.kind == "f" else x for x in (a, b))
            assert a.tobytes() == b.tobytes(), (name, family, sorted(given), np.argwhere(~((a == b) | (a != a)))[:5])
    return found


def fill_statistics(backend, request, out, *family):
    backend.statistics(request, out, *family)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_equal_those_of_the_cpu(family, dtype, tally):
    for width, offset in ((width, offset) for width in FAMILIES[family] for offset in (0, 3)):
        scores = rows_of(width, dtype)
        for given in calls_of(scores, width):
            compare(scores, problem.statistics_of, fill_statistics, family, offset, **given)
            tally.add(f"logits-{family}-{dtype}", len(scores), [])


def limits_of(scores, width, seed=0):
    """Arguments of kept sets and samples."""
    rng, rows = np.random.default_rng(seed), len(scores)
    p = rng.choice(np.float32([1e-3, 0.1, 0.5, 0.9, 0.95, 1, 0, 1.5, np.nan]), rows)
    min_p = rng.choice(np.float32([0, 1e-3, 0.05, 0.2, 1, -1, np.nan]), rows)
    temperature = rng.choice(np.float32([0.01, 0.7, 1, 3, 100, 0]), rows)
    lengths = rng.integers(0, width + 9, rows).astype(np.int32)
    yield {}
    yield {"p": 0.9}
    yield {"p": p, "min_p": min_p, "temperature": temperature, "lengths": lengths}
    yield {"p": p, "min_p": min_p, "min_p_first": True}
    yield {"p": p, "min_p": min_p, "min_p_first": True, "temperature": temperature, "lengths": lengths, "joint": True}
    allowed = bitmask_of(scores, rng)
    yield {"p": 0.5, "allowed": allowed}
    yield {"k": rng.integers(-1, K + 10, rows).astype(np.int32), "max_k": K, "min_p": 0.05, "temperature": 2.0}
    yield {"k": 1024, "p": 0.99, "temperature": 3.0}
    yield {"p": 0.4, "joint": True, "allowed": allowed, "temperature": 3.0}
    for whole in (
        {},
        {"p": 0.9, "lengths": lengths},
        {"min_p": min_p, "temperature": 3.0},
        {"p": 0.5, "allowed": allowed},
    ):
        yield {"k": None} | whole
    both = {"p": p, "min_p": min_p, "temperature": temperature, "lengths": lengths.astype(np.int64)}
    yield {"k": None} | both
    yield {"k": None, "min_p_first": True} | both
    yield {"k": None, "p": np.float32(1 - rng.random(rows) ** 4), "temperature": 3000.0}


def slots_of(given, slots):
    """Arguments of a request, with its slots if there is no k."""
    return given | {"whole": slots} if given.get("k", K) is None else given


def kept_of(capacity):
    return lambda request: problem.kept_of(request, capacity)


@pytest.mark.parametrize("dtype", DTYPES)
def test_kept_sets_and_samples_equal_those_of_the_cpu(dtype, tally):
    width = 5000
    scores, rng = rows_of(width, dtype), np.random.default_rng(1)
    for given in limits_of(scores, width):
        for capacity in (7, K, K + 9):
            fill, own = lambda backend, *rest: backend.kept(*rest), slots_of(given, capacity)
            compare(scores, kept_of(capacity), fill, "stream", 3, **own)
        uniform = rng.random(len(scores), np.float32)
        uniform[:3], uniform[8:10] = (0, 1, np.nan), 1  # rows 8 and 9 have weights of 0
        for drawn in (uniform, 0.5):
            fill = lambda backend, *rest: backend.sample(*rest)  # noqa: E731
            compare(scores, problem.sample_of, fill, "stream", uniform=drawn, **slots_of(given, problem.DRAWN_OF))
        tally.add(f"logits-kept-{dtype}", 5 * len(scores), [])


def calls_ahead():
    """Calls that load the kernels of the random options."""
    allowed, lengths = torch.zeros(2500, 2, dtype=torch.int32), torch.ones(2500, dtype=torch.int64)
    for x in (torch.zeros(2500, 33, dtype=getattr(torch, dtype), device=runner.DEVICE) for dtype in DTYPES):
        yield lambda x=x: logits.kept(x, K)
        yield lambda x=x: logits.kept(x, capacity=K, lengths=lengths.to(x.device))
        yield lambda x=x: logits.statistics(x, K, allowed=allowed.to(x.device))


def test_volume(tally):
    """A million rows whose answers on the CPU tests/contract/test_logits_volume.py compares with the oracle."""
    rows, each = (ALL_ROWS // 100, 8) if HOST else (1_000_000, 2500)
    with ThreadPoolExecutor(8) as pool:
        for scores, _, given in pool.map(lambda draw: contract.drawn_call(*draw), draws(rows, each)):
            for offset, (name, own) in enumerate(given.items()):
                fill = lambda backend, *rest, name=name: getattr(backend, name)(*rest)  # noqa: E731
                slots = own.pop("capacity", problem.DRAWN_OF)
                results = {"statistics": problem.statistics_of, "kept": kept_of(slots), "sample": problem.sample_of}
                compare(scores, results[name], fill, None, offset, **slots_of(own, slots))
            tally.add("logits-volume", len(scores), [])


def check_few(family, dtype):
    """Compare a call of each function for the sanitizers; returns how many there were."""
    width = min(FAMILIES[family]) if family == "stream_split" else 5000
    scores, count = rows_of(width, dtype), 0
    for given in calls_of(scores, width):
        compare(scores, problem.statistics_of, fill_statistics, family, 3, **given)
        count += 1
    compare(scores, kept_of(7), lambda backend, *rest: backend.kept(*rest), family, 1, p=0.9, min_p=0.05)
    uniform = np.linspace(0, 1, len(scores), dtype=np.float32)
    fill = lambda backend, *rest: backend.sample(*rest)  # noqa: E731
    for own in ({}, {"k": None, "whole": problem.DRAWN_OF}):
        compare(scores, problem.sample_of, fill, family, 1, p=0.9, uniform=uniform, **own)
    return count + 3


needs_cuda = pytest.mark.skipif(HOST, reason="needs the CUDA backend")


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 128_256), (17, 151_936), (200, 128_256), (300, 32_000), (70, 300)])
def test_vocabularies(rows, width, dtype, tally):
    """Shapes whose kernel the planner chooses; normal and peaked rows, and rows that decide a route."""
    rng = np.random.default_rng(width)
    x = rng.standard_normal((rows, width), dtype=np.float32) * rng.choice(np.float32([0.1, 1, 3, 10]), (rows, 1))
    x = (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else x.astype(dtype)
    if rows > 16:
        x[:19] = rows_of(width, dtype)[:rows]
    for given in calls_of(x, width):
        compare(x, problem.statistics_of, fill_statistics, None, 1, **given)
    for given in limits_of(x, width):
        compare(x, kept_of(K), lambda backend, *rest: backend.kept(*rest), None, **slots_of(given, K))
        fill, own = lambda backend, *rest: backend.sample(*rest), slots_of(given, problem.DRAWN_OF)
        compare(x, problem.sample_of, fill, None, uniform=0.7, **own)
    tally.add(f"logits-vocabularies-{dtype}", rows * 10, [])


@needs_cuda
@pytest.mark.parametrize("seed", range(6))
def test_random_calls_against_the_oracle(seed, tally, monkeypatch):
    """The random joint options of the CPU's test, through the public functions."""
    back = contract.back
    monkeypatch.setattr(contract, "back", lambda array: back(array if array is None else array.cpu()))
    rng, near, calls = np.random.default_rng(seed), 0, 20
    for _ in range(calls):
        width = int(rng.choice([1, 33, 200, 1500, 9000]))
        dtype = str(rng.choice(DTYPES))
        near += contract.check_call(rng, contract.ROWS, width, int(rng.integers(1, 20)), dtype, tensor)
    assert near < calls * contract.ROWS // 20
    tally.add("logits-oracle", calls * contract.ROWS, [])


@needs_cuda
@pytest.mark.parametrize(("rows", "dtype"), [(3, "float32"), (64, "float32"), (300, "bfloat16")])
def test_graphs(rows, dtype, tally):
    """Replays on other rows: sums, counters and workspaces begin anew."""
    width = 40_001
    held = torch.zeros(rows, width, device="cuda", dtype=getattr(torch, dtype))
    tokens = torch.randint(width, (rows, 3), device="cuda", dtype=torch.int32)
    uniform = torch.rand(rows, device="cuda")

    def call():
        return (
            logits.statistics(held, K, tokens=tokens), logits.kept(held, K, p=0.9),
            logits.sample(held, K, p=0.9, uniform=uniform),
            logits.kept(held, p=0.9, capacity=K), logits.sample(held, p=0.9, uniform=uniform),
        )  # fmt: skip

    graph, found = runner.captured(call)
    for seed in range(4):
        bits = rows_of(width, dtype, seed)[:rows]
        held[: len(bits)] = tensor(bits)
        held[len(bits) :].normal_(0, seed + 1)
        graph.replay()
        torch.cuda.synchronize()
        got = [[a.clone() for a in each if a is not None] for each in found]
        right = [[a for a in each if a is not None] for each in call()]
        host = held.cpu()
        own = (
            logits.statistics(host, K, tokens=tokens.cpu()), logits.kept(host, K, p=0.9),
            logits.sample(host, K, p=0.9, uniform=uniform.cpu()),
            logits.kept(host, p=0.9, capacity=K), logits.sample(host, p=0.9, uniform=uniform.cpu()),
        )  # fmt: skip
        for one, other, cpu_one in zip(got, right, own, strict=True):
            for a, b, c in zip(one, other, [x for x in cpu_one if x is not None], strict=True):
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))
                assert torch.equal(a.cpu().nan_to_num(7), c.nan_to_num(7))
        tally.add("logits-graphs", rows, [])
