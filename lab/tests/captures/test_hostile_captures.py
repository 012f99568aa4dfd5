"""Captures made to break their reader: each is a typed error that names the file, or an exact result."""

import json
from pathlib import Path

import numpy as np
import pytest

from ksieve.core.errors import FileFormatError
from ksieve.files import stream
from ksieve_lab.captures.format import open_capture

BIG = 1 << 62


def write(path: Path, header: dict, size: int = 0) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return path


def tensors(header: dict) -> list[dict]:
    return [facts for name, facts in header.items() if name != "__metadata__"]


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
    "32 GiB of lengths": scores([1 << 33, 0]),
    "8 GiB of lengths": scores([(1 << 31) - 1, 0]),
    "many queries of nothing": factors([1 << 30, 0, 8], [4, 8], [1 << 30, 0]),
    "many keys of nothing": factors([1, 2, 0], [(1 << 31) - 1, 0], [1, 2]),
    "many heads": factors([0, BIG, 0], [4, 0], [0, BIG]),
    "many dimensions": factors([0, 0, BIG], [0, BIG], [0, 0]),
    "digits of another script": scores([0, 4], __metadata__={"ksieve_capture": "1", "topk": "٣"}),
    "a range too short": scores([2, 4], 16),
    "an 8-bit float": scores([1, 4], 4, "F8_E4M3"),
}
"""Headers; tests/unit/files/test_scores.py has those of every file that is mapped."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_capture_is_a_typed_error(tmp_path, name):
    header = HOSTILE[name]
    path = write(tmp_path / "a.safetensors", header, max(each["data_offsets"][1] for each in tensors(header)))
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
