"""Every file that the grammar of safetensors allows is a FileFormatError or an answer, whoever reads it."""

import json
import math

import numpy as np
import pytest

from ksieve import verify
from ksieve.cli.app import app
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.files import load_array, stream
from ksieve_lab.captures import Capture, import_scores

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "C64": 64, "F64": 64, "U64": 64,
    "I64": 64, "f32": 32, "F128": 128, "": 8,
}  # fmt: skip
"""Bits of an element of the format's dtypes, and of some that it has not."""

SHAPES = [
    [], [0], [4], [0, 0], [0, 4], [4, 0], [2, 4], [2, 2, 4], [1, 1, 1, 4], [0, 1, 4], [2, 0, 4], [1 << 31, 0],
    [(1 << 31) - 1, 0, (1 << 31) - 1], [0, 1 << 62], [1 << 63, 0], [1 << 32, 1 << 32], [(1 << 64) - 1, 1], [1 << 63, 2],
]  # fmt: skip


def write(path, tensors, cut=0):
    """Write tensors of (dtype, shape), all zeros; sizes that no file has are those of 64 bytes."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        end = at + (size if size < 1 << 20 else 64)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(max(at - cut, 0)))
    return path


def reads(path, name):
    """Every way to read a file, and the errors that each may raise."""

    def selected():
        with Capture(path) as capture:
            capture.describe()
            stream.select(capture, 2, lambda begin, indices: None, backend="reference")

    def verified():
        with Capture(path) as capture:
            assert verify(capture, None, np.tile(np.arange(2), (capture.rows, 1)), sentinel=1 << 40) is not None

    return {
        selected: FileFormatError,
        verified: FileFormatError,
        lambda: load_array(path, name, prefer=name): FileFormatError,
        lambda: import_scores(path, path.with_name("made.safetensors"), name=name, dtype="float32", flatten=True): (
            FileFormatError,
            ArgumentError,  # a stack or lengths that do not fit each other
        ),
    }


PARTS = {
    "scores": {},
    "lengths": {"scores": ("F32", [2, 4])},
    "q": {"k": ("F32", [4, 4]), "w": ("F32", [2, 1])},
    "k": {"q": ("F32", [2, 1, 4]), "w": ("F32", [2, 1])},
    "w": {"q": ("F32", [2, 1, 4]), "k": ("F32", [4, 4])},
    "k_scale": {"q": ("F32", [2, 1, 4]), "k": ("F32", [4, 4]), "w": ("F32", [2, 1])},
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("dtype", BITS)
def test_every_shape_and_dtype_is_an_error_of_the_format_or_an_answer(tmp_path, name, dtype):
    answers = 0
    for shape in SHAPES:
        path = write(tmp_path / "a.safetensors", PARTS[name] | {name: (dtype, shape)})
        for read, refused in reads(path, name).items():
            try:
                read()
                answers += 1
            except refused as error:
                assert len(str(error)) < len(str(path)) + 500
    assert answers or dtype not in ("F32", "F16", "BF16")


BIG = 1 << 62
FACTORS = {
    "many queries of nothing": ([1 << 30, 0, 8], [4, 8], [1 << 30, 0]),
    "many keys of nothing": ([1, 2, 0], [(1 << 31) - 1, 0], [1, 2]),
    "many heads": ([0, BIG, 0], [4, 0], [0, BIG]),
    "many dimensions": ([0, 0, BIG], [0, BIG], [0, 0]),
}


@pytest.mark.parametrize("shapes", FACTORS.values(), ids=FACTORS)
def test_factors_of_nothing_are_no_capture(tmp_path, shapes):
    path = write(tmp_path / "a.safetensors", {name: ("F32", shape) for name, shape in zip("qkw", shapes, strict=True)})
    with pytest.raises(FileFormatError) as caught, Capture(path) as found:
        found.describe()
        stream.select(found, 2, lambda begin, indices: None)
    assert str(caught.value).startswith(f"{path}: ") and len(str(caught.value)) < len(str(path)) + 400


@pytest.mark.parametrize("shape", [[], [4], [0, 1 << 62]])
@pytest.mark.parametrize("words", [("info",), ("select", "--k", "2"), ("verify", "i.npy")])
def test_the_command_line_names_the_file(tmp_path, monkeypatch, shape, words):
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    np.save("i.npy", np.zeros((2, 2), np.int32))
    write(tmp_path / "a.safetensors", {"scores": ("F32", shape)})
    done = CliRunner().invoke(app, [words[0], "a.safetensors", *words[1:]])
    assert isinstance(done.exception, FileFormatError) and str(done.exception).startswith("a.safetensors: ")
