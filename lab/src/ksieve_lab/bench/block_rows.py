"""Rows of many kinds of calls with blocks, pools, forced entries, tails and candidates, selected and verified.

Each kind is a call of a model, or options that none of them has. Rows are of every family in turn, made on the host in
small numbers, and varied on the device that selects. All are judged there (`ksieve_lab.oracle`), and the first ones of
each batch by `ksieve.verify` too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.device import DeviceInfo
from ksieve.planning.plan import Plan
from ksieve_lab.bench import calls
from ksieve_lab.workloads.lengths import LENGTHS
from ksieve_lab.workloads.producers import PRODUCERS

EVERY = ("float32", "float16", "bfloat16")
MOST = 4096
"""Rows of a call."""

VERIFIED, BASES = 2, 64
"""Rows of each call that `ksieve.verify` judges besides; rows of a call that are made on the host."""

CHUNK = 128
"""Scores of a row that stay together where rows are varied: the sizes of blocks of most kinds divide it."""

BESIDE = 3
"""Columns of an output's memory besides its own, which no call may write to."""

OF_LENGTHS = ("ragged", "uniform", "adversarial", "blocks", "full")
FAMILIES = (
    "v41_blocks", "glm_pools", "msa_blocks", "equal_blocks", "one_block", "forced_best", "forced_worst", "all_equal",
    "two_values", "signed_zeros", "infinities", "nan_sprinkled", "random_bits", "one_coarse_bin", "one_cluster",
    "descending_subnormals",
)  # fmt: skip
FRESH = ("normal", "few values")
"""Families that are made where they are selected from, each of every fourth row."""

OF_BLOCKS = ("v41_blocks", "msa_blocks", "equal_blocks", "one_block", "forced_best", "forced_worst")

Topk = Callable[..., Any]


@dataclass(frozen=True)
class Kind:
    """Calls with the same options.

    `asked`: options by their names in `ksieve.core.table`. `arrays`: the passed ones, by name; "live" stands for
    `num_rows`, "k" for an array k. `most`: rows of a call. `share`: rows, over a usual kind's.
    """

    name: str
    k: int
    width: int
    asked: dict[str, Any]
    arrays: tuple[str, ...] = ("lengths",)
    dtypes: tuple[str, ...] = EVERY
    most: int = MOST
    share: float = 1.0

    @property
    def planned(self) -> dict[str, Any]:
        """Options, and placeholders for the arrays that decide a plan."""
        named: dict[str, Any] = {name: True for name in self.arrays if name not in ("lengths", "k", "live", "long")}
        lengths = np.zeros(0, np.int64 if "long" in self.arrays else np.int32)
        named |= {name: lengths for name in ("lengths", "ends") if name in self.arrays}
        return self.asked | named | ({"k": None} if "k" in self.arrays else {})


_NARROW = ("float32", "bfloat16")
_HALF = ("float32", "float16")
_V41 = {"block_size": 8, "force_last": 1, "expand": 8}
_MSA = {"block_size": 128, "force_first": 1, "force_last": 1}
_BOTH = {"force_first": 1, "force_last": 2, "forced_extra": True}

KINDS = (
    Kind("DeepSeek-V4.1", 512, 16_381, _V41),
    Kind("DeepSeek-V4.1, 2,048 blocks", 2048, 32_768, _V41, dtypes=_NARROW, most=1024, share=0.25),
    Kind("DeepSeek-V4.1, few rows", 2048, 131_072, _V41, dtypes=_NARROW, most=16, share=0.02),
    Kind("DeepSeek-V4.1, blocks alone", 512, 16_381, {"block_size": 8}, dtypes=_NARROW),
    Kind("DeepSeek-V4.1, several tokens", 256, 8192, _V41 | {"next_n": 2, "fill": False}, ("lengths", "counts")),
    Kind("DeepSeek-V4.1, deterministic", 256, 8192, _V41 | {"deterministic": True, "values": True}),
    Kind("DeepSeek-V4.1, inside", 512, 4096, {}, ("lengths", "positions")),
    Kind("DeepSeek-V4.1, inside a table", 512, 4096, {}, ("lengths", "block_table", "counts")),
    Kind("DeepSeek-V4.1, inside, deterministic", 512, 4096, {"deterministic": True}, ("lengths", "positions"), _HALF),
    Kind("GLM-5.3", 512, 4096, {"expand": 4}, ("lengths", "tail", "live")),
    Kind("GLM-5.3, several tokens", 512, 4096, {"expand": 4, "next_n": 4}, ("tail", "counts", "k"), _NARROW),
    Kind("Qwen3.8", 512, 2048, {"expand": 4, "sorted": "index"}, ("lengths", "tail", "counts")),
    Kind("MiniMax-M3", 16, 16_384, _MSA),
    Kind(
        "MiniMax-M3, pages", 16, 8192, _MSA | {"sorted": "index", "raw": True},
        ("lengths", "page_table", "row_to_request", "live"), _NARROW,
    ),
    Kind("MiniMax-M3, scored", 16, 2048, {"force_first": 1, "force_last": 1}),
    Kind("windows", 100, 5000, {"block_size": 7, "values": True} | _BOTH, ("starts", "ends"), _HALF),
    Kind(
        "windows, from their starts", 40, 6001,
        {"block_size": 24, "index_base": "start", "sorted": "value", "tie_break": "high"}, ("starts", "lengths"),
        _NARROW,
    ),
    Kind("ties, low", 256, 8192, _V41 | {"tie_break": "low"}, dtypes=_NARROW),
    Kind("ties, high", 100, 4096, {"block_size": 16, "tie_break": "high", "expand": 16} | _BOTH, dtypes=_HALF),
    Kind("forced, own k", 64, 4096, {"force_first": 4, "force_last": 70, "forced_extra": True}, ("lengths", "k")),
    Kind("smallest", 64, 4096, {"block_size": 16, "largest": False, "values": True}, dtypes=_HALF),
    Kind("NaN first", 64, 4095, {"block_size": 5, "nan": "highest", "force_last": 1}, dtypes=_NARROW),
    Kind(
        "blocks and a tail, offsets", 64, 4096, _V41 | {"raw": True},
        ("lengths", "tail", "offsets", "counts", "k"), _NARROW,
    ),
    Kind(
        "64-bit lengths and slots, pages", 64, 4096,
        {"block_size": 8, "expand": 8, "index_dtype": "int64", "page_size": 64, "raw": True},
        ("lengths", "long", "page_table"), ("float32",),
    ),
    Kind("candidates of pools", 64, 2048, {"expand": 4}, ("lengths", "positions", "tail"), _NARROW),
)  # fmt: skip
"""Every kind: each with a dtype is a kernel, few are two."""


@dataclass
class Batch:
    """A call to make: its kind, dtype, number of rows, and the number that its rows are drawn from."""

    kind: Kind
    dtype: str
    rows: int
    number: int
    scores: Any = None
    call: dict[str, Any] = field(default_factory=dict)
    live: int | None = None

    @property
    def judged(self) -> int:
        """Rows that are selected from."""
        return self.rows if self.live is None else self.live


def batches(count: int) -> Iterator[Batch]:
    """Calls with `count` rows or a few more, divided among kinds and dtypes; calls of a kind have equal rows."""
    variants = [(kind, dtype) for kind in KINDS for dtype in kind.dtypes]
    shares = sum(kind.share for kind, _ in variants)
    number = itertools.count()
    for kind, dtype in variants:
        own = max(-(-count * kind.share // shares), 1)
        calls = int(-(-own // kind.most))
        step = kind.asked.get("next_n", 1)
        rows = int(-(-own // calls) + step - 1) // step * step
        for _ in range(calls):
            yield Batch(kind, dtype, rows, next(number))


def plan_of(batch: Batch, device: DeviceInfo | str) -> Plan:
    """Plan of a call."""
    kind = batch.kind
    return calls.plan_of(batch.rows, kind.width, kind.k, batch.dtype, device, kind.planned, _pitch(batch))


def verify_rows(
    count: int, *, device: DeviceInfo | str = "cpu", seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None, topk: Topk | None = None, where: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Select and verify rows of many kinds.

    `count`: rows; a few more are verified, so that calls of a kind have equal shapes. `device`: of the plans.
    `progress`: called as ``progress(calls done, calls in all)``. `topk`: in place of `ksieve_lab.bench.calls.select`.
    `where`: device of the tensors, by default the plans'.

    Returns
    -------
    dict
        "rows", "failed" and "exact"; rows by "kinds", "dtypes" and "families". "by_verify": how many rows
        `ksieve.verify` judged too. "wrong": the first failed rows, with the reasons.
    """
    listed, wrong = list(batches(count)), list[dict[str, Any]]()
    where = where or (device if isinstance(device, str) else device.kind)
    tallies = {name: Counter[str]() for name in ("kinds", "dtypes", "families")}
    done, failed, host = 0, 0, 0
    for number, listed_batch in enumerate(listed, 1):
        batch = replace(listed_batch)  # whose arrays are not kept
        families = fill(batch, seed, where)
        outputs, intact = answer(batch, plan_of(batch, device), topk or calls.select)
        reasons = calls.faults(batch.scores, batch.call, outputs, batch.live)
        bad = sum(reasons.values()) > 0
        head = calls.by_verify(batch.scores, batch.call, outputs, min(VERIFIED, batch.judged))
        host += head.size
        bad[: head.size] |= bad.new_tensor(head.tolist())
        if not intact:
            bad[:] = True
        if bool(bad.any()):
            rows = bad.nonzero()[:, 0].tolist()
            failed += len(rows)
            told = [name for name, found in reasons.items() if bool(found.any())]
            wrong.append(
                {
                    "kind": batch.kind.name, "dtype": batch.dtype, "batch": batch.number, "rows": rows[:8],
                    "family": families[rows[0]], "judge": told, "verify": int(head.sum()), "intact": intact,
                }
            )  # fmt: skip
        for name, counted in (("kinds", [batch.kind.name]), ("dtypes", [batch.dtype])):
            tallies[name].update(counted * batch.rows)
        tallies["families"].update(families)
        done += batch.rows
        progress(number, len(listed))
    return {
        "rows": done, "failed": failed, "exact": not failed, "by_verify": host, "calls": len(listed),
        **{name: dict(counted) for name, counted in tallies.items()}, "wrong": wrong[:20],
    }  # fmt: skip


# ---- rows --------------------------------------------------------------------------------------------------


def _pitch(batch: Batch) -> int:
    """Row pitch: rows of every third call are packed, of the others not all equally aligned."""
    return batch.kind.width + (0, 3, 8)[batch.number % 3]


def fill(batch: Batch, seed: int, where: str) -> list[str]:
    """Make the scores and the arrays of a call; returns the family of each row."""
    import torch

    kind, rows = batch.kind, batch.rows
    rng = np.random.default_rng([seed, batch.number])
    generator = torch.Generator(where).manual_seed(int(rng.integers(1 << 62)))
    pitch, first = _pitch(batch), (0, 1, 4, 6)[batch.number % 4]
    memory = torch.empty(first + rows * pitch, dtype=getattr(torch, batch.dtype), device=where)
    batch.scores = memory[first:].view(rows, pitch)[:, : kind.width]
    # Few rows of a family are made on the host; of each follow others with the same chunks in another order.
    base, families = _bases(kind, batch.number, min(BASES, rows), rng)
    count, chunks = len(base), base.shape[1] // CHUNK
    row = torch.arange(rows, device=where)
    which = (row // 4 * 2 + row % 4) % count
    place = torch.rand(rows, chunks, device=where, generator=generator)
    place[:, 0], place[:, -1] = -1, 2
    place[:count] = torch.arange(chunks, device=where)
    grouped = torch.from_numpy(base).to(where).view(count, chunks, CHUNK)
    moved = grouped[which[:, None], place.argsort(1)].view(rows, -1)[:, : kind.width]
    named = [families[i] for i in which.tolist()]
    for remainder, name in enumerate(FRESH, 4 - len(FRESH)):
        own = row % 4 == remainder
        noise = torch.randn(int(own.sum()), kind.width, device=where, generator=generator)
        moved[own] = (4 * noise).round() / 4 if name == "few values" else noise
        named[remainder::4] = [name] * len(named[remainder::4])
    batch.scores.copy_(moved)
    batch.live = max(rows - 3, 0) if "live" in kind.arrays else None
    batch.call = dict(kind.asked) | {"k": kind.k} | _arrays(batch, rng, where)
    return named


def _bases(kind: Kind, first: int, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], list[str]]:
    """Rows of families in turn, of whole chunks, and the family of each."""
    block, seed = kind.asked.get("block_size", 1), int(rng.integers(1 << 32))
    families = [FAMILIES[(first + i) % len(FAMILIES)] for i in range(count)]
    found = np.empty((count, -(-kind.width // CHUNK) * CHUNK), np.float32)
    for i, name in enumerate(families):
        number = int(rng.integers(1 << 20))
        more = {"block": block if block > 1 else 8} if name in OF_BLOCKS else {}
        # Rank k of a family is a rank among scores, or among blocks.
        k = kind.k * (block if number & 2 else 1)
        with np.errstate(all="ignore"):
            found[i] = PRODUCERS[name](1, found.shape[1], seed=seed, first_row=number, k=k, **more)[0]
    return found, families


def _arrays(batch: Batch, rng: np.random.Generator, where: str) -> dict[str, Any]:
    """Arrays of a call, with values beyond every bound among them."""
    import torch

    kind, rows, asked = batch.kind, batch.rows, batch.kind.asked
    n, k, width = asked.get("next_n", 1), kind.k, kind.width
    requests, block = rows // n, asked.get("block_size", 1)

    def lengths(of: int) -> NDArray[np.int32]:
        made = [LENGTHS[name](of, width, seed=int(rng.integers(1 << 32)), k=k * block) for name in OF_LENGTHS]
        return np.choose((np.arange(of) + batch.number) % len(made), made)

    expand = asked.get("expand", 1)
    found: dict[str, NDArray[Any]] = {}
    for name in kind.arrays:
        if name in ("lengths", "ends"):
            found[name] = lengths(requests)
        elif name == "starts":
            found[name] = np.where(rng.random(rows) < 0.2, rng.integers(-3, width + 3, rows), rng.integers(0, 99, rows))
        elif name == "k":
            found[name] = rng.integers(-2, k + 3, rows)
        elif name == "tail":
            scored = np.clip(found.get("lengths", lengths(requests)), 0, width).astype(np.int64)
            per = expand if block == 1 else 1
            found[name] = scored * per + rng.integers(0, expand, requests)
            found[name][::7] = rng.integers(-5, width * per + 5, found[name][::7].size)
        elif name == "offsets":
            found[name] = rng.integers(-1 << 30, 1 << 30, rows)
        elif name == "row_to_request":
            found[name] = rng.integers(-1, 6, rows)
        elif name == "page_table":
            # Few requests where rows name theirs, else one for each but the last.
            of = 5 if "row_to_request" in kind.arrays else max(requests - 1, 1)
            found[name] = rng.integers(0, 1 << 20, (of, max(width // block // asked.get("page_size", 1) - 1, 1)))
        elif name == "block_table":
            table = rng.permuted(np.tile(np.arange(width // 4, dtype=np.int32), (rows, 1)), axis=1)[:, : width // 8]
            found[name] = np.where(rng.random(table.shape) < 0.1, -1, table)
    ready = {
        name: torch.from_numpy(array.astype(np.int64 if "long" in kind.arrays and name == "lengths" else np.int32))
        for name, array in found.items()
    }
    ready = {name: array.to(where) for name, array in ready.items()}
    if "positions" in kind.arrays:
        generator = torch.Generator(where).manual_seed(int(rng.integers(1 << 62)))
        drawn = torch.rand(rows, 2 * width, device=where, generator=generator).argsort(1)[:, :width].int()
        ready["positions"] = torch.where(drawn < 2 * width // 5, -1, drawn)
    return ready | ({"max_k": k} if "k" in ready else {})


# ---- answers -----------------------------------------------------------------------------------------------


def answer(batch: Batch, plan: Plan, topk: Topk) -> tuple[dict[str, Any], bool]:
    """Outputs of a call, and whether the columns next to them are as they were."""
    import torch

    outputs = calls.outputs_of(plan, batch.scores, BESIDE)
    call = {name: value for name, value in batch.call.items() if name not in ("raw", "values")}
    if batch.live is not None:
        live = torch.tensor([batch.live], dtype=torch.int32, device=batch.scores.device)
        call["num_rows"] = batch.live if batch.number % 2 else live
    memory = {
        name: array.as_strided((batch.rows, BESIDE), array.stride(), array.storage_offset() + array.shape[1])
        for name, array in outputs.items() if array.ndim > 1
    }  # fmt: skip
    before = {name: beside.clone() for name, beside in memory.items()}
    topk(batch.scores, call.pop("lengths", None), call.pop("k"), plan=plan, **outputs, **call)
    return outputs, all(bool((beside == before[name]).all()) for name, beside in memory.items())
