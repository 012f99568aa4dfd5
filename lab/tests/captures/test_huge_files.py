"""Small files that stand for huge arrays: their size is known before a byte is written, and memory is bounded."""

import contextlib
import json
import tracemalloc
import zipfile

import numpy as np
import pytest

from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve_lab.captures import Capture, CaptureWriter, import_scores

MOST = 64 << 20
"""Bytes that anything here may allocate."""


@pytest.fixture(autouse=True)
def bounded():
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401, whose import is not what is measured
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST


def save_expanded(path, shape, **more):
    torch = pytest.importorskip("torch")
    torch.save({"scores": torch.zeros(1).expand(shape)} | more, path)
    assert path.stat().st_size < 4096


@pytest.mark.parametrize("flatten", [False, True])
def test_an_import_that_the_disk_cannot_hold_writes_nothing(tmp_path, flatten):
    save_expanded(tmp_path / "a.pt", (1 << 10, 1 << 15, 1 << 25) if flatten else (1 << 25, 1 << 25))
    with pytest.raises(ArgumentError, match=r"for 4\.5 PB; takes a disk with as much room"):
        import_scores(tmp_path / "a.pt", tmp_path / "a.safetensors", flatten=flatten)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_an_archive_whose_directory_promises_more_than_it_has_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (33554432, 33554432), }".ljust(117) + "\n"
        archive.writestr("scores.npy", b"\x93NUMPY\x01\x00\x76\x00" + header.encode())
        archive.filelist[0].file_size = 1 << 60
    with pytest.raises(FileFormatError, match=r"a\.npz: array 'scores' takes .* of the disk of temporary files"):
        import_scores(tmp_path / "a.npz", tmp_path / "a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_lengths_are_not_expanded(tmp_path):
    torch = pytest.importorskip("torch")
    lengths = torch.full((1,), 3).expand(1 << 31 - 1)
    save_expanded(tmp_path / "a.pt", (4, 8), lengths=lengths)
    with pytest.raises(ArgumentError, match=r"^lengths in .*a\.pt: got dtype int64, shape .*integers of shape \(4,\)"):
        import_scores(tmp_path / "a.pt", tmp_path / "a.safetensors")
    save_expanded(tmp_path / "b.pt", (4, 8), lengths=torch.full((1,), 3).expand(4))
    import_scores(tmp_path / "b.pt", tmp_path / "b.safetensors")
    with Capture(tmp_path / "b.safetensors") as capture:
        assert capture.lengths.tolist() == [3] * 4


def sparse(path, rows):
    """A capture without lengths, of one float16 score a row and nearly no block on disk."""
    header = json.dumps({"scores": {"dtype": "F16", "shape": [rows, 1], "data_offsets": [0, 2 * rows]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * rows)
    return path


def test_lengths_that_nobody_gave_take_no_memory(tmp_path):
    from ksieve.files.scores import JoinedColumns
    from ksieve_lab.cli.captures import facts_of
    from ksieve_lab.study.rows import eligible_rows

    rows = 1_000_000_000
    path = sparse(tmp_path / "a.safetensors", rows)
    with Capture(path) as capture, Capture(path) as other:
        assert capture.lengths.shape == (rows,) and capture.lengths.dtype == np.int32
        assert capture.describe()["lengths"] == "1 to 1, 1,000,000,000 valid scores"
        assert facts_of(capture)["lengths"] == {"least": 1, "most": 1, "sum": rows}
        assert capture.lengths[rows - 1] == 1
        joined = JoinedColumns([capture, other])
        assert joined.lengths[-1] == 2
        first, scores, valid = next(joined.tiles(rows - 3, rows, 4))
        assert (first, scores.shape, valid.tolist()) == (0, (3, 1), [1, 1, 1])
        with pytest.raises(ArgumentError, match="whose longest row has 1 scores"):
            eligible_rows(capture, 1)


def test_a_tall_capture_is_written_without_its_lengths_in_memory(tmp_path):
    rows = 30_000_000  # 120 MB of lengths
    with CaptureWriter(tmp_path / "a.safetensors", rows, 0) as writer:
        for _ in range(30):
            writer.write(np.zeros((rows // 30, 0), np.float32))
    assert (tmp_path / "a.safetensors").stat().st_size > 4 * rows
