"""Engines switched on from outside: their operators replaced, served, compared and put back. The engines are fakes."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import re
import sys
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ksieve  # noqa: E402
from bench_engines import FAKES, fakes, loaded  # noqa: E402
from ksieve import adapters  # noqa: E402
from ksieve.adapters import (  # noqa: E402
    _calls,
    _select,
    _signatures,
    _verify,
    flashinfer,
    sglang,
    tensorrt_llm,
    vllm,
)
from ksieve.adapters._operators import OPERATORS  # noqa: E402
from ksieve.adapters._tally import TALLY  # noqa: E402
from ksieve.backends.cuda.runtime import driver  # noqa: E402
from ksieve.core.errors import ArgumentError, BackendError  # noqa: E402
from ksieve.core.installation import install_command  # noqa: E402

__all__ = ["fakes"]
ADAPTERS = {"vllm": vllm, "sglang": sglang, "flashinfer": flashinfer, "tensorrt_llm": tensorrt_llm}


@pytest.fixture
def engines(fakes):
    """The fakes, and no adapter installed afterwards."""
    for said in (_calls._said, _verify._said):
        said.clear()
    yield fakes
    for adapter in ADAPTERS.values():
        adapter.uninstall()


def load(*names):
    return [importlib.import_module(name) for name in names]


def operands(rows=6, width=400, k=32):
    scores = torch.randn(rows, width, generator=torch.Generator().manual_seed(5))
    lengths = torch.full((rows,), width, dtype=torch.int32)
    return scores, lengths, torch.full((rows, k), -7, dtype=torch.int32)


def contents():
    """Every attribute of the engines' modules and of their classes, and of the namespaces of their operators."""
    modules = {name: dict(vars(sys.modules[name])) for name in loaded()}
    for attributes in [*modules.values()]:
        modules |= {each: dict(vars(each)) for each in attributes.values() if isinstance(each, type)}
    return modules, dict(vars(torch.ops._C)), dict(vars(torch.ops.trtllm))


# ---- replaced and put back -------------------------------------------------------------------------------------

VLLM = ("vllm._custom_ops", "vllm.model_executor.layers.indexer_topk", "flashinfer", "flashinfer.msa_ops")
SGLANG = (
    "sgl_kernel",
    "sglang.kernels.ops.attention.fast_topk",
    "sglang.kernels.ops.attention.dsv4",
    "sglang.kernels.ops.attention.deep_select",
    "sglang.kernels.ops.attention.dsv4.candidate_blocks",
    "sglang.kernels.ops.attention.dsa.kpool_topk_transform",
    "flashinfer",
    "flashinfer.msa_ops",
)
LOADED = {"vllm": VLLM, "sglang": SGLANG, "flashinfer": SGLANG[-2:], "tensorrt_llm": ("tensorrt_llm",)}


@pytest.mark.parametrize(("engine", "modules"), LOADED.items())
def test_everything_is_put_back_exactly(engines, engine, modules):
    load(*modules)
    for name in ("top_k_per_row_prefill", "top_k_per_row_decode", "persistent_topk"):
        getattr(torch.ops._C, name, None)
    for name in ("indexer_topk_prefill", "indexer_topk_decode"):
        getattr(torch.ops.trtllm, name, None)
    before, path = contents(), list(sys.meta_path)
    replaced = ADAPTERS[engine].install()
    absent = {"torch.ops._C.cooperative_topk"}  # which this vLLM was built without
    absent |= {o.name for o in OPERATORS["sglang"] if "_512" in o.name}  # former names
    assert set(replaced) == {operator.name for operator in OPERATORS[engine]} - absent
    assert contents() != before
    assert ADAPTERS[engine].install() == replaced
    ADAPTERS[engine].uninstall()
    assert contents() == before
    assert sys.meta_path == path
    assert _select.observer is None
    ADAPTERS[engine].uninstall()
    assert contents() == before


def test_other_names_of_a_function_are_replaced_too(engines):
    kernels, flash = load("sgl_kernel", "flashinfer")
    own = kernels.fast_topk_v2, flash.top_k
    assert kernels.top_k.fast_topk_v2 is own[0]
    sglang.install()
    assert kernels.top_k.fast_topk_v2 is kernels.fast_topk_v2 is not own[0]
    assert flash.topk.topk is flash.topk.top_k is flash.top_k is not own[1]
    assert flash.top_k.is_backend_supported()
    late = sys.modules["sgl_kernel"].late = kernels.fast_topk_v2
    sglang.uninstall()
    assert (kernels.fast_topk_v2, kernels.late) == (own[0], own[0])
    engines.CALLS.clear()
    late(*operands()[:2], 8)
    assert engines.CALLS == ["fast_topk_v2"], "a function that is kept beyond uninstall is the engine's own"


def test_engines_share_the_operators_of_flashinfer(engines):
    flash, _ = load("flashinfer", "vllm._custom_ops")
    own = flash.top_k
    vllm.install()
    replaced = flash.top_k
    flashinfer.install()
    vllm.uninstall()
    assert flash.top_k is replaced is not own
    flashinfer.uninstall()
    assert flash.top_k is own


def test_modules_are_waited_for_and_never_imported(engines, caplog):
    caplog.set_level(logging.INFO, "ksieve")
    assert vllm.install() == ()
    assert loaded() == ["selection"]
    assert "when they are imported, those of flashinfer.msa_ops.sparse_topk_select, flashinfer.topk, " in caplog.text
    flash, layer = load("flashinfer", "vllm.model_executor.layers.indexer_topk")
    spec = flash.topk.__spec__
    assert type(spec.loader) is type(flash.topk.__loader__) is type(flash.__loader__)
    engines.CALLS.clear()
    scores, lengths, out = operands()
    flash.top_k(scores, 8)
    layer.SparseIndexerTopk("auto")(scores, lengths, 1, out, 32, 400)
    assert engines.CALLS == []
    assert (out >= 0).all()


def test_an_engine_that_is_not_installed(engines, monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(FAKES)])
    importlib.invalidate_caches()
    with pytest.raises(BackendError, match=r"^sglang is not installed"):
        sglang.install()


def test_without_a_known_signature_nothing_is_replaced(engines, monkeypatch):
    load(*LOADED["flashinfer"])
    for operator in OPERATORS["flashinfer"]:
        monkeypatch.setattr(sys.modules[operator.source], operator.attribute, lambda logits, more: None)
    before, path = contents(), list(sys.meta_path)
    refused = r"leaves operators of flashinfer alone.*: flashinfer.topk.top_k\(logits, more\), for which it"
    with pytest.raises(BackendError, match=refused):
        flashinfer.install()
    assert contents() == before
    assert (sys.meta_path, _select.observer) == (path, None)


@pytest.mark.parametrize("first", ["engine", "ksieve"])
def test_an_operator_with_another_signature_is_left_alone(engines, monkeypatch, caplog, first):
    """And no other one, whether the engine is imported before the switch or behind it."""
    module = FAKES / "flashinfer" / "topk.py"
    own = "def top_k(input, k, sorted=False"
    changed = module.read_text(encoding="utf-8").replace(own, f"{own}, more=None")
    monkeypatch.setattr("importlib.machinery.SourceFileLoader.get_code", _code_of(module, changed))
    modules = ("sgl_kernel", "flashinfer", "flashinfer.msa_ops")
    if first == "engine":
        load(*modules)
    sglang.install()
    flash = load(*modules)[1]
    assert flash.top_k.__module__ == "flashinfer.topk"
    replaced = set(sglang.install())
    known = {o.name for o in OPERATORS["sglang"] if o.source in (*modules, "flashinfer.topk")}
    known |= {o.name for o in OPERATORS["sglang"] if o.source.startswith("flashinfer.")}
    assert replaced == known - {"flashinfer.topk.top_k"}
    warned = [record.message for record in caplog.records if "leaves" in record.message]
    assert len(warned) == 1
    assert "flashinfer.topk.top_k(input, k, sorted=False, more=None, deterministic=False" in warned[0]


@pytest.mark.parametrize("first", ["engine", "ksieve"])
def test_a_class_that_this_version_lacks(engines, monkeypatch, caplog, first):
    module = FAKES / "vllm" / "model_executor" / "layers" / "indexer_topk.py"
    changed = module.read_text(encoding="utf-8").replace("SparseIndexerTopk", "Another")
    monkeypatch.setattr("importlib.machinery.SourceFileLoader.get_code", _code_of(module, changed))
    name = "vllm.model_executor.layers.indexer_topk"
    if first == "engine":
        load(name)
    vllm.install()
    load(name)
    assert f"{name}.deep_select_topk" in vllm.install()
    assert f"{name}.SparseIndexerTopk.forward" not in vllm.install()
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_module_without_its_operators_is_named(engines, monkeypatch, caplog):
    vllm.install()
    module = FAKES / "vllm" / "model_executor" / "layers" / "indexer_topk.py"
    monkeypatch.setattr("importlib.machinery.SourceFileLoader.get_code", _code_of(module, "import selection"))
    load(name := "vllm.model_executor.layers.indexer_topk")
    assert f"ksieve finds no operator that it knows in {name} of vllm: {name}.SparseIndexerTopk.for" in caplog.text


def _code_of(path, text):
    own = importlib.machinery.SourceFileLoader.get_code

    def get_code(self, fullname):
        return compile(text, str(path), "exec") if self.get_filename(fullname) == str(path) else own(self, fullname)

    return get_code


# ---- served ----------------------------------------------------------------------------------------------------


def test_the_default_of_vllm_s_option_is_ksieve_and_a_named_kernel_is_vllm_s(engines):
    (layer,) = load("vllm.model_executor.layers.indexer_topk")
    vllm.install()
    scores, lengths, out = operands()
    engines.CALLS.clear()
    for backend, called in (
        ("auto", []), ("persistent", ["persistent"]), ("per_row", ["decode"]), ("deep_select", ["deep_select_topk"]),
    ):  # fmt: skip
        out.fill_(-7)
        engines.CALLS.clear()
        layer.SparseIndexerTopk(backend)(scores, lengths, 1, out, 32, 400)
        assert called == engines.CALLS
        assert ksieve.verify(scores, lengths, out)
    assert [c.operator.rpartition(".")[2] for c in adapters.report().calls] == ["forward"]
    assert adapters.report().fallbacks == {}
    unknown = layer.SparseIndexerTopk("auto")
    del unknown._backend  # a version that keeps its choice elsewhere
    with pytest.raises(AttributeError):
        unknown(scores, lengths, 1, out, 32, 400)


def test_no_scores_are_kept_in_memory(engines, monkeypatch):
    (kernels,) = load("sgl_kernel")
    sglang.install(verify=1)
    scores, lengths, _ = operands()
    calls = [
        lambda x: kernels.fast_topk_v2(x, lengths, 8),
        lambda x: kernels.fast_topk_v2(x, lengths, 8, lengths.short()),
    ]
    for call in calls:
        one = scores.clone()
        gone = weakref.ref(one)
        call(one)
        del one
        assert gone() is None
    assert adapters.report().fallbacks == {"sgl_kernel.fast_topk_v2": 1}


@pytest.mark.parametrize(("dtype", "v2"), [("float32", True), ("float32", False), ("bfloat16", False)])
def test_a_caller_that_holds_the_functions_reaches_ksieve(engines, dtype, v2):
    (indexer,) = load("sglang.srt.layers.attention.dsv4.indexer")
    sglang.install()
    scores, lengths, out = operands()
    scores, table = scores.to(getattr(torch, dtype)), torch.arange(150, dtype=torch.int32).reshape(6, 25)
    engines.CALLS.clear()
    indexer.topk_transform_paged_from_metadata(scores, lengths, table, out, 16, v2)
    assert engines.CALLS == []
    assert ksieve.verify(scores, lengths, out - torch.arange(6)[:, None].int() * 400)


def test_pytorch_for_rocm(engines, monkeypatch):
    load("flashinfer")
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(BackendError, match=r"^PyTorch is built for ROCm, .*: flashinfer stays as it is"):
        flashinfer.install()


def test_calls_that_ksieve_refuses_reach_the_engine(engines, caplog):
    (ops,) = load("vllm._custom_ops")
    vllm.install()
    scores, lengths, out = operands()
    for _ in range(3):
        ops.top_k_per_row_decode(scores.double(), 1, lengths, out, 6, 400, 1, 32)
    assert (out >= 0).all()
    assert adapters.report().fallbacks == {"torch.ops._C.top_k_per_row_decode": 3}
    assert caplog.text.count("got dtype float64") == 1
    assert "3 fallbacks (torch.ops._C.top_k_per_row_decode 3)" in str(adapters.report())


def test_a_fault_of_ksieve_reaches_no_request(engines, monkeypatch, caplog):
    (ops,) = load("vllm._custom_ops")
    vllm.install()
    scores, lengths, out = operands()

    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError("no memory for a workspace")

    monkeypatch.setattr(vllm, "select", fail)
    for _ in range(2):
        ops.top_k_per_row_decode(scores, 1, lengths, out, 6, 400, 1, 32)
    assert ksieve.verify(scores, lengths, out)
    assert adapters.report().fallbacks == {"torch.ops._C.top_k_per_row_decode": 2}
    assert caplog.text.count("ksieve failed, and the engine's own serves the call") == 1
    assert "Traceback" in caplog.text and "no memory for a workspace" in caplog.text


@pytest.mark.parametrize("bound", [np.int64(16), np.int32(400), 16])
def test_a_bound_may_be_any_integer(engines, bound):
    load("vllm._custom_ops")
    vllm.install()
    scores, lengths, out = operands(width=4000)
    lengths[:] = int(bound)
    torch.ops._C.persistent_topk(scores, lengths, out, torch.empty(4), 32, bound)
    assert ksieve.verify(scores, lengths, out)
    assert adapters.report().fallbacks == {}


@pytest.mark.parametrize("shape", [(3,), (3, 1), (6,), (6, 1), (3, 2)])
def test_lengths_of_vllm_s_layer(engines, shape):
    """One of each request, of which each row sees a part, or one of each row."""
    (layer,) = load("vllm.model_executor.layers.indexer_topk")
    vllm.install()
    scores, _, out = operands()
    lengths = torch.arange(40, 40 + torch.Size(shape).numel(), dtype=torch.int32)
    layer.SparseIndexerTopk("auto")(scores, lengths.reshape(shape), 2, out, 32, 400)
    seen = lengths if len(lengths) == 6 else (lengths[:, None] - torch.tensor([1, 0])).reshape(-1).int()
    assert ksieve.verify(scores, seen, out)
    assert engines.CALLS == []


def test_signatures_are_those_of_the_engine_while_ksieve_is_on(engines):
    load(*VLLM)
    before = _signatures.examine("vllm")
    vllm.install()
    assert _signatures.examine("vllm") == before
    assert before.fits


def test_packages_that_cuda_needs(engines, monkeypatch):
    load("sgl_kernel")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    sglang.install()  # without a driver there are CPU tensors alone
    sglang.uninstall()
    monkeypatch.setattr(driver, "cuda_version", lambda: 13_000)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(BackendError, match="the CUDA backend needs cuda-core.*" + re.escape(install_command("cuda"))):
        sglang.install()
    report = _signatures.examine("sglang")
    assert not report.fits and install_command("cuda") in report.problem
    monkeypatch.setattr(driver, "cuda_version", lambda: 12_000)
    with pytest.raises(BackendError, match=r"supports CUDA 12.0 and is too old"):
        sglang.install()


def test_vllm_s_batch_invariant_mode(engines, monkeypatch):
    (ops,) = load("vllm._custom_ops")
    vllm.install()
    monkeypatch.setattr(vllm, "_INVARIANT", {"deterministic": True})
    scores, lengths, out = operands()
    scores = scores.round()
    few = torch.full((1, 32), -7, dtype=torch.int32)
    ops.top_k_per_row_decode(scores, 1, lengths, out, 6, 400, 1, 32)
    ops.top_k_per_row_decode(scores[3:4], 1, lengths[:1], few, 1, 400, 1, 32)
    assert torch.equal(few[0], out[3])
    assert torch.equal(out, ksieve.topk(scores, lengths, 32, deterministic=True, nan="highest"))


def test_the_report(engines):
    (kernels,) = load("sgl_kernel")
    sglang.install()
    scores, lengths, _ = operands()
    for k in (8, 8, 16):
        kernels.fast_topk_v2(scores, lengths, k)
    kernels.fast_topk_v2(scores.bfloat16(), lengths, 8, row_starts=lengths // 2)
    report = adapters.report()
    name = "sgl_kernel.fast_topk_v2"
    assert report.calls == (
        adapters.Calls(name, "cpu", "direct", "float32", 3), adapters.Calls(name, "cpu", "direct", "bfloat16", 1),
    )  # fmt: skip
    assert str(report).startswith(f"4 calls ({name} cpu/direct float32 3, {name} cpu/direct bfloat16 1); 0 kernels")
    sglang.uninstall()
    sglang.fast_topk_v2(scores, lengths, 8)
    assert adapters.report() == report


# ---- compared --------------------------------------------------------------------------------------------------


def all_calls():
    """One call of each operator of the fakes, with windows, tables and offsets that are not trivial."""
    rows, width, k = 6, 400, 32
    scores, lengths, out = operands(rows, width, k)
    lengths[1], lengths[2] = 20, 0
    starts = torch.arange(rows, dtype=torch.int32) * 3
    table = torch.randperm(rows * width, generator=torch.Generator().manual_seed(1)).int().reshape(rows, width)
    offsets = torch.arange(rows, dtype=torch.int32) * 1000
    ops, layer = load("vllm._custom_ops", "vllm.model_executor.layers.indexer_topk")
    kernels, fast, _, deep, chosen, kpool, flash, msa = load(*SGLANG)
    (v2,) = load("sglang.kernels.ops.attention.dsv4.topk")
    pools = torch.zeros(rows, k * 2 + 1, dtype=torch.int32)
    blocks = scores.view(3, 2, width).permute(1, 2, 0).contiguous()
    load("tensorrt_llm")
    trt = torch.ops.trtllm
    workspace, strides = torch.empty(4), scores.stride()
    return [
        lambda: layer.SparseIndexerTopk("auto")(scores, lengths, 1, out, k, width),
        lambda: ops.top_k_per_row_prefill(
            scores, cu_seqlen_ks=starts, cu_seqlen_ke=lengths, raw_topk_indices=out, num_rows=rows, stride0=width,
            stride1=1, topk_tokens=k),
        lambda: ops.top_k_per_row_decode(scores, 2, lengths[:3], out, rows, *strides, k),
        lambda: torch.ops._C.persistent_topk.default(scores, lengths, out, workspace, k, width),
        lambda: kernels.fast_topk_v2(scores, lengths, k, starts),
        lambda: kernels.fast_topk_transform_fused(scores, lengths, table, torch.arange(rows + 1), k),
        lambda: kernels.fast_topk_transform_ragged_fused(scores, lengths, offsets, k, row_starts=starts),
        lambda: fast.fast_topk(scores, lengths, k),
        lambda: v2.topk_transform_paged_v2(scores, lengths, table, out, 1, None, out.clone()),
        lambda: v2.topk_transform_ragged_v2(scores, lengths, out_offsets=offsets, out_indices=out, row_starts=starts),
        lambda: deep.topk(scores, k, end=lengths),
        lambda: flash.top_k(scores, k),
        lambda: flash.top_k_page_table_transform(scores, table, lengths, k),
        lambda: flash.top_k_ragged_transform(scores, offsets, lengths, k),
        lambda: flash.top_k_varlen(scores, lengths[:3], k, next_n=2),
        lambda: flash.top_k_varlen(scores, lengths, k, row_starts=starts, absolute_indices=True),
        lambda: msa.msa_topk_select(blocks, k, lengths[:3], force_begin_blocks=1, force_end_blocks=2),
        lambda: layer.deep_select_topk(scores, k, lengths, out),
        lambda: v2.topk_transform_paged(scores, lengths, table, out, 1),
        lambda: v2.topk_transform_bf16_small(scores, lengths, table, out, 1),
        lambda: v2.topk_transform_kpool_v2(scores, lengths // 2, pools, 2, None, token_seq_lens=lengths,
                                           page_table=table, page_size=8),
        lambda: v2.topk_transform_kpool_ragged_v2(scores, lengths // 2, pools, 2, row_starts=starts,
                                                  token_seq_lens=lengths, out_offsets=offsets),
        lambda: kpool.fast_kpool_topk_transform_fused(scores, lengths // 2, 2, k * 2, seq_lens=lengths),
        lambda: chosen.amax_topk_blocks(scores, lengths, (lengths.clamp(max=width) + 7) // 8, k),
        lambda: deep.topk_page_transform(scores, k, page_table=table, page_size=1, end=lengths),
        lambda: trt.indexer_topk_prefill(scores, starts, lengths, out, k),
        lambda: trt.indexer_topk_decode(scores, lengths[:3] * 4, out, 2, k, compress_ratio=4),
    ]  # fmt: skip


def test_answers_are_compared_with_the_engine_s_own(engines):
    calls = all_calls()
    vllm.install(verify=1)
    sglang.install()
    assert _calls.share == 0
    for adapter in ADAPTERS.values():
        adapter.install(verify=1)
    wanted = {o.name for o in itertools.chain(*OPERATORS.values()) if "_512" not in o.name}
    wanted -= {"torch.ops._C.cooperative_topk"}
    for n, call in enumerate(calls, 1):
        call()
        assert adapters.report().verified == adapters.Verified(calls=n, rows=6 * n, equal=6 * n), n
    assert {c.operator for c in adapters.report().calls} == wanted
    assert f"{len(calls)} calls, {6 * len(calls)} rows verified: {6 * len(calls)} equal, 0 tied" in str(
        adapters.report()
    )


@pytest.mark.parametrize("number", range(27))
def test_a_wrong_answer_of_the_engine_is_noticed(engines, number, caplog):
    call = all_calls()[number]
    for adapter in ADAPTERS.values():
        adapter.install(verify=1)
    engines.WRONG[0] = True
    call()
    verified = adapters.report().verified
    assert (verified.calls, verified.rows, verified.ksieve_wrong, verified.failed) == (1, 6, 0, 0)
    assert verified.engine_wrong == 6 - verified.equal > 0 == verified.tied
    assert "the answer of the engine is not exact in" in caplog.text


def answers_otherwise(monkeypatch, name, change):
    """Change every answer of a function of the SGLang adapter, and compare all; returns the fake's module."""
    (kernels,) = load("sgl_kernel")
    right = getattr(sglang, name)

    @functools.wraps(right)
    def wrong(score, *others, **more):
        found = right(score, *others, **more)
        found[:] = change(score, found.clone())
        return found

    monkeypatch.setattr(sglang, name, wrong)
    sglang.install(verify=1)
    return kernels


def test_a_wrong_answer_of_ksieve_is_noticed_and_its_row_is_kept(engines, monkeypatch, caplog):
    def wrong(_, found):
        found[3, 0] = (set(range(100)) - set(found[3].tolist())).pop()
        return found

    kernels = answers_otherwise(monkeypatch, "fast_topk_v2", wrong)
    scores, lengths, _ = operands()
    starts = torch.full_like(lengths, 5)
    for _ in range(2):
        kernels.fast_topk_v2(scores, lengths, 8, starts)
    verified = adapters.report().verified
    assert (verified.ksieve_wrong, verified.engine_wrong, verified.equal) == (2, 0, 10)
    assert caplog.text.count("the answer of ksieve is not exact in 1 of 6 rows, first in row 3 (only ksieve: [") == 1
    assert "2 NOT exact by ksieve" in str(adapters.report())
    from ksieve_lab.captures.format import Capture

    with Capture(caplog.text.rpartition(" are in ")[2].strip()) as capture:
        assert (capture.rows, capture.k, capture.lengths.tolist()) == (1, 8, [395])
        assert torch.equal(torch.from_numpy(capture.rows_block(0, 1))[0], scores[3, 5:])


@pytest.mark.parametrize("name", ["fast_topk_transform_fused", "fast_topk_transform_ragged_fused"])
def test_a_wrong_slot_of_ksieve_behind_a_mapping_is_noticed(engines, monkeypatch, caplog, name):
    """What is served cannot be mapped back to positions: it is compared with the same selection, made again."""

    def wrong(_, found):
        found[3, 5] = (set(range(1200, 2000)) - set(found[3].tolist())).pop()
        return found

    kernels = answers_otherwise(monkeypatch, name, wrong)
    scores, lengths, _ = operands()
    table, offsets = torch.arange(2400, dtype=torch.int32).reshape(6, 400), torch.arange(6, dtype=torch.int32) * 400
    more = (table, torch.arange(7, dtype=torch.int32)) if name == "fast_topk_transform_fused" else (offsets,)
    getattr(kernels, name)(scores, lengths, *more, 8)
    verified = adapters.report().verified
    assert verified == adapters.Verified(calls=1, rows=6, equal=5, ksieve_wrong=1)
    assert "the answer of ksieve is not exact in 1 of 6 rows, first in row 3 (only ksieve: [" in caplog.text


def test_a_wrong_answer_of_the_engine_in_rows_with_ties(engines):
    """It lacks the best score, and so is no other exact answer. Behind a table that cannot be seen."""
    kernels, _ = load("sgl_kernel", "flashinfer")
    sglang.install(verify=1)
    _, lengths, _ = operands()
    scores = torch.zeros(6, 400)
    scores[:, 100:110] = torch.arange(1, 11)
    engines.WRONG[0] = True
    kernels.fast_topk_v2(scores, lengths, 32)
    assert adapters.report().verified == adapters.Verified(calls=1, rows=6, engine_wrong=6)
    table, rows = torch.arange(2400, dtype=torch.int32).reshape(6, 400), torch.arange(7, dtype=torch.int32)
    kernels.fast_topk_transform_fused(scores, lengths, table, rows, 32)
    assert adapters.report().verified == adapters.Verified(calls=2, rows=12, tied=6, engine_wrong=6)


def test_other_ties_of_ksieve_behind_a_mapping_are_no_fault(engines, monkeypatch):
    """A kernel may select others of equal scores each time, also where the selection is made again to compare."""
    rows = torch.arange(6, dtype=torch.int32)[:, None]
    name = "fast_topk_transform_ragged_fused"
    kernels = answers_otherwise(monkeypatch, name, lambda _, found: found.flip(1) + rows)
    _, lengths, _ = operands()
    kernels.fast_topk_transform_ragged_fused(torch.zeros(6, 400), lengths, lengths * 0, 8)
    assert adapters.report().verified == adapters.Verified(calls=1, rows=6, equal=1, tied=5)


@pytest.mark.parametrize("beyond", [0, 1], ids=["the same", "different"])
def test_a_fault_of_both_is_ksieve_s(engines, monkeypatch, beyond):
    def wrong(score, found):
        ranked = score.argsort(1, descending=True).int()
        return torch.where(found == ranked[:, :1], ranked[:, 8 + beyond, None], found)

    kernels = answers_otherwise(monkeypatch, "fast_topk_v2", wrong)
    scores, lengths, _ = operands()
    engines.WRONG[0] = True
    kernels.fast_topk_v2(scores, lengths, 8)
    assert adapters.report().verified == adapters.Verified(calls=1, rows=6, ksieve_wrong=6)


def test_ties_are_no_difference(engines):
    kernels, _ = load("sgl_kernel", "flashinfer")
    sglang.install(verify=1)
    _, lengths, _ = operands()
    zeros, table = torch.zeros(6, 400), torch.arange(2400, dtype=torch.int32).reshape(6, 400).flip(1)
    rows = torch.arange(7, dtype=torch.int32)
    zeros[:, 300:] = torch.rand(6, 100) * (torch.arange(6)[:, None] > 2) - 0.5
    kernels.fast_topk_v2(zeros, lengths, 320)
    kernels.fast_topk_transform_fused(zeros, lengths, table, rows, 320)
    verified = adapters.report().verified
    assert (verified.calls, verified.engine_wrong, verified.ksieve_wrong) == (2, 0, 0)
    assert verified.equal + verified.tied == 12


def test_a_comparison_never_fails_a_request(engines, monkeypatch, caplog):
    (kernels,) = load("sgl_kernel")
    own = kernels.fast_topk_v2
    monkeypatch.setattr(kernels.top_k, "fast_topk_v2", own)
    monkeypatch.setattr(engines, "best", lambda *_: 1 / 0)
    sglang.install(verify=1)
    scores, lengths, _ = operands()
    for _ in range(2):
        assert kernels.fast_topk_v2(scores, lengths, 8).shape == (6, 8)
    assert adapters.report().verified == adapters.Verified(failed=2)
    assert caplog.text.count("ZeroDivisionError") == 1
    assert "2 comparisons failed" in str(adapters.report())


def test_calls_in_a_graph_capture_are_counted_and_not_compared(monkeypatch):
    """Without a GPU: scores that say they are on one."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    TALLY.clear()

    class OnGpu:
        is_cuda = True

    _verify.compare(OPERATORS["sglang"][0], lambda *_: 1 / 0, (), {}, None, (OnGpu(), None, 8, {}))
    assert adapters.report().verified == adapters.Verified(captured=1)
    TALLY.clear()


def test_the_share_of_calls(engines, monkeypatch):
    (kernels,) = load("sgl_kernel")
    scores, lengths, _ = operands(rows=1, width=20)
    _calls._random.seed(3)
    monkeypatch.setenv("KSIEVE_VERIFY", "0.25")
    sglang.install()
    for _ in range(200):
        kernels.fast_topk_v2(scores, lengths, 4)
    assert 30 <= adapters.report().verified.calls <= 70


@pytest.mark.parametrize("given", ["2", "-0.1", "nan", "all"])
def test_a_share_that_is_none(engines, monkeypatch, given):
    load("sgl_kernel")
    monkeypatch.setenv("KSIEVE_VERIFY", given)
    with pytest.raises(ArgumentError, match=rf"^KSIEVE_VERIFY: got '{given}'; takes a share of calls, from 0 to 1"):
        sglang.install()
    with pytest.raises(ArgumentError, match=r"^verify: got 1.5"):
        sglang.install(verify=1.5)
