"""Repeated calls on PyTorch tensors, with every option that has arrays: kernels on the emulator get other addresses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cuda_fakes import take_tensors  # noqa: E402
from emulator import build, driver  # noqa: E402
from flat_calls import ask  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.adapters import sglang  # noqa: E402
from ksieve.core import call as calls  # noqa: E402

pytestmark = pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")

ROWS, WIDTH, K = 4, 700, 16


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def inputs(seed):
    """Tensors of their own for a call."""
    random = torch.Generator().manual_seed(seed)
    lengths = vector(700, 600, 9, 300) - seed
    return {
        "scores": torch.randn(ROWS, WIDTH, generator=random),
        "lengths": lengths,
        "starts": vector(3, 50, 0, 7) + seed,
        "ends": vector(690, 600, 9, 400) + seed,
        "tail": lengths * 4 + vector(1, 2, 3, 0),
        "offsets": vector(5000, 6000, 7000, 8000) + seed,
        "positions": torch.randperm(WIDTH, generator=random, dtype=torch.int32).repeat(ROWS, 1),
        "block_table": torch.randperm(70, generator=random, dtype=torch.int32).repeat(ROWS, 1),
        "ks": vector(3, 16, 9, 1) - seed % 2,
        "num_rows": vector(3),
        "pages": torch.randperm(ROWS * 44, generator=random, dtype=torch.int32).view(ROWS, 44),
        "request": vector(3, 1, 0, 2),
    }


def select(given, *names, **options):
    """Call `ksieve.topk` with some of the inputs, by the names of its arguments."""
    arrays = {name: given[name] for name in names}
    return ask(given["scores"], arrays.pop("lengths", None), options.pop("k", K), **arrays, **options)


def counted(given):
    counts = torch.full((ROWS,), -5, dtype=torch.int32)
    return select(given, "lengths", "positions", counts=counts, deterministic=True), counts


def pooled(given):
    out = torch.empty(ROWS, K * 4 + 3, dtype=torch.int32)
    sglang.topk_transform_kpool_ragged_v2(
        given["scores"], given["lengths"], out, 4, row_starts=given["starts"], token_seq_lens=given["tail"]
    )
    return out.sort(1).values


PAGES = {"index_base": "start", "page_size": 16, "raw": True}
CALLS = {
    "expand, tail, offsets": lambda i: select(i, "lengths", "tail", "offsets", expand=4, deterministic=True),
    "block table": lambda i: select(i, "lengths", "block_table", deterministic=True),
    "positions, counts": counted,
    "k of each row, live rows, values": lambda i: select(
        i, "lengths", "num_rows", k=i["ks"], max_k=K, values=True, index_dtype="int64", deterministic=True
    ),
    "windows, pages": lambda i: select(
        i, "starts", "ends", page_table=i["pages"], row_to_request=i["request"], deterministic=True, **PAGES
    ),
    "blocks": lambda i: select(i, "lengths", block_size=8, force_first=1, force_last=1, deterministic=True),
    "pools of SGLang": pooled,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_reads_and_writes_its_own_tensors(monkeypatch, name):
    def listed(seed):
        result = CALLS[name](inputs(seed))
        return result if isinstance(result, tuple) else (result,)

    expected = listed(2)  # of the CPU backend
    monkeypatch.setattr(dispatch, "_fast_paths", {})
    take_tensors(monkeypatch, driver.install(monkeypatch))
    listed(1)
    monkeypatch.setattr(calls, "parse", lambda *a, **k: pytest.fail("took the general path"))
    for found, right in zip(listed(2), expected, strict=True):
        assert found.dtype == right.dtype and torch.equal(found, right)
