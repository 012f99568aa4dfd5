"""`ksieve.logits` on the CPU, against the oracle and against the NumPy model."""

from __future__ import annotations

import math
import subprocess
import sys
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest

import logits_oracle as oracle
from ksieve import ArgumentError, logits
from ksieve.backends.cpu import logits as compiled
from ksieve.backends.cpu import runner
from ksieve.core.keys import widen
from ksieve.model import logits as model

ROWS, MARGIN, WITHOUT_K = 50, 1e-12, 1e-6
TEMPERATURES = np.float32([0.01, 0.3, 0.7, 1, 1, 1.3, 10, 100, 0, -1, np.nan, np.inf])
PARTS = np.float32([1e-3, 0.1, 0.5, 0.9, 0.95, 1, 1, 0, 1.5, np.nan])
SCANNED = logits.Flags.SCANNED.value
LEAST = np.float32([0, 1e-3, 0.05, 0.2, 1, -1, np.nan])


def scores_of(rng, rows, width, dtype="float32"):
    """Rows of several kinds, a few with NaN and infinities."""
    x = rng.standard_normal((rows, width)) * rng.choice([0.1, 1, 3, 20, 1e4], (rows, 1), p=[0.1, 0.4, 0.3, 0.15, 0.05])
    x += rng.choice([0, -12, 30], (rows, 1))
    few = rng.choice(np.array([-1, -0.0, 0.0, 0.5, 2]), (rows, width))
    x = np.where(rng.random((rows, 1)) < 0.4, few, x)
    odd = rng.choice([-np.inf, np.inf, np.nan], (rows, width), p=[0.8, 0.1, 0.1])
    x = np.where((rng.random((rows, width)) < 0.1) & (rng.random((rows, 1)) < 0.3), odd, x)
    x[rng.random(rows) < 0.02] = -np.inf
    if dtype == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def call_of(rng, rows, width, k):
    """Random arrays of a call, by name; ``k`` is the rows' own."""
    call = {}
    if rng.random() < 0.5:
        call["lengths"] = rng.integers(-2, width + 4, rows).astype(rng.choice(["int32", "int64"]))
    if rng.random() < 0.5:
        words = rng.integers(-(1 << 31), 1 << 31, (rows, -(-width // 32) + int(rng.integers(0, 2))))
        call["allowed"] = words.astype(np.int32)
        call["allowed"][rng.random(rows) < 0.1] = 0
    numbers = ("temperature", TEMPERATURES, 8, 0.6), ("p", PARTS, 7, 0.6), ("min_p", LEAST, 5, 0.5)
    for name, values, valid, share in numbers:
        if rng.random() < share:
            call[name] = rng.choice(values[: None if rng.random() < 0.2 else valid], rows)
            if name == "temperature" and rng.random() < 0.3:
                call[name] = rng.uniform(0.2, 3, rows).astype(np.float32)
    if rng.random() < 0.3:
        call["k"] = rng.integers(-1, k + 3, rows).astype(np.int32)
    call["tokens"] = rng.integers(-2, width + 2, (rows, int(rng.integers(1, 4)))).astype(np.int32)
    call["uniform"] = rng.random(rows, np.float32)
    call["uniform"][:3] = (0, 1, np.nan)[:rows]
    return call


def take(call, *names):
    """Arguments of a function; `k` comes apart."""
    return {name: call[name] for name in names if name in call}


ALL = ("lengths", "allowed", "temperature")


def same(found, right, most, of=0.0):
    """Whether a number is within `most` ulp (float32) of the larger of 1 and its size, or `of`, or is no finite one."""
    if not abs(right) <= 3.4e38:
        return np.isnan(found) if np.isnan(right) else found == right or (abs(right) < np.inf == abs(found))
    size = max([1.0, abs(right)] + [abs(of)] * bool(np.isfinite(of)))
    return abs(float(found) - right) <= most * float(np.spacing(np.float32(size)))


def asked(name, scores, given, convert):
    """Result of a call in NumPy arrays; bfloat16 comes as uint16 bits."""
    own = {key: convert(value) if isinstance(value, np.ndarray) else value for key, value in given.items()}
    found = getattr(logits, name)(convert(scores), **own)
    return type(found)(*map(back, found))


def drawn_call(rng, rows, width, k, dtype):
    """Scores and arrays of a random call, and the arguments of each function."""
    scores, call = scores_of(rng, rows, width, dtype), call_of(rng, rows, width, k)
    slots = {"k": call["k"], "max_k": k} if "k" in call else {"k": k}
    first, capacity = bool(rng.random() < 0.3), int(rng.integers(1, k + 3))
    of = {"k": None} if rng.random() < 0.3 else slots
    joint = bool(of is slots and rng.random() < 0.4)
    limits = of | take(call, *ALL, "p", "min_p") | {"min_p_first": first, "joint": joint}
    statistics = slots | take(call, *ALL) | {"tokens": call["tokens"]}
    kept, sample = limits | {"capacity": capacity}, limits | {"uniform": call["uniform"]}
    return scores, call, {"statistics": statistics, "kept": kept, "sample": sample}


def check_call(rng, rows, width, k, dtype, convert=lambda array: array, counts=None):
    """Compare one random call of each function with the oracle; return how many rows have too small a margin.

    `counts`: of the rows of each function, by flag and by argument.
    """
    scores, call, given = drawn_call(rng, rows, width, k, dtype)
    stats, kept, drawn = found = [asked(name, scores, own, convert) for name, own in given.items()]
    for (name, own), part in zip(given.items(), found, strict=True) if counts is not None else ():
        counts.update({f"{name}, {flag.name}": int(np.count_nonzero(part.flags & flag)) for flag in logits.Flags})
        arguments = [f"{'no ' * (value is None)}{key}" for key, value in own.items() if value is not False]
        counts.update({f"{name}, {argument}": rows for argument in arguments})
    first, capacity, near = given["kept"]["min_p_first"], given["kept"]["capacity"], 0
    whole, joint = given["kept"]["k"] is None, given["kept"]["joint"]
    least = WITHOUT_K if whole else MARGIN
    for r in range(rows):
        own = {name: array[r] for name, array in call.items()}
        row = oracle.Row(scores[r], k, take(own, *ALL, "k"))
        check_statistics(row, own["tokens"], [None if part is None else part[r] for part in stats])
        most, names = (width, ALL) if whole else (k, (*ALL, "k"))
        row = oracle.Row(scores[r], most, take(own, *names, "p", "min_p"))
        tokens, sums, margin = row.kept(**take(own, "p", "min_p"), min_p_first=first, joint=joint)
        if kept.counts[r] != len(tokens):
            assert margin < (WITHOUT_K if joint else least)
            near += 1
            continue
        listed = min(len(tokens), capacity)
        assert kept.tokens[r].tolist() == [*tokens[:listed], *[-1] * (capacity - listed)]
        right = np.zeros(capacity)
        right[:listed] = (np.diff(sums, prepend=0.0) / sums[-1:])[:listed]
        assert (np.abs(kept.probabilities[r] - right) <= least + 1e-7 * right).all()
        assert kept.flags[r] & ~(whole * SCANNED) == row.flags | oracle.CAPACITY * (len(tokens) > capacity)
        row = oracle.Row(scores[r], most, take(own, *names, "p", "min_p", "uniform"))
        assert drawn.flags[r] & ~(whole * SCANNED) == row.flags
        if row.invalid or not len(tokens):
            assert drawn.tokens[r] == -1 and np.isnan(drawn.logprobs[r])
            continue
        token, margin = row.draw(np.float64(own["uniform"]), tokens, sums, whole)
        if drawn.tokens[r] != token:
            assert margin < least
            near += 1
        assert same(drawn.logprobs[r], row.token(int(drawn.tokens[r]))[0], 2, row.lse)
    return near


def check_statistics(row, tokens, found):
    positions, values, logsumexp, logprobs, ranks, flags = found
    count = 0 if row.invalid else min(row.k, row.order.size)
    assert positions.tolist() == [*row.order[:count], *[-1] * (positions.size - count)]
    assert oracle.wide(values)[:count].tobytes() == row.x[row.order[:count]].tobytes()
    assert (oracle.wide(values)[count:] == -np.inf).all()
    assert same(logsumexp, row.lse, 2), (logsumexp, row.lse)
    assert flags == row.flags | oracle.TOKEN * any(not 0 <= token < row.x.size for token in tokens)
    for token, logprob, rank in zip(tokens, logprobs, ranks, strict=True):
        right = row.token(token)
        assert rank == right[1]
        assert same(logprob, right[0], 2, row.lse), (logprob, right)


def back(tensor):
    """An array of a result."""
    if tensor is None or isinstance(tensor, np.ndarray):
        return tensor
    import torch

    tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_of_pytorch(dtype):
    torch = pytest.importorskip("torch")

    def tensor(array):
        if array.dtype == np.uint16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    rng = np.random.default_rng(59)
    assert sum(check_call(rng, ROWS, 100, 7, dtype, tensor) for _ in range(20)) < 2
    weights = torch.nn.Parameter(torch.randn(3, 40))
    found = logits.statistics(weights.T[::1].T, 2, tokens=torch.tensor([1, 2, 3], dtype=torch.int32))
    assert found.values.dtype is torch.float32 and found.ranks.shape == (3,)
    torch.testing.assert_close(found.logsumexp, torch.logsumexp(weights.detach(), 1))


def test_ties_at_the_cut_of_a_kept_set():
    """Equal weights add up exactly, so that no margin excuses anything."""
    scores = np.float32([[3, 1, 3, 3, 3]])
    for p, count in ((0.25, 1), (0.2500001, 2), (0.5, 2), (0.75, 3), (0.7500001, 4), (1, 4)):
        assert logits.kept(scores, 4, p=p).counts.tolist() == [count]
    for uniform, token in ((0, 0), (0.2499999, 0), (0.25, 2), (0.5, 3), (0.75, 4), (1, 4)):
        assert logits.sample(scores, 4, uniform=uniform).tokens.tolist() == [token]
    assert logits.kept(scores, 5, min_p=1).tokens.tolist() == [[0, 2, 3, 4, -1]]
    # exp(-2) of the best: 0.135. With it the best two are 0.47 of all, without it 0.5.
    assert logits.kept(scores, 5, p=0.49, min_p=0.14).counts.tolist() == [3]
    assert logits.kept(scores, 5, p=0.49, min_p=0.14, min_p_first=True).counts.tolist() == [2]
    far = np.float32([[0, -800, -900, -1e30]])
    assert logits.kept(far, 4, p=1).counts.tolist() == [4] and logits.kept(far, 4, p=0.999).counts.tolist() == [1]


# ---- the log-sum-exp -------------------------------------------------------------------------------------


def right_lse(row, temperature):
    """Float64, with a sum of Python's, which rounds once."""
    x = row.astype(np.float64) / np.float64(temperature)
    return x.max() + math.log(math.fsum(np.exp(x - x.max())))


def lse_of(rows, temperature, lengths=None):
    """Log-sum-exp of rows, and the sums that give it, which are those of the model to the byte."""
    temperature = np.broadcast_to(np.float32(temperature), len(rows)).copy()
    lengths = np.full(len(rows), rows.shape[1]) if lengths is None else lengths
    exact, factors = model.factors(temperature)
    none = (np.empty((len(rows), 0), dtype) for dtype in (np.uint32, np.int32))
    state, _ = compiled.sum_all(rows, lengths, factors, *none)
    for row, factor, length, found in zip(rows, factors, lengths, state, strict=True):
        assert found.tolist() == model.sum_row(widen(row[:length]), factor)
    found = logits.statistics(rows, 1, temperature=temperature, lengths=lengths).logsumexp
    sums = model.Sums(*state.T)
    assert found.tobytes() == model.logsumexp(sums.log2(exact)).tobytes()
    return found, sums


def test_sums_equal_those_of_the_model():
    rng = np.random.default_rng(1)
    for width in (1, 63, 64, 257, 1024, 1025, 4097, 9000):
        for dtype in ("float32", "float16", "bfloat16"):
            rows = scores_of(rng, 40, width, dtype)
            lse_of(rows, 10 ** rng.uniform(-2, 2, 40))
            lse_of(rows, 10 ** rng.uniform(-2, 2, 40), rng.integers(0, width + 1, 40))


def hard_rows(width):
    """Rows on which a sum of fixed point, or of float32, may go wrong."""
    rng, rows = np.random.default_rng(width), {}
    rows["flat"] = np.full(width, -math.log(width), np.float32)  # the log-sum-exp is about 0
    rows["normal"] = rng.standard_normal(width).astype(np.float32)
    rows["peaked"] = (rng.standard_normal(width) * 30).astype(np.float32)
    rows["just below half a unit"] = np.full(width, np.float32(-42 * math.log(2)) - np.float32(1e-5), np.float32)
    rows["just above half a unit"] = np.full(width, np.float32(-42 * math.log(2)) + np.float32(1e-5), np.float32)
    for name in ("just below half a unit", "just above half a unit"):
        rows[name][0] = 0
    rows["up to 2^20 above the reference"] = rows["normal"].copy()
    rows["up to 2^20 above the reference"][40:60] += np.float32(13.5)
    for above in (23, 24):
        rows[f"at 2^{above} above"] = np.zeros(width, np.float32)
        rows[f"at 2^{above} above"][40] = above * math.log(2) + 0.1
    rows["far above the reference"] = rows["normal"].copy()
    rows["far above the reference"][40:44] = 60, 61, 61.5, 62
    rows["one far below"] = np.full(width, 3e4, np.float32)
    rows["one far below"][::2] = -3e38
    rows["giants"] = (1e9 + rng.integers(0, 9, width) * 64).astype(np.float32)
    rows["negative giants"] = -rows["giants"]
    rows["beyond float32"] = np.full(width, 3.4e38, np.float32)
    rows["near powers of two"] = (np.round(rng.standard_normal(width) * 3) * math.log(2)).astype(np.float32)
    return rows


@pytest.mark.parametrize("width", [2000, 1 << 18])
def test_the_bound_of_the_log_sum_exp(width):
    rows = hard_rows(width)
    for temperature in (0.01, 0.7, 1, 1.3, 100):
        found, sums = lse_of(np.stack(list(rows.values())), temperature)
        for name, row, lse in zip(rows, rows.values(), found, strict=True):
            assert same(lse, right_lse(row, np.float32(temperature)), 2), (name, temperature)
        if temperature == 1:
            of = dict(zip(rows, zip(*sums, strict=True), strict=True))
            assert of["up to 2^20 above the reference"][1] > 0
            assert of["at 2^23 above"][1] >> 19 == pytest.approx(math.exp(0.1) * 2**23) and of["at 2^23 above"][2] == 3
            assert of["at 2^24 above"][1:3] == (0, 27)
            assert of["far above the reference"][1] == 0 and of["far above the reference"][2] == 92
            assert of["giants"][3] == rows["giants"].max().view(np.int32)
            assert of["just below half a unit"][0] == 1 << 41 and of["just above half a unit"][0] > 1 << 41


def test_p_of_the_whole_row_as_engines_define_it():
    """SGLang's sampler in PyTorch, and FlashInfer's ``"joint"``: two filters, each of all tokens."""
    rng = np.random.default_rng(8)
    for width, temperature in ((1, 1), (40, 0.3), (3000, 1), (3000, 30), (1 << 17, 3)):
        scores, k, p = (
            (rng.standard_normal((8, width)) * 3).astype(np.float32),
            int(rng.integers(1, 200)),
            rng.random(8),
        )
        scores[0], scores[1, 1:], p[2] = 0, scores[1, 1:] - 1e9, 0.97
        weights = np.exp(scores.astype(np.float64) / np.float32(temperature))
        order = np.argsort(-weights, axis=1, kind="stable")
        probabilities = np.take_along_axis(weights / weights.sum(1, keepdims=True), order, 1)
        before = probabilities.cumsum(1) - probabilities
        right = ((before < p[:, None]) & (np.arange(width) < k)).sum(1)
        given = {"p": p.astype(np.float32), "temperature": temperature}
        found = logits.kept(scores, k, **given, joint=True)
        assert found.counts.tolist() == right.tolist()
        assert (found.counts >= logits.kept(scores, k, **given).counts).all()
        for first in (False, True):
            cut = logits.kept(scores, k, **given, min_p=0.1, min_p_first=first, joint=True).counts
            assert cut.tolist() == np.minimum(right, (probabilities >= 0.1 * probabilities[:, :1]).sum(1)).tolist()
    scores = np.float32([[np.inf, 0, np.inf, np.inf], [1e30] * 4, [-np.inf, 1, -np.inf, -np.inf], [np.nan, 0, 0, 0]])
    assert logits.kept(scores, 2, p=0.5, joint=True).counts.tolist() == [1, 1, 1, 0]
    assert logits.kept(scores, 2, p=0.6, joint=True).counts.tolist() == [2, 2, 1, 0]
    assert logits.sample(np.zeros((1, 9), np.float32), 4, p=0.3, uniform=1.0, joint=True).tokens.tolist() == [2]


def test_tokens_without_weight_are_never_drawn():
    rows = np.float32([[np.inf, 0, np.inf], [0, -1e4, -1e5], [-1e4, 0, 0]])
    assert logits.sample(rows, 3, uniform=1.0).tokens.tolist() == [2, 0, 2]


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_sets_behind_one_another(library):
    rows = np.float32([[-2.3, -0.5, -1.2], [-np.inf] * 3, [-1.6, -1.6, -0.5]])
    for count, right in ((3, ([0, 2, 2, 4], [1, 2, 2, 0])), (0, ([0], []))):
        scores = getattr(pytest.importorskip(library), "from_numpy" if library == "torch" else "asarray")(rows[:count])
        found = logits.kept(scores, 3, p=0.7, capacity=2)
        offsets, tokens, probabilities = found.csr()
        assert (offsets.tolist(), tokens.tolist()) == right
        assert probabilities.tolist() == [own for row in found.probabilities.tolist() for own in row if own > 0]


def test_rows_without_numbers():
    inf, nan = np.inf, np.nan
    rows = np.float32([[nan, 1, 2], [nan, inf, 0], [inf, 0, inf], [-inf] * 3, [-inf, nan, -inf], [-inf, 5, -inf]])
    found = logits.statistics(rows, 3, tokens=np.tile(np.int32([0, 1, 5]), (6, 1)))
    np.testing.assert_array_equal(found.logsumexp, np.float32([nan, nan, inf, -inf, nan, 5]))
    flags = [1, 1 | 32, 32, 2, 1, 0]
    assert found.flags.tolist() == [flag | logits.Flags.TOKEN for flag in flags]
    assert found.positions.tolist() == [[2, 1, -1], [1, 2, -1], [0, 2, 1], [-1] * 3, [-1] * 3, [1, -1, -1]]
    assert found.ranks.tolist() == [[-1, 1, -1], [-1, 0, -1], [0, 2, -1], [-1] * 3, [-1] * 3, [-1, 0, -1]]
    np.testing.assert_array_equal(found.logprobs[2:4], np.float32([[nan, -inf, nan], [-inf, -inf, nan]]))
    drawn = logits.sample(rows, 3, uniform=0.75)
    assert drawn.tokens.tolist() == [-1, -1, 2, -1, -1, 1] and drawn.flags.tolist() == flags
    assert logits.sample(rows, 3, uniform=1.0).tokens.tolist() == drawn.tokens.tolist()
    assert logits.kept(rows, 3).counts.tolist() == [0, 0, 3, 0, 0, 1]
    masked = logits.statistics(rows, 3, allowed=np.int32([[6], [4], [2], [7], [5], [0]]))
    np.testing.assert_array_equal(
        masked.logsumexp, np.float32([math.log(math.exp(1) + math.exp(2)), 0, 0, *[-inf] * 3])
    )
    assert masked.flags.tolist() == [0, 0, 0, 2, 2, 2]


def test_a_row_has_the_same_bytes_in_every_call(monkeypatch):
    rng = np.random.default_rng(3)
    rows, width = 24, 9000
    scores, call = scores_of(rng, rows, width), {}
    while not {"lengths", "allowed", "temperature", "p", "min_p"} <= set(call):
        call = call_of(rng, rows, width, 50)
    limits = take(call, *ALL, "p", "min_p")

    def answers(part, scores=scores):
        own = {name: np.ascontiguousarray(array[part]) for name, array in limits.items()}
        plain, tokens = take(own, *ALL), np.ascontiguousarray(call["tokens"][part])
        found = (
            *logits.statistics(scores[part], 50, tokens=tokens, **plain),
            *logits.kept(scores[part], 50, **own),
            *logits.kept(scores[part], capacity=50, **own),
            *logits.sample(scores[part], 50, uniform=np.ascontiguousarray(call["uniform"][part]), **own),
            *logits.sample(scores[part], uniform=np.ascontiguousarray(call["uniform"][part]), **own),
        )
        return [[array[i].tobytes() for array in found] for i in range(len(found[0]))]

    whole = answers(slice(None))
    order = rng.permutation(rows)
    assert answers(order) == [whole[r] for r in order]
    assert [answers(slice(r, r + 1))[0] for r in range(rows)] == whole
    wide = np.full((rows, width + 5), np.nan, np.float32)
    wide[:, 3:-2] = scores
    assert answers(slice(None), wide[:, 3:-2]) == whole
    for threads in (1, 2, 5):
        monkeypatch.setattr(runner, "thread_count", lambda threads=threads: threads)
        assert answers(slice(None)) == whole


@pytest.mark.extended
def test_a_thread_that_flushes_subnormals_gets_the_same_bytes():
    torch = pytest.importorskip("torch")
    scores = np.random.default_rng(6).integers(0, 97, (3, 2000)).astype(np.uint32)
    scores[1:] = scores_of(np.random.default_rng(7), 2, 2000).view(np.uint32)
    calls = [lambda: logits.statistics(scores.view(np.float32), 50, tokens=np.tile(np.int32([1, 50]), (3, 1)))]
    calls.append(lambda: logits.kept(scores.view(np.float32), 50, p=0.9, min_p=0.01))
    numbers, far = np.float32([0, 1e-40, 1]), np.tile(np.float32([0, -92, -1e4]), (3, 1))
    calls.append(lambda: logits.kept(far, 3, p=numbers))
    calls.append(lambda: logits.kept(far, 3, min_p=numbers))
    before = [[array.tobytes() for array in call()] for call in calls]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode that PyTorch sets")
    try:
        assert [[array.tobytes() for array in call()] for call in calls] == before
    finally:
        torch.set_flush_denormal(False)


# ---- numbers that are written out ------------------------------------------------------------------------


def test_fma_rounds_once():
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(3000).astype(np.float32) for _ in "ab")
    c = -(a.astype(np.float64) * b * rng.choice([0, 0.5, 1, 1 + 2.0**-24, 1e9], 3000)).astype(np.float32)
    # Just below the middle of two float32, where float64 has the middle; and the same below zero.
    a[:2], b[:2], c[:2] = 1 - 2.0**-23, (1 + 2.0**-23) * 2.0**-24, 1 + 2.0**-23
    a[1], c[1] = -a[1], -c[1]
    found = model.fma(a, b, c)
    for x, y, z, f in zip(a, b, c, found, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        errors = [abs(Fraction(float(g)) - exact) for g in (np.nextafter(f, -np.inf), f, np.nextafter(f, np.inf))]
        assert errors[1] <= min(errors[0], errors[2]) and (errors[1] < errors[0] or f.view(np.int32) % 2 == 0)


def test_exponentials_and_logarithms():
    getcontext().prec = 40
    ln2 = Decimal(2).ln()
    y = -np.random.default_rng(5).random(2000) * np.repeat([0.5, 1, 60, 999], 500)
    for x, found in zip(y, model.exp2(y), strict=True):
        assert abs(Decimal(float(found)) / (Decimal(float(x)) * ln2).exp() - 1) < Decimal("2.3e-16")
    assert model.exp2(np.array([0.0, -1.0, -1000.5, -np.inf])).tolist() == [1, 0.5, 0, 0]
    s = np.concatenate([1 + y[:500], 2.0 ** (y[1000:1500] + 64), 2.0 ** np.arange(64)])
    for x, found in zip(s, model.log2(s), strict=True):
        right = Decimal(float(x)).ln() / ln2
        assert abs(Decimal(float(found)) - right) < Decimal("1e-15") * max(1, abs(right))
    f = np.linspace(-0.5, 0.5, 10_001)
    power = np.polyval(np.float32(model.POWER).astype(np.float64), f)
    assert np.abs(power / 2**f - 1).max() < 3.1e-9


# ---- bad input -------------------------------------------------------------------------------------------

GOOD = np.zeros((4, 70), np.float32)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("logits", {"logits": [[1.0]]}, "takes a NumPy"),
        ("logits", {"logits": GOOD.astype(np.float64)}, "takes dtype float32"),
        ("logits", {"logits": GOOD[0]}, "takes a matrix"),
        ("logits", {"logits": GOOD.T}, "last stride"),
        ("width", {"logits": GOOD[:, :0]}, "at least 1"),
        ("width", {"logits": np.empty((1, (1 << 19) + 1), np.float32)}, "at most 524288"),
        ("k", {"k": 0}, "an int from 1"),
        ("k", {"k": 1025}, "at most 1024"),
        ("capacity", {"k": None}, "an int from 1 to 1024 where k is None"),
        ("capacity", {"k": None, "capacity": 1025}, "at most 1024"),
        ("max_k", {"k": None, "max_k": 3, "capacity": 3}, "unless k is an array"),
        ("k", {"k": np.ones(4, np.int64), "max_k": 3}, "dtype int32"),
        ("k", {"k": np.ones(3, np.int32), "max_k": 3}, r"shape \(4,\)"),
        ("max_k", {"k": np.ones(4, np.int32)}, "an int from 1"),
        ("max_k", {"max_k": 3}, "unless k is an array"),
        ("lengths", {"lengths": np.zeros(3, np.int32)}, r"shape \(4,\)"),
        ("lengths", {"lengths": np.zeros(8, np.int32)[::2]}, "contiguous"),
        ("allowed", {"allowed": np.zeros((4, 2), np.int32)}, "n at least 3"),
        ("allowed", {"allowed": np.zeros((4, 3), np.int64)}, "dtype int32"),
        ("allowed", {"allowed": np.zeros((4, 6), np.int32)[:, ::2]}, "contiguous rows"),
        ("temperature", {"temperature": 0}, "a number from 7.88861e-31"),
        ("temperature", {"temperature": np.nan}, "a number"),
        ("temperature", {"temperature": 10**400}, "a number"),
        ("temperature", {"temperature": "1"}, "got str"),
        ("temperature", {"temperature": np.ones(4)}, r"astype\(np.float32\)"),
        ("p", {"p": 0.0}, "above 0 to 1"),
        ("p", {"p": 1.01}, "above 0 to 1"),
        ("p", {"p": np.ones((4, 1), np.float32)}, r"shape \(4,\)"),
        ("min_p", {"min_p": -0.1}, "from 0 to 1"),
        ("min_p", {"min_p": True}, "got bool"),
        ("min_p_first", {"min_p_first": 1}, "True or False"),
        ("joint", {"joint": 1}, "True or False"),
        ("joint", {"joint": True, "k": None, "capacity": 3}, "False where k is None"),
        ("capacity", {"capacity": 0}, "at least 1"),
        ("uniform", {"uniform": 2}, "from 0 to 1"),
        ("uniform", {"uniform": None}, "from 0 to 1"),
        ("tokens", {"tokens": np.zeros(4, np.int64)}, "dtype int32"),
        ("tokens", {"tokens": np.zeros((3, 1), np.int32)}, r"shape \(4,\) or \(4, n\)"),
        ("tokens", {"tokens": np.int32(3)}, "NumPy"),
    ],
)
def test_bad_arguments_are_named(name, given, text):
    function = {"tokens": logits.statistics, "uniform": logits.sample}.get(name, logits.kept)
    with pytest.raises(ArgumentError, match=text) as error:
        function(**{"logits": GOOD, "k": 5} | given)
    assert error.value.argument == name


def test_numbers_of_rows_are_flagged_where_they_are_wrong():
    bad, good = np.float32([np.nan, 0, -1, np.inf]), np.float32([1, 0.5])
    scores = np.zeros((6, 40), np.float32)
    for name in ("temperature", "p", "uniform"):
        given = {"uniform": 0.5} | {name: np.concatenate([bad, good])}
        found = logits.sample(scores, 3, **given)
        wrong = [bool(f & logits.Flags.INVALID) for f in found.flags]
        assert wrong == [True, name != "uniform", True, True, False, False]
        assert [token < 0 for token in found.tokens] == wrong
    found = logits.kept(scores, np.int32([0, -1, 1, 2, 3, 9]), max_k=3)
    assert found.counts.tolist() == [0, 0, 1, 2, 3, 3] and found.flags.tolist() == [18, 18, 0, 0, 0, 0]


def test_calls_of_no_rows():
    empty = np.empty((0, 40), np.float32)
    assert logits.statistics(empty, 3, tokens=np.empty((0, 2), np.int32)).ranks.shape == (0, 2)
    assert logits.kept(empty, 3).tokens.shape == (0, 3) and logits.sample(empty, 3, uniform=0.5).tokens.shape == (0,)


def test_an_import_of_the_library_does_not_import_it():
    code = "import sys, ksieve; assert not [m for m in sys.modules if m.startswith('ksieve.logits')]; "
    code += "import ksieve.logits; assert 'numba' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
