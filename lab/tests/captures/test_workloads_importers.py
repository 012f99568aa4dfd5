"""Importing saved matrices: every source type, streaming, lengths, and errors that name file and problem."""

from __future__ import annotations

import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from ksieve.core.errors import ArgumentError, BackendError, FileFormatError
from ksieve_lab.captures.format import open_capture
from ksieve_lab.captures.importers import import_scores
from ksieve_lab.captures.numbers import narrow
from ksieve_lab.captures.writer import write_factors

SCORES = np.random.default_rng(0).standard_normal((7, 30)).astype(np.float32)
LENGTHS = np.array([0, 30, -2, 5, 31, 6, 7])


def read(path):
    with open_capture(path) as capture:
        return capture.dtype, capture.rows_block(0, capture.rows), capture.lengths


def save_npz(path, **arrays):
    np.savez(path, **arrays)


def save_npz_deflated(path, **arrays):
    np.savez_compressed(path, **arrays)


def save_torch(path, **arrays):
    torch = pytest.importorskip("torch")
    torch.save({name: torch.from_numpy(a) for name, a in arrays.items()}, path)


MANY = pytest.mark.parametrize(
    ("save", "suffix"), [(save_npz, "npz"), (save_npz_deflated, "npz"), (save_torch, "pt"), (save_torch, "pth")]
)


@pytest.mark.parametrize("max_bytes", [1, 30 * 8 * 3, 1 << 20])
def test_npy(tmp_path, max_bytes):
    np.save(tmp_path / "a.npy", SCORES)
    seen = []
    import_scores(
        tmp_path / "a.npy",
        tmp_path / "a.safetensors",
        k=4,
        metadata={"title": "t"},
        max_bytes=max_bytes,
        progress=lambda done, total: seen.append((done, total)),
    )
    dtype, scores, lengths = read(tmp_path / "a.safetensors")
    assert dtype == "float32"
    assert scores.tobytes() == SCORES.tobytes()
    assert lengths.tolist() == [30] * 7
    assert seen[-1] == (7, 7)
    assert len(seen) == {1: 7, 30 * 8 * 3: 3}.get(max_bytes, 1)
    with open_capture(tmp_path / "a.safetensors") as capture:
        assert capture.k == 4
        assert capture.metadata["source"] == "a.npy" and capture.metadata["title"] == "t"


@MANY
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_archives_and_dicts(tmp_path, save, suffix, max_bytes):
    source = tmp_path / f"a.{suffix}"
    save(source, logits=SCORES, lengths=LENGTHS, other=np.zeros(3))
    import_scores(source, tmp_path / "a.safetensors", name="logits", max_bytes=max_bytes)
    dtype, scores, lengths = read(tmp_path / "a.safetensors")
    assert (dtype, scores.tobytes(), lengths.tolist()) == ("float32", SCORES.tobytes(), LENGTHS.tolist())
    save(source, scores=SCORES, valid=LENGTHS)
    import_scores(source, tmp_path / "b.safetensors", max_bytes=max_bytes)
    assert read(tmp_path / "b.safetensors")[2].tolist() == [30] * 7
    import_scores(source, tmp_path / "b.safetensors", lengths_name="valid")
    assert read(tmp_path / "b.safetensors")[2].tolist() == LENGTHS.tolist()
    save(source, only=SCORES)
    import_scores(source, tmp_path / "c.safetensors")
    assert read(tmp_path / "c.safetensors")[1].tobytes() == SCORES.tobytes()


def test_a_lone_tensor_of_any_layout(tmp_path):
    torch = pytest.importorskip("torch")
    source = torch.from_numpy(SCORES).to(torch.bfloat16)
    for tensor in (source, source.t().contiguous().t(), source.clone().requires_grad_()):
        torch.save(tensor, tmp_path / "a.pt")
        import_scores(tmp_path / "a.pt", tmp_path / "a.safetensors")
        dtype, scores, _ = read(tmp_path / "a.safetensors")
        assert dtype == "bfloat16"
        assert scores.tobytes() == narrow(SCORES, "bfloat16").tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(SCORES),
        SCORES.astype(">f4"),
        SCORES.astype(np.float16),
        SCORES.astype(ml_dtypes.bfloat16),
        SCORES.astype(ml_dtypes.bfloat16).view(np.uint16),
    ],
    ids=["fortran", "big-endian", "float16", "ml_dtypes", "bits"],
)
def test_npy_layouts_and_dtypes(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", max_bytes=300)
    dtype, scores, _ = read(tmp_path / "a.safetensors")
    expected = "bfloat16" if array.dtype.name in ("bfloat16", "uint16") else array.dtype.newbyteorder("=").name
    assert dtype == expected
    assert (scores == (array if array.dtype.name != "bfloat16" else array.view(np.uint16))).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_on_request(tmp_path, dtype):
    wide = np.array([[1 / 3, 1e30, -1e300, np.nan, 65520.0, 1 + 2**-9]])
    np.save(tmp_path / "a.npy", wide)
    with pytest.raises(
        FileFormatError,
        match=r'a\.npy: scores of dtype float64; takes float32.*float64 rounded on request: dtype="float32"',
    ):
        import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors")
    import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", dtype=dtype)
    stored, scores, _ = read(tmp_path / "a.safetensors")
    expected = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    with np.errstate(over="ignore"):
        rounded = wide.astype(np.float32).astype(expected)
    assert stored == dtype
    np.testing.assert_array_equal(scores.view(rounded.dtype).astype(float), rounded.astype(float))


def test_lengths_from_a_file_and_from_an_array(tmp_path):
    np.save(tmp_path / "a.npy", SCORES)
    np.save(tmp_path / "lengths.npy", LENGTHS)
    np.savez(tmp_path / "lengths.npz", a=np.zeros(2), n=LENGTHS)
    huge = np.array([1 << 40, -(1 << 40), 0, 0, 0, 0, 0])
    for lengths, name, expected in (
        (tmp_path / "lengths.npy", None, LENGTHS),
        (str(tmp_path / "lengths.npz"), "n", LENGTHS),
        (LENGTHS.astype(np.int16), None, LENGTHS),
        (huge, None, np.clip(huge, -(1 << 31), (1 << 31) - 1)),
    ):
        import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", lengths=lengths, lengths_name=name)
        assert read(tmp_path / "a.safetensors")[2].tolist() == expected.tolist()
    with pytest.raises(
        ArgumentError, match=r"lengths: got dtype float64, shape \(7,\); takes integers of shape \(7,\)"
    ):
        import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", lengths=LENGTHS.astype(float))
    with pytest.raises(ArgumentError, match=r"lengths in .*lengths.npy: got dtype int64, shape \(7,\); takes .*\(6,\)"):
        np.save(tmp_path / "a.npy", SCORES[:6])
        import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", lengths=tmp_path / "lengths.npy")


@pytest.mark.parametrize("save", [lambda p, a: np.save(p, a), lambda p, a: np.savez_compressed(p, a)])
def test_a_matrix_is_never_held_whole(tmp_path, save):
    source = tmp_path / ("a.npy" if "savez" not in save.__code__.co_names[-1] else "a.npz")
    save(source, np.zeros((64, 1 << 16), np.float32))  # 16 MiB
    tracemalloc.start()
    try:
        import_scores(source, tmp_path / "a.safetensors", max_bytes=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


# ---- errors -----------------------------------------------------------------------------------------------


def refused(source, tmp_path, error=FileFormatError, **options):
    with pytest.raises(error) as caught:
        import_scores(source, tmp_path / "out.safetensors", **options)
    assert not (tmp_path / "out.safetensors").exists()
    assert not list(tmp_path.glob(".*.part"))
    return str(caught.value)


def test_missing_unknown_and_damaged_files(tmp_path):
    assert refused(tmp_path / "no.npy", tmp_path) == f"{tmp_path / 'no.npy'}: no such file"
    (tmp_path / "a.csv").write_text("1,2")
    assert (
        refused(tmp_path / "a.csv", tmp_path)
        == f"{tmp_path / 'a.csv'}: unknown file type '.csv'; takes .npy, .npz, .pt, .pth, .safetensors"
    )
    for suffix in (".npy", ".npz"):
        for content in (b"", b"garbage, not an array", b"\x93NUMPY\x01\x00"):
            path = tmp_path / f"bad{suffix}"
            path.write_bytes(content)
            assert refused(path, tmp_path).startswith(f"{path}: not a readable {suffix} file (")
    np.save(tmp_path / "cut.npy", SCORES)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-5])
    assert "not a readable .npy file" in refused(tmp_path / "cut.npy", tmp_path)


def test_a_damaged_archive_member_is_noticed_while_streaming(tmp_path):
    path = tmp_path / "a.npz"
    scores = np.random.default_rng(2).random((64, 4096), dtype=np.float32)
    np.savez(path, scores=scores)
    data = bytearray(path.read_bytes())
    data[data.index(scores.tobytes()[-40:])] ^= 1
    path.write_bytes(data)
    assert refused(path, tmp_path, max_bytes=1 << 16).startswith(f"{path}: not a readable .npz file (Bad CRC-32")


def test_damaged_and_foreign_torch_files(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    path.write_bytes(b"no torch file")
    assert refused(path, tmp_path).startswith(f"{path}: not a readable .pt file (")
    torch.save([torch.zeros(2, 2)], path)
    assert refused(path, tmp_path) == f"{path}: holds a list; takes a tensor or a dict of tensors"
    torch.save({"a": 1}, path)
    assert refused(path, tmp_path) == f"{path}: holds no array"
    torch.save(torch.zeros(2, 2).to(torch.float8_e4m3fn), path)
    assert refused(path, tmp_path).startswith(f"{path}: a torch.strided tensor of float8_e4m3fn; takes a dense one of")
    torch.save(torch.zeros(2, 2).to_sparse(), path)
    assert "torch.sparse_coo tensor of float32; takes a dense one" in refused(path, tmp_path)
    torch.save(torch.zeros(2, 2, dtype=torch.int64), path)
    assert refused(path, tmp_path).startswith(f"{path}: scores of dtype int64; takes float32")


def test_without_torch_the_remedy_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    message = refused(tmp_path / "a.pt", tmp_path, error=BackendError)
    assert message == f"{tmp_path / 'a.pt'}: reading a torch file needs PyTorch: pip install 'ksieve[torch]'"


def test_arrays_that_are_no_score_matrix(tmp_path):
    path = tmp_path / "a.npy"
    for array, problem in (
        (np.zeros(5, np.float32), "holds an array of shape (5,); takes a matrix (rows, width)"),
        (np.zeros((2, 2, 2), np.float32), "holds an array of shape (2, 2, 2); takes a matrix (rows, width)"),
        (np.zeros((2, 2), np.int32), "scores of dtype int32; takes float32"),
        (np.array([[None]]), "not a readable .npy file ("),
    ):
        np.save(path, array)
        assert refused(path, tmp_path).startswith(f"{path}: {problem}")
    np.savez(tmp_path / "a.npz", scores=np.array([[None]]))
    assert "not a readable .npz file (array 'scores': " in refused(tmp_path / "a.npz", tmp_path)


def test_names(tmp_path):
    np.save(tmp_path / "a.npy", SCORES)
    np.savez(tmp_path / "a.npz", x=SCORES, y=SCORES)
    many = f"an array of {tmp_path / 'a.npz'}: 'x', 'y'"
    assert refused(tmp_path / "a.npz", tmp_path, ArgumentError) == f"name: got None; takes {many}"
    assert refused(tmp_path / "a.npz", tmp_path, ArgumentError, name="z") == f"name: got 'z'; takes {many}"
    assert (
        refused(tmp_path / "a.npy", tmp_path, ArgumentError, name="x")
        == f"name: got 'x'; takes nothing: {tmp_path / 'a.npy'} holds a single array"
    )
    assert refused(tmp_path / "a.npy", tmp_path, ArgumentError, dtype="int8").startswith("dtype: got 'int8'; takes one")


def test_a_capture_of_factors_needs_no_import(tmp_path):
    path = tmp_path / "f.safetensors"
    write_factors(path, q=np.ones((8, 2, 4), "f4"), keys=np.ones((9, 4), "f4"), weights=np.ones((8, 2), "f4"))
    assert refused(path, tmp_path) == f"{path}: a capture already, of factors: it needs no import"
    assert "'k' (9 x 4, F32)" in refused(path, tmp_path, ArgumentError, name="z")


def test_narrow_rounds_bfloat16_as_ml_dtypes_does():
    bits = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | np.uint32(0x8000)
    x = np.concatenate([bits, ties, ties + np.uint32(1), ties - np.uint32(1)]).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    got = narrow(x, "bfloat16")
    nan = np.isnan(x)
    assert (got[~nan] == expected[~nan]).all()
    assert np.isnan(got[nan].view(ml_dtypes.bfloat16).astype(np.float32)).all()
    assert ((got[nan] >> 15) == (x[nan].view(np.uint32) >> 31)).all()
    assert narrow(got, "bfloat16").tobytes() == np.where(nan, got | 0x40, got).astype(np.uint16).tobytes()
    with pytest.raises(ArgumentError, match="dtype: got 'float64'"):
        narrow(x, "float64")
