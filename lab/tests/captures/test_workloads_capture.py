"""Captures of kind "scores": round trips, laziness, and what is said about files that are none."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.writer import CaptureWriter, write_factors
from ksieve_lab.workloads import write_synthetic

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def matrix(rows, width, dtype="float32", seed=0):
    bits = np.random.default_rng(seed).integers(0, 1 << 32, (rows, width), dtype=np.uint32)
    return bits.view(np.float32) if dtype == "float32" else (bits >> 16).astype(np.uint16).view(DTYPES[dtype])


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def write(path, scores, dtype="float32", lengths=None, **options):
    with CaptureWriter(path, *scores.shape, dtype, **options) as writer:
        writer.write(scores, lengths)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(7, 33), (1, 1), (3, 0), (0, 5), (0, 0), (5, 64)])
def test_what_is_written_is_read(tmp_path, dtype, rows, width):
    scores = matrix(rows, width, dtype)
    lengths = np.random.default_rng(1).integers(-5, width + 5, rows).astype(np.int32)
    path = write(tmp_path / "a.safetensors", scores, dtype, lengths, k=17, metadata={"title": "größer"})
    with Capture(path) as capture:
        assert (capture.kind, capture.rows, capture.width, capture.dtype) == ("scores", rows, width, dtype)
        assert same_bits(capture.rows_block(0, rows), scores)
        assert same_bits(capture.lengths, lengths)
        assert capture.k == 17
        assert capture.metadata["title"] == "größer"
        for begin, end in [(0, 0), (rows, rows), (rows // 2, rows)]:
            assert same_bits(capture.rows_block(begin, end), scores[begin:end])


def test_blocks_are_writable_copies_that_outlive_the_capture(tmp_path):
    path = write(tmp_path / "a.safetensors", matrix(4, 5))
    with Capture(path) as capture:
        block = capture.rows_block(1, 3)
    block[:] = 0
    assert block.flags.c_contiguous and block.flags.aligned
    with Capture(path) as capture:
        assert same_bits(capture.rows_block(0, 4), matrix(4, 5))


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 0, 4], [6, 1]])
def test_streaming_writes_the_same_file(tmp_path, pieces):
    scores, lengths = matrix(7, 33), np.array([33, 1, 33, 33, 33, 9, -1], np.int32)
    whole = write(tmp_path / "whole.safetensors", scores, lengths=lengths, metadata={"b": "1", "a": "2"})
    with CaptureWriter(tmp_path / "parts.safetensors", 7, 33, metadata={"b": "1", "a": "2"}) as writer:
        begin = 0
        for count in pieces:
            part = slice(begin, begin + count)
            writer.write(scores[part], None if (lengths[part] == 33).all() else lengths[part])
            begin += count
    assert (tmp_path / "parts.safetensors").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("max_bytes", [1, 5 * 4, 2 * 5 * 4 + 3, 1 << 20])
def test_blocks_cover_all_rows_in_order_within_the_bound(tmp_path, max_bytes):
    scores, lengths = matrix(7, 5), np.arange(7, dtype=np.int32)
    with Capture(write(tmp_path / "a.safetensors", scores, lengths=lengths)) as capture:
        blocks = list(capture.iter_blocks(max_bytes))
    assert same_bits(np.concatenate([b.scores for b in blocks]), scores)
    assert same_bits(np.concatenate([b.lengths for b in blocks]), lengths)
    assert [b.begin for b in blocks] == np.cumsum([0, *(len(b.scores) for b in blocks[:-1])]).tolist()
    assert all(b.scores.nbytes <= max_bytes or len(b.scores) == 1 for b in blocks)


def test_other_libraries_read_what_we_write(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    scores = matrix(3, 7, "bfloat16")
    path = write(tmp_path / "a.safetensors", scores, "bfloat16", np.array([1, 2, 3], np.int32), k=5)
    tensors = load_file(path)
    assert tensors["scores"].dtype is torch.bfloat16
    assert same_bits(tensors["scores"].view(torch.int16).numpy().view(np.uint16), scores)
    assert tensors["lengths"].tolist() == [1, 2, 3]
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"ksieve_capture": "1", "kind": "scores", "topk": "5"}


@pytest.mark.parametrize("rows", [1, 2, 3, 17])
def test_scores_begin_at_a_multiple_of_64_bytes(tmp_path, rows):
    path = write(tmp_path / "a.safetensors", np.full((rows, 3), 1.5, np.float32))
    data = path.read_bytes()
    assert (len(data) - rows * 12) % 64 == 0
    assert np.frombuffer(data[-rows * 12 :], "<f4").tolist() == [1.5] * rows * 3


def test_blocks_may_have_any_pitch_and_be_ml_dtypes(tmp_path):
    scores = matrix(6, 10, "bfloat16")
    wide = np.zeros((4, 32), np.uint16)
    wide[:, 3:13] = scores[:4]
    with CaptureWriter(tmp_path / "a.safetensors", 6, 10, "bfloat16") as writer:
        writer.write(wide[:, 3:13])
        writer.write(scores[4:].view(ml_dtypes.bfloat16))
    with Capture(tmp_path / "a.safetensors") as capture:
        assert same_bits(capture.rows_block(0, 6), scores)


# ---- writing what cannot be written ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ([np.zeros((1, 4), np.float16)], "scores: got dtype float16; takes dtype float32, the capture"),
        ([np.zeros((1, 5), np.float32)], "scores: got width 5; takes width 4, the capture's"),
        ([np.zeros(4, np.float32)], "scores: got shape (4,); takes a matrix"),
        ([np.zeros((4, 4), np.float32)], "scores: got rows up to 4; takes at most the announced 3 rows"),
        ([[[1.0]]], "scores: got list; takes a NumPy, PyTorch"),
        (
            [np.zeros((2, 4), np.float32), np.zeros(2, np.int64)],
            "lengths: got dtype int64, shape (2,); takes dtype int32",
        ),
        (
            [np.zeros((2, 4), np.float32), np.zeros(3, np.int32)],
            "lengths: got dtype int32, shape (3,); takes dtype int32",
        ),
    ],
)
def test_a_block_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path, block, message):
    with pytest.raises(ArgumentError) as error, CaptureWriter(tmp_path / "a.safetensors", 3, 4) as writer:
        writer.write(*block)
    assert str(error.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": -1}, "rows: got -1; takes an int from 0 to 2**31 - 1"),
        ({"width": 2.5}, "width: got 2.5; takes an int from 0 to 2**31 - 1"),
        ({"width": 1 << 31}, "width: got 2147483648; takes an int from 0 to 2**31 - 1"),
        ({"dtype": "float64"}, "dtype: got 'float64'; takes one of ['float32', 'float16', 'bfloat16']"),
        ({"k": 0}, "k: got 0; takes an int from 1 to 1048576"),
        ({"metadata": {"topk": "5"}}, "metadata: got the key 'topk'; takes any key but the format's own"),
        ({"metadata": {"n": 5}}, "metadata: got 'n': 5; takes text keys and text values"),
    ],
)
def test_a_writer_checks_its_arguments_before_it_writes(tmp_path, options, message):
    with pytest.raises(ArgumentError) as error:
        CaptureWriter(tmp_path / "a.safetensors", **{"rows": 3, "width": 4} | options)
    assert str(error.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_missing_rows_are_an_error_and_an_old_file_survives(tmp_path):
    path = write(tmp_path / "a.safetensors", matrix(2, 2))
    before = path.read_bytes()
    writer = CaptureWriter(path, 3, 2)
    writer.write(matrix(2, 2))
    with pytest.raises(FileFormatError) as error:
        writer.close()
    assert str(error.value) == f"{path}: 2 of 3 announced rows were written; nothing is kept"
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]
    assert path.read_bytes() == before


def test_an_error_in_the_block_discards_and_a_closed_writer_refuses(tmp_path):
    with pytest.raises(RuntimeError, match="boom"), CaptureWriter(tmp_path / "a.safetensors", 1, 2) as writer:
        writer.write(matrix(1, 2))
        raise RuntimeError("boom")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentError, match="writer: got a closed writer"):
        writer.write(matrix(1, 2))


# ---- reading what is no capture ---------------------------------------------------------------------------


def refused(path):
    with pytest.raises(FileFormatError) as error:
        Capture(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_file_cut_before_or_after_it_was_opened(tmp_path):
    path = write(tmp_path / "a.safetensors", matrix(3, 5000))
    assert refused(tmp_path) == "not a file"
    with Capture(path) as capture:
        os.truncate(path, 40_000)
        with pytest.raises(FileFormatError, match="it was cut after it was opened"):
            capture.rows_block(2, 3)
    assert refused(path).startswith("not a readable .safetensors file (")


SQUARE = {"scores": np.zeros((2, 2), np.float32)}


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"weight": np.zeros((2, 2), np.float32)}, None, "not a score capture: it holds tensors ['weight']; a capture"),
        ({"scores": np.zeros((2, 2))}, None, "scores of dtype F64; takes F32 or F16 or BF16"),
        ({"scores": np.zeros(4, np.float32)}, None, "an array of shape (4,); takes a matrix"),
        (SQUARE | {"lengths": np.zeros(3, np.int32)}, None, "lengths: got dtype int32, shape (3,); takes integers"),
        (SQUARE, {"ksieve_capture": "2"}, "capture format version '2'; this ksieve reads 1"),
        (SQUARE, {"ksieve_capture": "1", "kind": "factors"}, "metadata says kind 'factors', its tensors say 'scores'"),
        (SQUARE, {"ksieve_capture": "1", "topk": "many"}, "metadata 'topk' is 'many'; takes an int from 1 to 1048576"),
    ],
)
def test_safetensors_that_are_no_capture(tmp_path, tensors, metadata, message):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata)
    assert refused(path).startswith(message)


def test_a_bad_block_size_is_refused(tmp_path):
    path = write(tmp_path / "a.safetensors", matrix(3, 2))
    with (
        Capture(path) as capture,
        pytest.raises(ArgumentError, match="max_bytes: got 0; takes an int of at least"),
    ):
        list(capture.iter_blocks(0))


def test_the_description_holds_the_facts_in_order(tmp_path):
    lengths = np.array([-3, 2000, 5000], np.int32)
    path = write(tmp_path / "a.safetensors", matrix(3, 4000), lengths=lengths, k=2048, metadata={"z": "1", "a": "2"})
    with Capture(path) as capture:
        facts = capture.describe()
        assert repr(capture) == f"<Capture {str(path)!r}: scores, 3 x 4000 float32>"
    assert list(facts) == ["file", "kind", "scores", "lengths", "suggested k", "z", "a"]
    assert facts["scores"] == "3 rows x 4,000 float32 (48.0 kB)"
    assert facts["lengths"] == "0 to 4,000, 6,000 valid scores"
    assert facts["suggested k"] == "2,048"


def test_rows_at_are_the_rows_of_blocks(tmp_path):
    write_synthetic(tmp_path / "scores.safetensors", "random_normal", 7, 33)
    rng = np.random.default_rng(0)
    write_factors(
        tmp_path / "factors.safetensors",
        q=rng.standard_normal((7, 2, 8)).astype(np.float16),
        keys=rng.integers(-9, 9, (33, 8)).astype(np.int8),
        key_scale=rng.random(33, dtype=np.float32),
        weights=rng.standard_normal((7, 2)).astype(np.float32),
    )
    for name in ("scores", "factors"):
        with Capture(tmp_path / f"{name}.safetensors") as capture:
            whole = capture.rows_block(0, 7)
            assert same_bits(capture.rows_at([6, 0, 3]), whole[[6, 0, 3]])
            assert capture.rows_at([]).shape == (0, 33)
            assert same_bits(capture.tile(2, 9, 30, 40), whole[2:, 30:])
