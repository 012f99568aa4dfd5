"""Captures made to break their reader: each is a typed error that names the file, or an exact result."""

import json
from pathlib import Path

import numpy as np
import pytest

from ksieve.core.errors import FileFormatError
from ksieve.files import stream
from ksieve_lab.captures.format import open_capture

BIG = 1 << 62


def write(path: Path, header: object, data: bytes = b"", size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        if size is not None:  # a hole, of no blocks on disk
            file.truncate(8 + len(text) + size)
    return path


def scores(shape, size: int = 0, dtype: str = "F32", **more) -> dict:
    return {"scores": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}, **more}


def factors(q, k, w) -> dict:
    header, at = {}, 0
    for name, shape in (("q", q), ("k", k), ("w", w)):
        size = 4 * int(np.prod(np.array(shape, object)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header


HOSTILE = {
    "rows beyond int64": (scores([1 << 63, 0]), 0),
    "width beyond int32": (scores([0, BIG]), 0),
    "a sparse row beyond int32": (scores([1, 1 << 31], 4 << 31), 4 << 31),
    "32 GiB of lengths": (scores([1 << 33, 0]), 0),
    "8 GiB of lengths": (scores([(1 << 31) - 1, 0]), 0),
    "many queries of nothing": (factors([1 << 30, 0, 8], [4, 8], [1 << 30, 0]), 128),
    "many keys of nothing": (factors([1, 2, 0], [(1 << 31) - 1, 0], [1, 2]), 8),
    "many heads": (factors([0, BIG, 0], [4, 0], [0, BIG]), 0),
    "many dimensions": (factors([0, 0, BIG], [0, BIG], [0, 0]), 0),
    "many digits": (scores([0, 4], __metadata__={"ksieve_capture": "1", "topk": "9" * 5000}), 0),
    "digits of another script": (scores([0, 4], __metadata__={"ksieve_capture": "1", "topk": "٣"}), 0),
    "an overlap": ({**scores([1, 4], 16), "x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, 16),
    "a range too short": (scores([2, 4], 16), 16),
    "a gap": ({**scores([1, 4], 16), "x": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, 24),
    "an 8-bit float": (scores([1, 4], 4, "F8_E4M3"), 4),
    "another 8-bit float": (scores([1, 4], 4, "F8_E5M2"), 4),
    "text for a shape": ({"scores": {"dtype": "F32", "shape": "12", "data_offsets": [0, 8]}}, 8),
    "metadata that is a list": (scores([0, 4], __metadata__=["ksieve_capture"]), 0),
    "metadata of numbers": (scores([0, 4], __metadata__={"topk": 3}), 0),
    "no header": ([], 0),
    "deep JSON": (b"[" * 100_000, 0),
    "deep metadata": (b'{"__metadata__":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, 0),
    "a lone surrogate": (b'{"__metadata__":{"a":"\\ud800"}}', 0),
    "a tensor named twice": (
        b'{"scores":{"dtype":"F32","shape":[1,4],"data_offsets":[0,16]},'
        b'"scores":{"dtype":"F32","shape":[1,1073741824],"data_offsets":[0,4294967296]}}',
        16,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_capture_is_a_typed_error(tmp_path, name):
    header, size = HOSTILE[name]
    path = write(tmp_path / "a.safetensors", header, size=size)
    with pytest.raises(FileFormatError) as caught, open_capture(path) as found:
        found.describe()
        stream.select(found, 2, lambda begin, indices: None)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and len(message) < len(str(path)) + 400


def test_a_small_capture_of_many_empty_rows_is_read(tmp_path):
    path = write(tmp_path / "a.safetensors", scores([1000, 0]))
    with open_capture(path) as found:
        assert found.lengths.tolist() == [0] * 1000
        stream.select(found, 2, lambda begin, indices: np.testing.assert_array_equal(indices, -1))
