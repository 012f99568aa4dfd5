"""`ksieve doctor --for`: what is installed of an engine, compared with what the adapters take."""

from __future__ import annotations

import enum
import inspect
import json
import os
import subprocess
import sys
import tomllib

import pytest

torch = pytest.importorskip("torch")

from conftest import ROOT  # noqa: E402

from ksieve.adapters import flashinfer, plugins, sglang, tensorrt_llm, vllm  # noqa: E402
from ksieve.adapters._operators import OPERATORS, SWITCHES  # noqa: E402
from ksieve.adapters._signatures import Finding, adapter_of, known, names_of, signature_of  # noqa: E402

ENGINES = str(ROOT / "tests" / "support" / "fake_engines")
ADAPTERS = {"vllm": vllm, "sglang": sglang, "flashinfer": flashinfer, "tensorrt_llm": tensorrt_llm}
EVERY = {operator.name: operator for operators in OPERATORS.values() for operator in operators}


def doctor(*words, engines=ENGINES, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "ksieve", "doctor", *words], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), engines])} | variables,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_an_engine_that_fits():
    code, out, err = doctor("--for", "vllm")
    assert (code, err) == (0, "")
    lines = [line.split("  ") for line in out.splitlines()]
    assert lines[0] == ["vllm: version unknown"]
    assert "KSIEVE_VLLM is not set: ksieve is off" in out
    fits = {line[1]: line[-1].strip() for line in lines if len(line) > 2}
    assert fits.keys() == {operator.name for operator in OPERATORS["vllm"]}
    assert fits.pop("torch.ops._C.cooperative_topk") == "not in this version"
    assert set(fits.values()) == {"can be replaced"}


def test_an_engine_that_does_not():
    code, out, _ = doctor("--for", "all", "--json", FAKE_VLLM="newer", KSIEVE_VLLM="1")
    assert code == 2
    engines = {report["engine"]: report for report in json.loads(out)["engines"]}
    fits = {name: report["fits"] for name, report in engines.items()}
    assert fits == {"vllm": False, "sglang": True, "flashinfer": True, "tensorrt_llm": True}
    (wrong,) = [operator for operator in engines["vllm"]["operators"] if not operator["fits"]]
    assert wrong["operator"] == "torch.ops._C.top_k_per_row_decode"
    assert wrong["found"] == f"{wrong['takes'][0]}, bool sampled"
    assert (engines["vllm"]["on"], engines["sglang"]["on"]) == (True, False)
    assert (
        "bool sampled) is NOT known; ksieve takes (Tensor logits, int next_n"
        in doctor("--for", "vllm", FAKE_VLLM="newer")[1]
    )


def test_variables_that_keep_ksieve_off(monkeypatch):
    _, out, _ = doctor("--for", "vllm", VLLM_PLUGINS="other")
    assert "VLLM_PLUGINS does not name ksieve: the engine does not load it" in out
    for engine, variable, listed, loaded in (
        ("vllm", "VLLM_PLUGINS", "", False),  # vLLM then loads none
        ("vllm", "VLLM_PLUGINS", "other,ksieve", True),
        ("sglang", "SGLANG_PLUGINS", "other", False),
        ("sglang", "SGLANG_PLUGINS", "", True),
        ("sglang", "SGLANG_PLUGINS", "other, ksieve", True),
    ):
        monkeypatch.setenv(variable, listed)
        assert plugins.loaded(engine) is loaded, (engine, listed)
    for word, on in (("1", True), ("False", False), ("off", False), ("", False)):
        monkeypatch.setenv("KSIEVE_VLLM", word)
        assert plugins.switched_on("vllm") is on


NOTHING = "vllm._custom_ops registered nothing in torch.ops._C, as without a GPU"
"""Of vLLM on a machine without a GPU: its modules can be imported, and register no operators."""


@pytest.mark.parametrize(
    ("engine", "module", "code", "said"),
    [
        ("sglang", "sgl_kernel.py", "raise OSError('no driver')", "CANNOT be imported: sgl_kernel: OSError: no driver"),
        ("vllm", "vllm/_custom_ops.py", "import torch", f"CANNOT be imported: {NOTHING}"),
        ("flashinfer", "another.py", "", "not installed in this Python environment: flashinfer"),
    ],
)
def test_an_engine_that_cannot_be_used(tmp_path, engine, module, code, said):
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).write_text(code, encoding="utf-8")
    code, out, err = doctor("--for", engine, engines=str(tmp_path))
    assert code == 2 and said in out + err
    assert bool(out) == (engine != "flashinfer") and out.count("OSError: no driver") in (0, 3)
    assert "torch.ops._C.persistent_topk  not in" not in out, "no version without operators"


def test_entry_points_are_those_that_the_engines_load():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    assert groups == {group: {"ksieve": f"ksieve.adapters.plugins:{name}"} for name, (_, group, _) in SWITCHES.items()}


# ---- signatures as text ----------------------------------------------------------------------------------------


class Mode(enum.IntEnum):
    NONE = 0


def test_a_signature_as_text():
    def function(a: int, b: Mode = Mode.NONE, *, c: float = float("-inf"), d: object = torch.int32) -> None: ...

    text = "a, b=0, *, c=-inf, d=torch.int32"
    assert signature_of(function) == text
    assert names_of(text) == ["a", "b", "c", "d"]
    assert signature_of(torch.ops.aten.topk).startswith("Tensor self, int k, int dim")
    assert names_of("Tensor logits, int next_n") == ["logits", "next_n"]


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        ("a, b=1", True),
        ("a, b=1, *, c=None", True),
        ("a", True),  # of an older version
        ("a, b=2", False),
        ("a, b", False),
        ("a, *, b=1", False),
        ("a, b=1, *, c=None, d=2", False),
        ("", False),
    ],
)
def test_what_is_a_call_of_the_adapter_s_signature(found, fits):
    assert Finding("name", found, ("a, b=1, *, c=None",)).fits is fits


def test_deep_select_s_default_was_both():
    (takes,) = known(EVERY["sglang.kernels.ops.attention.deep_select.topk"])
    assert takes.endswith("abort_when_nan_found=False")
    assert Finding("name", takes.replace("found=False", "found=True"), (takes,)).fits


@pytest.mark.parametrize("operator", EVERY.values(), ids=EVERY)
def test_arguments_that_are_written_are_those_of_the_signature(operator):
    names = names_of(known(operator)[0])
    assert set(operator.writes) <= set(names)
    assert not isinstance(operator.answer, str) or operator.answer in names
    ours = inspect.signature(adapter_of(operator)).parameters
    for schema in operator.schemas:
        assert list(ours)[: len(names_of(schema))] == names_of(schema)


def test_every_adapter_function_has_a_known_signature():
    adapted = {name for name, adapter in ADAPTERS.items() for name in adapter.__all__}
    known = {operator.adapter.rpartition(".")[2] for operator in EVERY.values()}
    assert adapted - known <= {"install", "uninstall", "warm_up", "plan_topk_v2"}


_DECODE = "Tensor logits, Tensor seq_lens, Tensor indices, int next_n, int index_topk=2048"
_HINTS = "Tensor? pre_idx=None, Tensor? heuristic_scratch=None"
_AUX = "int compress_ratio=1, Tensor? radix_aux_indices=None, Tensor? radix_aux_logits=None"


@pytest.mark.parametrize(
    ("name", "arguments", "fits"),
    [
        ("prefill", "Tensor logits, Tensor row_starts, Tensor row_ends, Tensor indices, int index_topk=2048", True),
        ("decode", _DECODE, True),
        ("decode", f"{_DECODE}, {_HINTS}", True),
        ("decode", f"{_DECODE}, {_HINTS}, {_AUX}", True),
        ("decode", f"{_DECODE}, {_HINTS}, {_AUX}, Tensor? row_kv_lens=None", False),  # of a branch: rows of any request
        ("decode", f"{_DECODE}, {_AUX}", False),  # of a change that was closed: other arguments in the same places
    ],
)
def test_schemas_that_tensorrt_llm_registers(name, arguments, fits):
    """As its IndexerTopKOp.cpp has them, and PyTorch reads them; no wheel of it can be installed without its index."""
    namespace = f"ksieve_trtllm_{abs(hash(arguments))}"
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(f"{name}({arguments}) -> ()")
    registered = signature_of(getattr(getattr(torch.ops, namespace), name))
    assert Finding(name, registered, EVERY[f"torch.ops.trtllm.indexer_topk_{name}"].schemas).fits is fits
