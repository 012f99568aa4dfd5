"""What the package promises to its importers: names, import cost, and no heavy module behind `import ksieve`."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import resources

import pytest

import ksieve
import ksieve_lab

HEAVY = ("numba", "torch", "cuda", "cupy", "jax", "triton", "matplotlib", "scipy", "rich", "typer", "safetensors")


def run(code: str):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_names_are_pinned():
    assert sorted(ksieve.__all__) == [
        "ArgumentError",
        "BackendError",
        "DeviceInfo",
        "FileFormatError",
        "GradientWarning",
        "KsieveError",
        "Options",
        "Plan",
        "Route",
        "Running",
        "SamplingPolicy",
        "Stats",
        "Verdict",
        "VerificationError",
        "WorkspaceError",
        "__version__",
        "plan",
        "topk",
        "verify",
    ]
    assert all(hasattr(ksieve, name) for name in ksieve.__all__)


def test_captures_are_imported_when_they_are_used():
    code = """
import json, sys
import ksieve
before = any(name.startswith("ksieve_lab") for name in sys.modules)
from ksieve_lab import captures
found = [getattr(captures, name).__name__ for name in captures.__all__]
print(json.dumps([before, found, captures.__all__]))
"""
    before, found, names = run(code)
    assert not before and found == names
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ksieve_lab.captures.nothing


def test_signatures_are_pinned():
    def names(function):
        return [p.name if p.kind is not p.KEYWORD_ONLY else f"{p.name}=" for p in parameters(function)]

    def parameters(function):
        return inspect.signature(function).parameters.values()

    assert names(ksieve.topk) == [
        "scores", "lengths", "k", "plan=", "policy=", "backend=", "out=", "workspace=", "num_rows=", "return_stats=",
        "starts=", "ends=", "index_base=", "next_n=", "max_k=", "page_table=", "page_size=", "row_to_request=",
        "offsets=", "positions=", "block_table=", "counts_out=", "fill=", "block_size=", "force_first=", "force_last=",
        "force=", "expand=", "tail=", "return_values=", "values_out=", "return_raw=", "raw_out=",
        "index_dtype=", "sorted=", "tie_break=", "deterministic=", "batch_invariant=", "largest=", "nan=", "overlap=",
    ]  # fmt: skip
    assert names(ksieve.plan) == [
        "rows=", "width=", "k=", "pitch=", "dtype=", "device=", "family=", "policy=", "splits=", "options=",
    ]  # fmt: skip
    assert names(ksieve.verify) == [
        "scores", "lengths", "indices", "k=", "starts=", "ends=", "index_base=", "next_n=", "num_rows=",
        "positions=", "block_table=", "counts=", "block_size=", "force_first=", "force_last=", "force=", "expand=",
        "tail=", "largest=", "nan=", "sorted=", "tie_break=", "sentinel=", "block_bytes=", "progress=",
    ]  # fmt: skip


def test_every_public_thing_is_documented():
    for name in ksieve.__all__:
        thing = getattr(ksieve, name)
        assert name == "__version__" or (inspect.getdoc(thing) or "").strip(), name
    for function in (ksieve.topk, ksieve.plan, ksieve.verify):
        text = inspect.getdoc(function)
        for parameter in inspect.signature(function).parameters:
            assert parameter in text, f"{function.__name__}: {parameter}"


def test_the_package_says_that_it_is_typed():
    assert resources.files("ksieve").joinpath("py.typed").is_file()


def test_errors_form_one_tree():
    for name in ("ArgumentError", "BackendError", "FileFormatError", "VerificationError", "WorkspaceError"):
        assert issubclass(getattr(ksieve, name), ksieve.KsieveError)
    assert issubclass(ksieve.ArgumentError, ValueError) and issubclass(ksieve.WorkspaceError, ksieve.ArgumentError)


def test_import_brings_numpy_and_none_of_what_runs_a_call():
    """What `import ksieve` costs is what it loads; `ksieve bench cpu` times it."""
    loaded = set(run("import json, sys, ksieve; print(json.dumps(list(sys.modules)))"))
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"__main__", "ksieve", "numpy"}
    # What Python loads for `.pth` files and editable installations has such names.
    assert "numpy" in loaded and {name for name in others if not name.startswith("_")} == set()
    assert not {f"ksieve.{name}" for name in ("adapters", "backends", "cli", "distributed", "model.reference")} & loaded


def test_planning_and_verifying_need_numpy_alone():
    code = """
import json, sys, numpy as np, ksieve, ksieve.backends.cuda
x = np.arange(12, dtype=np.float32).reshape(3, 4)
print(ksieve.plan(rows=64, width=131072, k=2048), file=sys.stderr)
assert ksieve.verify(x, None, np.array([[3]] * 3))
print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))
"""
    assert not set(run(code)) & set(HEAVY)
