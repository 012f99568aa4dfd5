"""Errors that people make: each says what to write instead."""

from __future__ import annotations

import subprocess
import sys
import types

import numpy as np
import pytest

import ksieve
import ksieve_lab
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options

SCORES = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
ANSWER = np.argsort(-SCORES, axis=1)[:, :8].astype(np.int32)


def in_torch(array):
    return pytest.importorskip("torch").from_numpy(array)


@pytest.mark.parametrize(
    ("library", "remedy"), [(np.asarray, r"offsets\.astype\(np\.int32\)"), (in_torch, r"offsets\.to\(torch\.int32\)")]
)
def test_int64_offsets_say_how_to_convert_them(library, remedy):
    with pytest.raises(ArgumentError, match=rf"^offsets: got dtype int64; takes dtype int32: {remedy}$"):
        ksieve.topk(library(SCORES), k=3, transform=ksieve.Offsets(library(np.full(4, 9, np.int64))))


@pytest.mark.parametrize(
    ("library", "remedy"), [(np.asarray, r"np\.ascontiguousarray\(scores\)"), (in_torch, r"scores\.contiguous\(\)")]
)
def test_a_last_stride_other_than_one_says_how_to_make_it_one(library, remedy):
    with pytest.raises(ArgumentError, match=rf"^scores: got last stride 2; takes last stride 1 .*: {remedy}$"):
        ksieve.topk(library(SCORES)[:, ::2], k=3)


@pytest.mark.parametrize(
    ("keyword", "value", "remedy"),
    [
        ("smallest", True, "largest=False selects the smallest"),
        ("dim", -1, "rows run along the last axis, of scores of any rank"),
        ("axis", 1, "move it there and make a contiguous copy"),
        ("descending", True, "sorted=True gives the best score first"),
        ("dtype", "int64", "index_dtype="),
        ("length", 3, r"did you mean lengths\?"),
        ("values", True, r"ksieve\.select takes it"),
        ("starts", 3, r"it is a member of ksieve\.RowBounds"),
        ("policy", "direct", r"ksieve\.plan\(\.\.\., policy=\)"),
        ("zzz", 3, r"help\(ksieve\.topk\)"),
    ],
)
def test_keywords_of_other_libraries_say_what_to_write(keyword, value, remedy):
    with pytest.raises(TypeError, match=rf"^topk\(\) got an unexpected keyword argument '{keyword}': .*{remedy}"):
        ksieve.topk(SCORES, k=3, **{keyword: value})


def test_a_k_in_the_place_of_lengths_is_told_where_it_goes():
    with pytest.raises(ArgumentError, match=r"^lengths: got int; takes .*did you mean k=16\?"):
        ksieve.topk(SCORES, 16)


def test_verify_takes_the_answer_as_a_keyword():
    assert ksieve.verify(SCORES, indices=ANSWER)


@pytest.mark.parametrize("given", [(), (ANSWER,)])
def test_verify_without_an_answer_says_where_it_goes(given):
    with pytest.raises(ArgumentError, match=r"^indices: got .*verify\(scores, lengths, indices\)"):
        ksieve.verify(SCORES, *given)


def test_verify_asks_whether_its_arrays_are_swapped():
    with pytest.raises(ArgumentError, match=r"^scores: got dtype int32; .*are scores and indices swapped\?"):
        ksieve.verify(ANSWER, None, SCORES)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_the_command_asks_whether_its_files_are_swapped(tmp_path, suffix):
    np.save(tmp_path / "answer.npy", ANSWER)
    scores = tmp_path / f"scores{suffix}"
    if suffix == ".npy":
        np.save(scores, SCORES)
    else:
        with ksieve_lab.record(scores):
            ksieve.topk(SCORES, k=8)
    command = [sys.executable, "-m", "ksieve", "verify", str(tmp_path / "answer.npy"), str(scores)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2 and "swapped" in found.stderr, found.stderr


class TestDtypesGivenAsDtypes:
    """A dtype of NumPy, PyTorch or an extension of NumPy is as good as its name."""

    @pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32"])
    def test_plan_takes_those_of_numpy(self, dtype):
        assert ksieve.plan(rows=1, width=64, k=4, dtype=dtype) == ksieve.plan(rows=1, width=64, k=4)

    @pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
    def test_plan_takes_those_of_torch(self, name):
        torch = pytest.importorskip("torch")
        plan = ksieve.plan(rows=1, width=64, k=4, dtype=getattr(torch, name), device=torch.device("cpu"))
        assert plan.problem.dtype == name

    def test_plan_takes_bfloat16_of_an_extension(self):
        extension = pytest.importorskip("ml_dtypes")
        assert ksieve.plan(rows=1, width=64, k=4, dtype=extension.bfloat16).problem.dtype == "bfloat16"

    def test_plan_names_one_that_it_cannot_take(self):
        with pytest.raises(ArgumentError, match=r"^dtype: got 'float64'; takes one of"):
            ksieve.plan(rows=1, width=64, k=4, dtype=np.float64)

    @pytest.mark.parametrize("dtype", [np.int64, np.dtype("int64"), int])
    def test_indices_in_those_of_numpy(self, dtype):
        assert ksieve.topk(SCORES, k=3, index_dtype=dtype).dtype == np.int64
        assert Options(index_dtype=dtype) == Options(index_dtype="int64")

    def test_indices_in_those_of_torch(self):
        torch = pytest.importorskip("torch")
        assert ksieve.topk(in_torch(SCORES), k=3, index_dtype=torch.int64).dtype is torch.int64
        out = torch.zeros((4, 3), dtype=torch.int32)
        with pytest.raises(ArgumentError, match=r"^out: got dtype int32; takes dtype int64"):
            ksieve.topk(in_torch(SCORES), k=3, index_dtype=torch.int64, out=out)


def test_a_path_is_told_how_to_map_the_file(tmp_path):
    for path in ("scores.npy", tmp_path / "scores.npy"):
        with pytest.raises(ArgumentError, match=r"^scores: got .*np\.load\(path, mmap_mode='r'\)"):
            ksieve.topk(path, k=3)


def test_bounds_of_flat_scores_in_the_place_of_lengths_are_told_where_they_go():
    with pytest.raises(ArgumentError, match=r"^lengths: got shape \(3,\); takes .*ksieve\.Segments\(indptr\)"):
        ksieve.topk(SCORES.ravel(), np.array([0, 9, 256]), k=3)


def test_types_are_named_as_one_imports_them():
    with pytest.raises(ArgumentError, match=r"^scores: got int; takes"):
        ksieve.topk(5, k=3)
    with pytest.raises(ArgumentError, match=r"^plan: got numpy\.ndarray; takes"):
        ksieve.topk(SCORES, k=3, plan=SCORES)
    with pytest.raises(ArgumentError, match=r"^k: got numpy\.float64 2\.0; takes"):
        ksieve.topk(SCORES, k=np.float64(2))


def test_jax_never_narrows_int64(monkeypatch):
    class JaxArray(np.ndarray):
        __module__ = "jaxlib"

    jax = types.SimpleNamespace(config=types.SimpleNamespace(jax_enable_x64=False))
    monkeypatch.setitem(sys.modules, "jax", jax)
    with pytest.raises(ArgumentError, match=r"^index_dtype: .*jax_enable_x64"):
        ksieve.topk(np.zeros((2, 64), np.float32).view(JaxArray), k=4, index_dtype="int64")
