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
        "Blocks",
        "DeviceInfo",
        "FileFormatError",
        "GradientWarning",
        "KsieveError",
        "Offsets",
        "PageTable",
        "Plan",
        "Positions",
        "Route",
        "RowBounds",
        "Running",
        "SamplingPolicy",
        "Segments",
        "SelectedBlocks",
        "Selection",
        "Stats",
        "Verdict",
        "VerificationError",
        "WorkspaceError",
        "__version__",
        "plan",
        "select",
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

    topk = [
        "scores", "lengths", "k", "bounds=", "blocks=", "gathered=", "transform=", "max_k=", "largest=", "sorted=",
        "tie_break=", "nan=", "deterministic=", "index_dtype=", "num_rows=", "out=", "workspace=", "plan=",
    ]  # fmt: skip
    assert names(ksieve.topk) == topk and len(topk) - 3 <= 16
    assert names(ksieve.select) == [*topk, "values=", "raw=", "counts=", "fill=", "stats="]
    assert names(ksieve.verify) == [
        "scores", "lengths", "indices", "k=", "num_rows=", "bounds=", "blocks=", "gathered=", "counts=", "largest=",
        "nan=", "sorted=", "tie_break=", "sentinel=", "block_bytes=", "progress=",
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
    # A bare Python loads what `.pth` files and editable installations ask for, and Debian's its sitecustomize.
    bare, loaded = (
        set(run(f"import json, sys{more}; print(json.dumps(list(sys.modules)))")) for more in ("", ", ksieve")
    )
    others = {name.partition(".")[0] for name in loaded - bare} - sys.stdlib_module_names - {"ksieve", "numpy"}
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
