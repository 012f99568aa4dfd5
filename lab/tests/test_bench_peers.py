"""Adapters of other libraries, on fake modules with the libraries' own signatures: called right, judged like us."""

from __future__ import annotations

import os
import sys
import types

import pytest

import ksieve
from bench_host import OTHER_US, host, invoke, payload
from ksieve.core.errors import ArgumentError
from ksieve.planning.tune import tasks
from ksieve_lab.bench import engine_calls, peers

torch = pytest.importorskip("torch")

__all__ = ["host"]
SHAPES, K = "6x4096", 512
OTHERS = "flashinfer,sglang,deepselect,vllm"


def exact(scores, lengths, k, out=None):
    found = torch.from_numpy(ksieve.topk(scores.numpy(), lengths.numpy(), k))
    return found if out is None else out.copy_(found)


class FlashInfer(types.ModuleType):
    def __init__(self):
        super().__init__("flashinfer.topk")
        self.algorithms = []

    def top_k_ragged_transform(
        self, scores, offsets, lengths, k, deterministic=False, tie_break=0, dsa_graph_safe=False, row_starts=None
    ):
        self.algorithms.append(os.environ["FLASHINFER_TOPK_ALGO"])
        assert not offsets.any() and row_starts is None
        return exact(scores, lengths, k)


class SGLang(types.ModuleType):
    def __init__(self):
        super().__init__("sglang.kernels.ops.attention.dsv4.topk")
        self.plans = 0

    def plan_topk_v2(self, seq_lens, static_threshold=-1, *, out=None):
        self.plans += 1
        return torch.zeros(len(seq_lens) + 1, 2, dtype=torch.int32)

    def topk_transform_paged_v2(self, scores, seq_lens, page_tables, out_page_indices, page_size, metadata,
                                out_raw_indices=None):  # fmt: skip
        assert metadata.shape == (len(seq_lens) + 1, 2)
        raw = exact(scores, seq_lens, out_page_indices.shape[1])
        pages = page_tables.gather(1, (raw.clamp(min=0) // page_size).long()) * page_size + raw % page_size
        out_page_indices.copy_(torch.where(raw < 0, raw, pages))

    def topk_transform_ragged_v2(self, scores, seq_lens, *, out_offsets, out_indices, row_starts=None):
        exact(scores, seq_lens, out_indices.shape[1], out_indices).add_(out_offsets[:, None])


class DeepSelect(types.ModuleType):
    def __init__(self):
        super().__init__("sglang.kernels.ops.attention.deep_select")

    def topk(self, scores, topk, *, begin=None, end=None, indices_type=torch.int32, sorted_index=False,
             hint=None, output_idx=None, output_idx_offset=None, idx_oob_fill_value=2147483647,
             value_oob_fill_value=float("-inf"), return_value=False, abort_when_nan_found=True):  # fmt: skip
        assert begin is None and hint is None and not return_value and not abort_when_nan_found
        assert output_idx.dtype == indices_type == torch.int32
        found = exact(scores, end, topk, output_idx)
        found[found < 0] = idx_oob_fill_value
        return None, found


class VLLM(types.SimpleNamespace):
    def top_k_per_row_prefill(self, logits, rowStarts, rowEnds, indices, numRows, stride0, stride1, topK):
        assert (tuple(logits.stride()), numRows) == ((stride0, stride1), len(logits)) and not rowStarts.any()
        exact(logits, rowEnds, topK, indices)

    def top_k_per_row_decode(self, logits, next_n, seq_lens, indices, numRows, stride0, stride1, topK):
        assert next_n == 1
        exact(logits, seq_lens, topK, indices)

    def persistent_topk(self, logits, lengths, output, workspace, k, max_seq_len):
        assert workspace.dtype == torch.uint8 and max_seq_len == int(lengths.max())
        exact(logits, lengths, k, output)

    def cooperative_topk(self, logits, lengths, output, workspace, k, max_seq_len):
        assert logits.shape[0] <= 64 and logits.stride(0) % 4 == 0
        self.persistent_topk(logits, lengths, output, workspace, k, max_seq_len)


@pytest.fixture
def libraries(monkeypatch):
    """Every library, faked; the modules by name."""
    made = {"flashinfer.topk": FlashInfer(), "vllm._custom_ops": types.ModuleType("vllm._custom_ops")}
    for module in (SGLang(), DeepSelect()):
        made[module.__name__] = module
    attention = "sglang.kernels.ops.attention"
    for name in (
        "sglang",
        "sglang.kernels",
        "sglang.kernels.ops",
        attention,
        f"{attention}.dsv4",
        "vllm",
        "flashinfer",
    ):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.ops, "_C", VLLM(), raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.delenv("FLASHINFER_TOPK_ALGO", raising=False)
    return made


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
    assert set(libraries["flashinfer.topk"].algorithms) == {"default", "cub"}
    assert "FLASHINFER_TOPK_ALGO" not in os.environ, "the choice of a back end outlived the call"
    assert libraries["sglang.kernels.ops.attention.dsv4.topk"].plans > 0, "the plan is part of the work"
    assert results["over_best_peer"]["geometric_mean"] == pytest.approx(OTHER_US / 12.5)


def test_rows_shorter_than_k_are_padded_by_every_peer(host, libraries):
    selectors = payload("gpu", shapes="6x600:uniform", k=K, peers=OTHERS)["results"]["shapes"][0]["selectors"]
    assert all(f["exact"] for f in selectors.values() if "unsupported" not in f), selectors


def test_an_inexact_peer_is_shown_and_never_counts(host, libraries, monkeypatch):
    def wrong(self, scores, seq_lens, *, out_offsets, out_indices, row_starts=None):
        exact(scores, seq_lens, out_indices.shape[1], out_indices)
        out_indices[0, 0] = out_indices[0, 1]

    monkeypatch.setattr(SGLang, "topk_transform_ragged_v2", wrong)
    monkeypatch.setattr("bench_host.clock", lambda name: 1.0 if name == "sglang ragged" else OTHER_US)
    done = invoke("gpu", "--shapes", "6x4096", "--k", K, "--peers", "sglang")
    assert done.exit_code == 0, done.output
    assert "1.0 (20.00) INEXACT" in done.output
    shape = payload("gpu", shapes=SHAPES, k=K, peers="sglang")["results"]["shapes"][0]
    assert shape["selectors"]["sglang ragged"]["exact"] is False
    assert shape["fastest"] != "sglang ragged"


def test_stale_outputs_do_not_pass(host, libraries, monkeypatch):
    calls = []

    def once(self, logits, next_n, seq_lens, indices, numRows, stride0, stride1, topK):
        calls.append(1)
        if len(calls) % 2:  # the run before the outputs are poisoned
            exact(logits, seq_lens, topK, indices)

    monkeypatch.setattr(VLLM, "top_k_per_row_decode", once)
    found = payload("gpu", shapes=SHAPES, k=K, peers="vllm decode")["results"]["shapes"][0]["selectors"]["vllm decode"]
    assert found["exact"] is False


def test_a_peer_that_breaks_stays_alone(host, libraries, monkeypatch):
    def broken(self, *arguments, **options):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(DeepSelect, "topk", broken)
    monkeypatch.delattr(SGLang, "topk_transform_ragged_v2")
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
