"""Adapters of other libraries, on fake modules with the libraries' own signatures: called right, judged like us."""

from __future__ import annotations

import importlib
import os
import sys
import types
from types import SimpleNamespace

import pytest

from bench_engines import fakes
from bench_host import OTHER_US, host, invoke, payload
from ksieve.core.errors import ArgumentError
from ksieve.tuning import tasks
from ksieve_lab.bench import engine_calls, peers
from ksieve_lab.report.specs.gpu import over_others
from ksieve_lab.report.tables import File

torch = pytest.importorskip("torch")

__all__ = ["fakes", "host"]
SGLANG = "sglang.kernels.ops.attention.dsv4.topk"
SHAPES, K = "6x4096", 512
OTHERS = "flashinfer,sglang,deepselect,vllm"


@pytest.fixture
def libraries(fakes, monkeypatch):
    """Every library, faked; what was asked of them."""
    asked, best = SimpleNamespace(algorithms=set(), plans=0), fakes.best
    sglang_topk = importlib.import_module(SGLANG)
    plan = sglang_topk.plan_topk_v2

    def record(name, *arguments):
        if name == "ragged_transform":
            asked.algorithms.add(os.environ["FLASHINFER_TOPK_ALGO"])
        return best(name, *arguments)

    def count(*arguments, **options):
        asked.plans += 1
        return plan(*arguments, **options)

    def cooperative(logits, lengths, output, workspace, k, max_seq_len):
        assert logits.shape[0] <= 64 and logits.stride(0) % 4 == 0 and workspace.dtype == torch.uint8
        torch.ops._C.persistent_topk(logits, lengths, output, workspace, k, max_seq_len)

    monkeypatch.setattr(fakes, "best", record)
    monkeypatch.setattr(sglang_topk, "plan_topk_v2", count)
    monkeypatch.setattr(torch.ops._C, "cooperative_topk", cooperative, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.delenv("FLASHINFER_TOPK_ALGO", raising=False)
    return asked


def test_every_peer_is_run_and_verified(host, libraries):
    results = payload("gpu", shapes="6x4096:ragged", k=K)["results"]
    selectors = results["shapes"][0]["selectors"]
    assert set(selectors) == {"ksieve", *(peer.name for peer in peers.PEERS)}
    for name, facts in selectors.items():
        if name == "flashinfer clusters":
            assert "needs compute capability 10, not 9" in facts["unsupported"] and facts["exact"] is None
        else:
            assert facts["exact"] is True, (name, facts)
            assert facts.get("peer", False) == (name != "ksieve")
    assert libraries.algorithms == {"default", "cub"}
    assert "FLASHINFER_TOPK_ALGO" not in os.environ, "the choice of a back end outlived the call"
    assert libraries.plans > 0, "the plan is part of the work"


def test_rows_shorter_than_k_are_padded_by_every_peer(host, libraries):
    selectors = payload("gpu", shapes="6x600:uniform", k=K, peers=OTHERS)["results"]["shapes"][0]["selectors"]
    assert all(f["exact"] for f in selectors.values() if "unsupported" not in f), selectors


def test_an_inexact_peer_is_shown_and_never_counts(host, libraries, monkeypatch):
    right = sys.modules[SGLANG].topk_transform_ragged_v2

    def wrong(*arguments, out_indices, **options):
        right(*arguments, out_indices=out_indices, **options)
        out_indices[0, 0] = out_indices[0, 1]

    monkeypatch.setattr(sys.modules[SGLANG], "topk_transform_ragged_v2", wrong)
    monkeypatch.setattr("bench_host.clock", lambda name: 1.0 if name == "sglang ragged" else OTHER_US)
    done = invoke("gpu", "--shapes", "6x4096", "--k", K, "--peers", "sglang")
    assert done.exit_code == 0, done.output
    assert "1.0 (20.00) INEXACT" in done.output
    made = payload("gpu", shapes=SHAPES, k=K, peers="sglang")
    assert made["results"]["shapes"][0]["selectors"]["sglang ragged"]["exact"] is False
    assert over_others(File("", made)) == [1.0], "the others are as fast as we"


def test_stale_outputs_do_not_pass(host, libraries, monkeypatch):
    calls, right = [], torch.ops._C.top_k_per_row_decode

    def once(logits, **arguments):
        calls.append(1)
        if len(calls) % 2:  # the run before the outputs are poisoned
            right(logits, **arguments)

    monkeypatch.setattr(torch.ops._C, "top_k_per_row_decode", once)
    found = payload("gpu", shapes=SHAPES, k=K, peers="vllm decode")["results"]["shapes"][0]["selectors"]["vllm decode"]
    assert found["exact"] is False


def test_a_peer_that_breaks_stays_alone(host, libraries, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(importlib.import_module("sglang.kernels.ops.attention.deep_select"), "topk", broken)
    monkeypatch.delattr(sys.modules[SGLANG], "topk_transform_ragged_v2")
    results = payload("gpu", shapes=SHAPES, k=K, peers=OTHERS)["results"]
    selectors, done = results["shapes"][0]["selectors"], results["peers_skipped"]
    assert "no kernel image" in selectors["deepselect"]["error"]
    assert "has no topk_transform_ragged_v2" in done["sglang ragged"]
    assert selectors["sglang paged"]["exact"] and selectors["ksieve"]["exact"]


def test_what_a_peer_does_not_take_is_said(host, libraries):
    done = invoke("gpu", "--shapes", "6x4096", "--k", 100)
    assert done.exit_code == 0, done.output
    assert "6 x 4096 sglang paged: it takes float32 scores and k of 512, 1024 and 2048, not 100" in done.output


def test_limits_of_a_peer_are_said_before_it_is_called(host, libraries):
    """Beyond some, a library would take another of its back ends without a word."""
    selectors = payload("gpu", shapes="65x4096", k=K, peers="vllm")["results"]["shapes"][0]["selectors"]
    assert selectors["vllm cooperative"]["unsupported"] == "it takes up to 64 rows, not 65"
    assert selectors["vllm persistent"]["exact"]
    for name, matrix, said in (
        ("flashinfer radix", torch.zeros(2, 4100)[:, :4096], "takes contiguous matrices only"),
        ("flashinfer cub", torch.zeros(1).expand(1, (1 << 21) + 1), "takes rows of up to 2097152 scores, not 2097153"),
    ):
        peer = next(peer for peer in peers.PEERS if peer.name == name)
        task = tasks.Task([matrix], torch.full((matrix.shape[0],), 4096, dtype=torch.int32), K)
        with pytest.raises(engine_calls.UnsupportedError, match=said):
            peers.contender(peer, peer.load(), task)


def test_absent_libraries_are_named_with_the_reason(monkeypatch):
    absent = ("flashinfer", "vllm", "sglang")
    for name in list(sys.modules):
        if name.partition(".")[0] in absent:
            monkeypatch.delitem(sys.modules, name)

    class Nothing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in absent:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Nothing(), *sys.meta_path])
    loaded, skipped = peers.available()
    assert [peer.name for peer, _ in loaded] == ["torch.topk"]
    assert set(skipped) == {peer.name for peer in peers.PEERS if peer.name != "torch.topk"}
    assert {reason.split(";")[0] for reason in skipped.values()} == {f"no module {name}" for name in absent}
    assert peers.available(["sglang"])[1].keys() == {"sglang paged", "sglang ragged"}
    assert peers.available([]) == ([], {})
    with pytest.raises(ArgumentError, match=r"^peers: got 'cupy'"):
        peers.available(["cupy"])
    monkeypatch.setitem(sys.modules, "sglang", types.ModuleType("sglang"))
    assert "no module sglang.kernels" in peers.available(["sglang paged"])[1]["sglang paged"], "an older one"


def test_a_library_that_fails_to_load_is_no_error_of_ours(monkeypatch, tmp_path):
    (tmp_path / "flashinfer.py").write_text("raise OSError('libcudart.so.13: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    _, skipped = peers.available(["flashinfer radix"])
    assert skipped == {"flashinfer radix": "flashinfer.topk: OSError: libcudart.so.13: cannot open"}
