"""Files of scores: what they hold is selected exactly, and a damaged one is a typed error that names it."""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from importlib.metadata import EntryPoint

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import ksieve
from ksieve.cli.files import index_writer
from ksieve.core.errors import ArgumentError, FileFormatError, KsieveError
from ksieve.core.installation import install_command
from ksieve.files import load_array, open_scores, scores, stream
from ksieve.files.scores import JoinedColumns, save_scores, share_lengths
from ksieve_lab.captures.factor_reader import reader
from ksieve_lab.captures.writer import CaptureWriter, write_factors

ROWS, WIDTH, K = 9, 300, 7
MATRIX = np.random.default_rng(4).standard_normal((ROWS, WIDTH)).astype(np.float32)
LENGTHS = np.array([300, -1, 0, 1, 400, 150, 7, 8, 299])
BF16 = MATRIX.astype(ml_dtypes.bfloat16)

MATRICES = {
    "f4": MATRIX,
    "f2": MATRIX.astype(np.float16),
    "u2": BF16.view(np.uint16),
    "bfloat16": BF16,
    "big-endian f4": MATRIX.astype(">f4"),
    "big-endian u2": BF16.view(np.uint16).astype(">u2"),
    "by columns": np.asfortranarray(MATRIX),
}


@pytest.fixture(autouse=True)
def the_library_alone(monkeypatch):
    """No other package brings a reader."""
    monkeypatch.setattr(scores, "READERS", [])
    monkeypatch.setattr(scores, "entry_points", lambda *, group: [])


def header(path, tensors, data=b"", size=None):
    """A safetensors file with any header, and bytes or a hole behind it."""
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        if size is not None:
            file.truncate(8 + len(text) + size)
    return path


def selected(source, k=K, **more):
    parts = []
    stream.select(source, k, lambda begin, indices: parts.append(indices.copy()), backend="cpu", **more)
    return np.concatenate(parts)


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".any"])
def test_every_dtype_in_both_formats(tmp_path, name, suffix):
    saved, path = MATRICES[name], tmp_path / f"a{suffix}"
    if suffix == ".safetensors":
        native = np.ascontiguousarray(saved, saved.dtype.newbyteorder("="))
        if native.dtype == np.uint16:
            native = native.view(ml_dtypes.bfloat16)
        save_file({"lengths": LENGTHS, "other": np.zeros(3, bool), "scores": native}, path)
    else:
        with path.open("wb") as file:
            np.save(file, saved)
    with open_scores(path) as source:
        wanted = np.ascontiguousarray(saved, saved.dtype.newbyteorder("="))
        wanted = wanted.view(np.uint16) if wanted.dtype.itemsize == 2 and wanted.dtype != np.float16 else wanted
        dtype = {"float32": "float32", "float16": "float16", "uint16": "bfloat16"}[wanted.dtype.name]
        assert (source.rows, source.width, source.dtype, source.k, source.path) == (ROWS, WIDTH, dtype, None, path)
        assert source.rows_block(2, 5).tobytes() == wanted[2:5].tobytes()
        assert source.tile(1, 8, 30, 290).tobytes() == wanted[1:8, 30:290].tobytes()
        assert source.rows_block(0, ROWS).dtype == wanted.dtype
        if name in ("f4", "f2", "u2") or suffix == ".safetensors":
            assert source.rows_block(2, 5).base is not None and not source.rows_block(2, 5).flags.writeable
        lengths = np.clip(LENGTHS, 0, WIDTH) if suffix == ".safetensors" else np.full(ROWS, WIDTH)
        assert np.array_equal(np.clip(source.lengths, 0, WIDTH), lengths) and source.lengths.dtype == np.int32
        for block_bytes in (1 << 28, 4 * WIDTH * 2, 1):
            ksieve.verify(wanted, lengths, selected(source, block_bytes=block_bytes)).raise_if_failed()
        assert ksieve.verify(source, None, selected(source)).ok
        assert ksieve.verify(wanted, lengths, selected(JoinedColumns([source]), block_bytes=1)).ok


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">i8"])
def test_lengths_of_every_integer_dtype(tmp_path, dtype):
    wide = np.dtype(dtype).itemsize >= 4
    lengths = np.full(ROWS, np.iinfo(dtype).max, dtype) if wide else np.arange(ROWS).astype(dtype)
    np.save(tmp_path / "a.npy", MATRIX)
    np.save(tmp_path / "lengths.npy", lengths)
    with open_scores(tmp_path / "a.npy") as source, open_scores(tmp_path / "a.npy") as other:
        share_lengths([source], load_array(tmp_path / "lengths.npy", prefer="lengths"))
        wanted = np.full(ROWS, WIDTH) if wide else np.arange(ROWS)
        assert source.lengths.tolist() == wanted.tolist()
        # The lengths of whole rows reach into the second file.
        share_lengths([source, other], np.array([-5, 0, 1, 299, 300, 301, 599, 600, 700]).astype("i8"))
        assert source.lengths.tolist() == [0, 0, 1, 299, 300, 300, 300, 300, 300]
        assert other.lengths.tolist() == [0, 0, 0, 0, 0, 1, 299, 300, 300]
        for wrong in (np.zeros(ROWS, "f4"), np.zeros(ROWS + 1, "i4"), np.zeros((ROWS, 1), "i4")):
            with pytest.raises(ArgumentError, match=r"^lengths: got dtype .*; takes integers of shape \(9,\), one for"):
                share_lengths([source], wrong)


def test_the_only_matrix_or_the_tensor_that_is_named(tmp_path):
    save_file({"logits": MATRIX, "lengths": LENGTHS}, tmp_path / "one.safetensors")
    save_file({"a": MATRIX, "b": MATRIX[:, :5].copy(), "c": np.zeros(3)}, tmp_path / "two.safetensors")
    with open_scores(tmp_path / "one.safetensors") as source:
        assert (source.width, source.lengths.tolist()) == (WIDTH, LENGTHS.tolist())
    with open_scores(tmp_path / "two.safetensors", "b") as source:
        assert source.width == 5
    with pytest.raises(ArgumentError) as caught:
        open_scores(tmp_path / "two.safetensors")
    listed = f"an array of {tmp_path / 'two.safetensors'}: 'a' (9 x 300, F32), 'b' (9 x 5, F32)"
    assert str(caught.value) == f"tensor: got None; takes {listed}"


def test_files_larger_than_memory(tmp_path):
    """Sparse files of a terabyte: opening takes nothing, and blocks are views."""
    rows, width = 1 << 20, 1 << 18
    big = tmp_path / "a.npy"
    with big.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)})
        file.truncate(file.tell() + 4 * rows * width)
    facts = {"scores": {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, 4 * rows * width]}}
    tracemalloc.start()
    try:
        for path in (big, header(tmp_path / "a.safetensors", facts, size=4 * rows * width)):
            with open_scores(path) as source:
                assert source.lengths[-1] == width
                block = source.rows_block(rows - 64, rows)
                assert block.nbytes == 1 << 26 and not block.any()
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def scores_of(shape, size=0, dtype="F32", **more):
    return {"scores": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}, **more}


HOSTILE = {
    "rows beyond int64": (scores_of([1 << 63, 0]), 0, ""),
    "width beyond int32": (scores_of([0, 1 << 62]), 0, "not a readable .safetensors file"),
    "a sparse row beyond int32": (scores_of([1, 1 << 31], 4 << 31), 4 << 31, "takes sizes up to 2147483647"),
    "8 GiB of lengths": (scores_of([(1 << 31) - 1, 0]), 0, "takes at most 1,048,576 rows"),
    "many digits": (scores_of([0, 4], __metadata__={"ksieve_capture": "1", "topk": "9" * 5000}), 0, "'topk' is '9999"),
    "another script": (scores_of([0, 4], __metadata__={"ksieve_capture": "1", "topk": "٣"}), 0, "takes an int from 1"),
    "K of 0": (scores_of([0, 4], __metadata__={"ksieve_capture": "1", "topk": "0"}), 0, "takes an int from 1"),
    "a later version": (scores_of([0, 4], __metadata__={"ksieve_capture": "2"}), 0, install_command(name="ksieve-lab")),
    "an overlap": ({**scores_of([1, 4], 16), "x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, 16, ""),
    "a gap": ({**scores_of([1, 4], 16), "x": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, 24, ""),
    "a range too short": (scores_of([2, 4], 16), 16, "not a readable .safetensors file"),
    "an 8-bit float": (scores_of([1, 4], 4, "F8_E4M3"), 4, "scores of dtype F8_E4M3; takes float32, float16, or"),
    "64-bit floats": (scores_of([1, 4], 32, "F64"), 32, "scores of dtype F64; takes float32, float16, or bfloat16"),
    "text for a shape": (scores_of("12", 8), 8, ""),
    "infinite offsets": (json.dumps(scores_of([1, 4], 16)).replace("16]", "Infinity]").encode(), 16, ""),
    "a stack": (scores_of([2, 2, 1], 16), 16, "an array of shape (2, 2, 1); takes a matrix (rows, width): reshape it"),
    "lengths of floats": (
        {"lengths": {"dtype": "F32", "shape": [1], "data_offsets": [16, 20]}, **scores_of([1, 4], 16)},
        20, "lengths: got dtype float32, shape (1,); takes integers of shape (1,)",
    ),
    "no tensor": ({}, 0, "holds no array"),
    "a list": (b"[]", 0, "not a readable .safetensors file"),
    "deep JSON": (b"[" * 100_000, 0, "not a readable .safetensors file"),
    "no header": (b"", None, "not a readable .safetensors file"),
    "twice": (
        b'{"scores":{"dtype":"F32","shape":[1,4],"data_offsets":[0,16]},'
        b'"scores":{"dtype":"F32","shape":[1,1073741824],"data_offsets":[0,4294967296]}}', 16, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_a_typed_error(tmp_path, name):
    tensors, size, said = HOSTILE[name]
    path = header(tmp_path / "a.safetensors", tensors, size=size)
    with pytest.raises(FileFormatError) as caught:
        open_scores(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and said in message and len(message) < len(str(path)) + 400


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (MATRIX.astype("f8"), "scores of dtype float64; takes float32, float16, or bfloat16, which is uint16 in NumPy"),
        (np.zeros((2, 3, 4), "f4"), "an array of shape (2, 3, 4); takes a matrix (rows, width): reshape it before"),
        (np.zeros(4, "f4"), "an array of shape (4,); takes a matrix (rows, width): reshape it before it is saved"),
        (np.array([["a"]]), "scores of dtype str32; takes float32"),
        (np.array([[None]]), "not a readable .npy file (Array can't be memory-mapped: Python objects in dtype.)"),
    ],
)
def test_an_array_that_holds_no_scores(tmp_path, array, said):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FileFormatError) as caught:
        open_scores(tmp_path / "a.npy")
    assert said in str(caught.value)


def test_what_is_no_file_of_scores(tmp_path):
    np.savez(tmp_path / "a.npz", MATRIX)
    (tmp_path / "empty.npy").touch()
    for name, said in (
        ("a.npz", "takes a .npy or .safetensors file: save the scores alone, with numpy.save"),
        ("empty.npy", "not a readable .safetensors file"),
        ("absent.npy", "no such file"),
        (".", "not a file"),
    ):
        with pytest.raises(FileFormatError, match=said):
            open_scores(tmp_path / name)
    np.save(tmp_path / "a.npy", MATRIX)
    with pytest.raises(ArgumentError, match=r"^tensor: got 'x', which is not taken: .* holds a single array"):
        open_scores(tmp_path / "a.npy", "x")
    with pytest.raises(ArgumentError, match=r"^path: got int"):
        open_scores(3)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_file_that_is_cut_while_it_is_open(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    np.save(path, MATRIX) if suffix == ".npy" else save_file({"scores": MATRIX}, path)
    with open_scores(path) as source:
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(FileFormatError, match="was cut after it was opened"):
            source.rows_block(0, 1)
        with pytest.raises(FileFormatError, match="not a readable"):
            open_scores(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Whole files of both formats, and a path for damaged ones."""
    folder = tmp_path_factory.mktemp("whole")
    np.save(folder / "a.npy", MATRIX)
    save_file({"lengths": LENGTHS, "scores": MATRIX}, folder / "a.safetensors", {"ksieve_capture": "1", "topk": "7"})
    return [folder / "a.npy", folder / "a.safetensors"], folder / "b"


@given(st.data())
def test_a_damaged_file_is_refused_or_selected_exactly(whole, data):
    paths, path = whole
    content = bytearray(data.draw(st.sampled_from(paths)).read_bytes())
    end = 128 if content[:1] == b"\x93" else 8 + int.from_bytes(content[:8], "little")
    for at in data.draw(st.lists(st.integers(0, end - 1), max_size=4)):
        content[at] = data.draw(st.sampled_from([*b"0123456789,-:[]{}()\"'<>|fiuVOe. \x00\xff", content[at] ^ 1]))
    path.write_bytes(content[: data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))])
    try:
        with open_scores(path) as source:
            if source.rows * source.width < 1 << 16:
                assert ksieve.verify(source, None, selected(source, k=3)).ok
    except KsieveError as error:
        assert str(error).startswith((str(path), "tensor: got"))


def test_readers_of_other_packages(tmp_path, monkeypatch):
    factors, made = tmp_path / "f.safetensors", np.ones((4, 2, 8), "f4")
    write_factors(factors, q=made, keys=np.ones((50, 8), "f4"), weights=np.ones((4, 2), "f4"), k=5)
    remedy = re.escape(install_command(name="ksieve-lab"))
    with pytest.raises(FileFormatError, match=f"a capture of ksieve's laboratory, .*: {remedy}"):
        open_scores(factors)
    entry = EntryPoint("captures", "ksieve_lab.captures.factor_reader:reader", scores.GROUP)
    monkeypatch.setattr(scores, "entry_points", lambda *, group: [entry] if group == scores.GROUP else [])
    with open_scores(factors) as source:
        assert (source.rows, source.width, source.k, source.lengths.tolist()) == (4, 50, 5, [47, 48, 49, 50])
        assert ksieve.verify(source, None, selected(source)).ok
    save_file({"q": made, "k": np.ones((50, 8), "f4"), "w": np.ones((4, 2), "f4")}, tmp_path / "bare.safetensors")
    with open_scores(tmp_path / "bare.safetensors") as source:
        assert source.width == 50
    save_file({"a": made, "b": made}, tmp_path / "other.safetensors")
    assert reader(tmp_path / "other.safetensors") is None
    with pytest.raises(ArgumentError, match=r"^tensor: got None"):
        open_scores(tmp_path / "other.safetensors")


def test_files_without_columns(tmp_path):
    np.save(tmp_path / "a.npy", MATRIX[:, :0])
    with open_scores(tmp_path / "a.npy") as source:
        for given in (source, JoinedColumns([source, source])):
            assert (selected(given) == -1).all()


def test_a_capture_of_scores_needs_no_reader(tmp_path):
    with CaptureWriter(tmp_path / "a.safetensors", ROWS, WIDTH, k=K) as writer:
        writer.write(MATRIX, LENGTHS.astype("i4"))
    with open_scores(tmp_path / "a.safetensors") as source:
        assert (source.k, source.lengths.tolist()) == (K, LENGTHS.tolist())
        assert repr(source).endswith("9 x 300 float32>")


def test_arrays_of_every_file_type(tmp_path):
    torch = pytest.importorskip("torch")
    indices = np.arange(12).reshape(3, 4)
    np.save(tmp_path / "a.npy", indices)
    np.savez(tmp_path / "a.npz", indices=indices, other=indices[:1])
    save_file({"indices": indices, "other": indices[:1].copy()}, tmp_path / "a.safetensors")
    torch.save(torch.from_numpy(indices), tmp_path / "a.pt")
    torch.save({"indices": torch.from_numpy(indices), "other": torch.zeros(1)}, tmp_path / "a.pth")
    for name in ("a.npy", "a.npz", "a.safetensors", "a.pt", "a.pth"):
        path = tmp_path / name
        assert load_array(path, prefer="indices").tolist() == indices.tolist()
        if name not in ("a.npy", "a.pt"):
            assert len(load_array(path, "other", prefer="indices")) == 1
            with pytest.raises(ArgumentError, match=r"^name: got None; takes an array of .*: 'indices'.*, 'other'"):
                load_array(path, prefer="lengths")
        data = path.read_bytes()
        for end in (0, 1, 9, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:end])
            with pytest.raises(FileFormatError, match=f"{name}: not a readable "):
                load_array(path, prefer="indices")


def test_written_files(tmp_path):
    torch = pytest.importorskip("torch")
    with index_writer(tmp_path / "i.safetensors", 2, 3) as write:
        write(0, np.arange(6, dtype=np.int32).reshape(2, 3))
    assert ((tmp_path / "i.safetensors").stat().st_size - 24) % 64 == 0
    assert load_file(tmp_path / "i.safetensors")["indices"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        tensors = {"scores": torch.tensor([[1.5, -2, 3]]).to(dtype), "lengths": torch.tensor([2], dtype=torch.int32)}
        save_scores(tmp_path / "s.safetensors", tensors, 2, operator="x")
        with open_scores(tmp_path / "s.safetensors") as source, safe_open(source.path, framework="pt") as file:
            assert (source.dtype, source.k, source.lengths.tolist()) == (str(dtype)[6:], 2, [2])
            assert selected(source, 2).tolist() in ([[0, 1]], [[1, 0]])
            assert torch.equal(file.get_tensor("scores"), tensors["scores"])
            assert file.metadata()["operator"] == "x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.safetensors", "s.safetensors"]
