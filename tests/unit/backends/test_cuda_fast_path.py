"""The fast path of repeated calls on PyTorch tensors: what it takes, and what it leaves to the general path."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ksieve  # noqa: E402
from cuda_fakes import WORKSPACE, ZEROED, aligned_bytes, make_plan, torch_backend  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.core import call as calls  # noqa: E402
from ksieve.core.errors import ArgumentError, WorkspaceError  # noqa: E402

driver = pytest.fixture(torch_backend)
K, ROWS, WIDTH = 4, 8, 64
LENGTHS = np.array([64, 0, 3, 4, 5, 63, -7, 1000], np.int32)


def tensors():
    rng = np.random.default_rng(5)
    scores = torch.from_numpy(rng.permuted(np.arange(ROWS * WIDTH, dtype=np.float32)).reshape(ROWS, WIDTH))
    return scores, torch.from_numpy(LENGTHS.copy()), torch.full((ROWS, K), -99, dtype=torch.int32)


def expected(scores, lengths, live=ROWS):
    lengths = np.clip(lengths, 0, scores.shape[1])
    best = [set(row[:n].argsort(descending=True)[:K].tolist()) for row, n in zip(scores, lengths, strict=True)]
    return [chosen if r < live else set() for r, chosen in enumerate(best)]


def chosen(indices):
    return [set(row) - {-1} for row in indices.tolist()]


@pytest.fixture
def plan(driver):
    return make_plan(index=-1)


@pytest.fixture
def shortly(monkeypatch):
    """Call `ksieve.topk` twice, the second time on its fast path."""

    def call(scores, lengths, k, out, workspace, num_rows, **more):
        given = {"out": out, "workspace": workspace, "num_rows": num_rows, **more}
        ksieve.topk(scores, lengths, k, **given)
        if out is not None:
            out.fill_(-99)
        with monkeypatch.context() as patch:
            patch.setattr(calls, "parse", lambda *a, **k: pytest.fail("took the general path"))
            return ksieve.topk(scores, lengths, k, **given)

    return call


def test_it_gives_the_same_answer(driver, plan, shortly):
    scores, lengths, out = tensors()
    workspace = plan.workspace()
    assert shortly(scores, lengths, None, out, workspace, None, plan=plan) is out
    assert chosen(out) == expected(scores, LENGTHS)
    assert driver.launches[-1]["workspace"] == workspace.pointer
    live = torch.tensor([2], dtype=torch.int32)
    shortly(scores[:5], lengths[:5], K, out[:5], None, live, plan=plan)
    assert chosen(out[:5]) == expected(scores[:5], LENGTHS[:5], live=2)
    wide = torch.full((ROWS, 10), -99, dtype=torch.int32)
    shortly(scores[:, :50], None, K, wide[:, :K], workspace, None, plan=plan)
    assert chosen(wide[:, :K]) == expected(scores[:, :50], np.full(ROWS, 50))
    assert (wide[:, K:] == -99).all()
    assert driver.launches[-1]["pitch"] == 64 and driver.launches[-1]["out_pitch"] == 10
    cube = scores.view(2, 4, WIDTH)
    made = shortly(cube, lengths.view(2, 4), K, None, workspace, None, plan=plan)
    assert made.shape == (2, 4, K) and chosen(made.view(ROWS, K)) == expected(scores, LENGTHS)
    same = shortly(scores[:1].expand(6, WIDTH), None, K, out[:6], None, None, plan=plan)
    assert driver.launches[-1]["pitch"] == 0 and chosen(same) == expected(scores[:1].expand(6, 64), np.full(6, WIDTH))


def test_calls_without_a_plan_have_one_too(driver, shortly):
    scores, lengths, out = tensors()
    assert shortly(scores, lengths, K, out, None, None, backend="cuda") is out
    assert chosen(out) == expected(scores, LENGTHS) and len(driver.launches) == 2


def test_tensors_of_several_kinds_have_fast_paths_under_one_key(driver, plan, shortly):
    scores, lengths, out = tensors()
    pitched = torch.zeros(ROWS, 2 * WIDTH)[:, :WIDTH].copy_(scores)
    for matrix in (scores, pitched, scores.clone().requires_grad_()):
        shortly(matrix, lengths, K, out, None, None, plan=plan)
        assert chosen(out) == expected(scores, LENGTHS)
    assert [len(alike) for alike in dispatch._fast_paths.values()] == [3]
    for _ in range(dispatch._MOST_OF_A_KEY):
        pitched = torch.zeros(ROWS, pitched.stride(0) + 1)[:, :WIDTH].copy_(scores)
        shortly(pitched, lengths, K, out, None, None, plan=plan)
    assert [len(alike) for alike in dispatch._fast_paths.values()] == [dispatch._MOST_OF_A_KEY]


def test_without_guards_of_pytorch_every_call_takes_the_general_path(driver, plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", None)
    scores, lengths, out = tensors()
    for _ in range(2):
        ksieve.topk(scores, lengths, K, out=out, plan=plan)
    assert chosen(out) == expected(scores, LENGTHS) and not dispatch._fast_paths


def test_one_tensor_may_be_two_arguments(driver, plan, shortly):
    scores = tensors()[0]
    both = torch.full((1,), 1, dtype=torch.int32)
    assert chosen(shortly(scores[:1], both, K, None, None, both, plan=plan)) == expected(scores[:1], [1])


def test_it_zeroes_raw_bytes_with_every_call(driver, plan, shortly):
    scores, lengths, out = tensors()
    raw = torch.from_numpy(aligned_bytes(WORKSPACE))
    raw[:] = 77
    shortly(scores, lengths, K, out, raw, None, plan=plan)
    assert driver.fills == [(raw.data_ptr(), ZEROED, 0)] * 2
    assert driver.launches[-1]["workspace"] == raw.data_ptr()


def test_a_capture_gets_memory_of_its_own(driver, plan, shortly):
    """Zeroed inside the graph; the workspace that eager calls share stays theirs."""
    scores, lengths, out = tensors()
    driver.stream = 7
    shortly(scores, lengths, K, out, None, None, plan=plan)
    shared, fills = driver.launches[-1]["workspace"], len(driver.fills)
    driver.capturing.add(7)
    for number in (1, 2):
        shortly(scores, lengths, K, out, None, None, plan=plan)
        assert chosen(out) == expected(scores, LENGTHS)
        assert len(driver.fills) == fills + 2 * number and driver.launches[-1]["workspace"] != shared
    assert [len(alike) for alike in dispatch._fast_paths.values()] == [1]


def test_it_keeps_no_tensor(driver, plan, shortly):
    scores, lengths, out = tensors()
    seen = [weakref.ref(tensor) for tensor in (scores, lengths, out, shortly(scores, lengths, K, None, None, None))]
    shortly(scores, lengths, K, out, None, None, plan=plan)
    del scores, lengths, out
    gc.collect()
    assert [ref() for ref in seen] == [None] * 4


SHARED, INSIDE = torch.zeros(ROWS * WIDTH + 32), torch.zeros(40, dtype=torch.int32)
SCORES, VECTOR, OUT = tensors()
DOUBTFUL = {
    "k": {"k": 5},
    "list": {"scores": [1.0]},
    "dtype": {"scores": SCORES.double()},
    "half": {"scores": SCORES.half()},
    "last stride": {"scores": SCORES.T.contiguous().T},
    "more rows": {"scores": torch.cat([SCORES, SCORES])},
    "wider": {"scores": torch.cat([SCORES, SCORES], 1)},
    "sparse": {"scores": SCORES.to_sparse()},
    "lazy": {"scores": torch._neg_view(SCORES)},
    "lengths dtype": {"lengths": VECTOR.short()},
    "lengths size": {"lengths": VECTOR[:7]},
    "lengths matrix": {"lengths": VECTOR[:, None]},
    "lengths list": {"lengths": [1] * ROWS},
    "out dtype": {"out": OUT.float()},
    "out shape": {"out": OUT[:, :3]},
    "out stride": {"out": OUT.T.contiguous().T},
    "out rows overlap": {"out": OUT[0].expand(ROWS, K)},
    "out overlaps scores": {"scores": SHARED[: ROWS * WIDTH].view(ROWS, WIDTH),
                            "out": SHARED.view(torch.int32)[ROWS * WIDTH - 4 :][:32].view(ROWS, K)},
    "out overlaps lengths": {"lengths": INSIDE[:ROWS], "out": INSIDE[7:39].view(ROWS, K)},
    "out overlaps num_rows": {"num_rows": INSIDE[31:32], "out": INSIDE[:32].view(ROWS, K)},
    "num_rows size": {"num_rows": VECTOR},
    "num_rows dtype": {"num_rows": torch.tensor([1])},
    "num_rows matrix": {"num_rows": torch.ones((1, 1), dtype=torch.int32)},
    "workspace plan": {"workspace": "other"},
    "workspace size": {"workspace": torch.from_numpy(aligned_bytes(WORKSPACE - 1))},
    "workspace address": {"workspace": torch.from_numpy(aligned_bytes(WORKSPACE, 8))},
    "workspace stride": {"workspace": torch.from_numpy(aligned_bytes(2 * WORKSPACE)[::2])},
}  # fmt: skip


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_fault_is_reported_behind_a_call_that_was_right(driver, plan, shortly, name):
    scores, lengths, out = tensors()
    live, raw = torch.tensor([2], dtype=torch.int32), torch.from_numpy(aligned_bytes(WORKSPACE))
    bound = plan.workspace()
    good = {"scores": scores, "lengths": lengths, "k": K, "out": out, "workspace": raw, "num_rows": live}
    shortly(**good, plan=plan)
    shortly(**(good | {"workspace": bound}), plan=plan)
    bad, launched = dict(DOUBTFUL[name]), len(driver.launches)
    if bad.get("workspace") == "other":
        bad["workspace"] = make_plan(index=-1, k=5).workspace()
    with pytest.raises((ArgumentError, WorkspaceError)):
        ksieve.topk(**(good | bad), plan=plan)
    assert len(driver.launches) == launched


def general(*args, **options):
    raise KeyError("general")


def test_a_ranking_has_a_fast_path_of_its_own(driver, monkeypatch):
    scores, _, _ = tensors()
    for ranking, name in (({"largest": False}, "smallest"), ({"nan": "highest"}, "NaN first")):
        key = dispatch.call_key(scores, None, K, None, None, None, None, None, ranking)
        monkeypatch.setitem(dispatch._fast_paths, key, (lambda given: None, lambda given, name=name: name))
    assert ksieve.topk(scores, k=K, largest=False) == "smallest"
    assert ksieve.topk(scores, k=K, nan="highest") == "NaN first"
    monkeypatch.setattr(calls, "parse", general)
    others = ({"largest": 0}, {"nan": "last"}, {"largest": False, "sorted": True}, {"largest": False, "max_k": 3})
    for other in (*others, {"largest": False, "plan": make_plan(index=-1)}):
        with pytest.raises(KeyError, match="general"):
            ksieve.topk(scores, k=K, **other)


@pytest.mark.parametrize(
    "changes",
    [
        {"k": 5},
        {"k": True},
        {"k": np.int64(4)},
        {"policy": "direct"},
        {"policy": []},
        {"return_stats": True},
        {"backend": "cpu"},
        {"scores": SCORES[:, :63]},
        {"scores": SHARED.as_strided((ROWS, WIDTH), (WIDTH // 2, 1))},
        {"lengths": VECTOR.repeat_interleave(2)[::2]},
        {"out": OUT.repeat(1, 2)[:, :K]},
        {"scores": [1]},
        {"scores": torch.nn.Parameter(SCORES)},
        {"lengths": LENGTHS},
        {"out": None},
        {"out": OUT.numpy()},
        {"num_rows": 3},
        {"workspace": aligned_bytes(WORKSPACE)},
        {"plan": "equal"},
        {"plan": "given", "policy": "direct"},
        {"plan": "given", "return_stats": True},
    ],
    ids=str,
)
def test_another_call_does_not_take_it(driver, plan, shortly, monkeypatch, changes):
    scores, lengths, out = tensors()
    shortly(scores, lengths, K, out, None, None)
    shortly(scores, lengths, K, out, None, None, plan=plan)
    launched = len(driver.launches)
    monkeypatch.setattr(calls, "parse", general)
    asked = {"scores": scores, "lengths": lengths, "k": K, "out": out, **changes}
    if "plan" in changes:
        asked["plan"] = {"equal": make_plan(index=-1), "given": plan}[changes["plan"]]
    with pytest.raises(KeyError, match="general"):
        ksieve.topk(**asked)
    assert len(driver.launches) == launched


@pytest.mark.parametrize(
    "changes", [{"k": np.int64(4)}, {"num_rows": 8}, {"scores": torch.nn.Parameter(SCORES)}], ids=str
)
def test_numbers_of_other_types_and_subclasses_have_none(driver, plan, changes):
    scores, lengths, out = tensors()
    ksieve.topk(**({"scores": scores, "lengths": lengths, "k": K, "out": out, "plan": plan} | changes))
    assert driver.launches and not dispatch._fast_paths
