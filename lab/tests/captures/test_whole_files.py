"""Every file that ksieve writes appears whole under its name, or not at all."""

import errno
import os
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from disk import file_sizes
from ksieve.core import atomic
from ksieve.core.errors import ArgumentError
from ksieve_lab.bench import record
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.writer import CaptureWriter, write_factors
from ksieve_lab.report import figures


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_result(path: Path) -> None:
    record.write_json(path, record.payload("x", {}, ["y" * 100_000]))


def save_capture(path: Path) -> None:
    with CaptureWriter(path, 64, 1024) as writer:
        writer.write(np.ones((64, 1024), np.float32))


def save_factors(path: Path) -> None:
    write_factors(path, q=np.ones((8, 2, 64), "f4"), keys=np.ones((1024, 64), "f4"), weights=np.ones((8, 2), "f4"))


WRITERS = {
    "result.json": save_result,
    "scores.safetensors": save_capture,
    "factors.safetensors": save_factors,
}
writers = pytest.mark.parametrize("name", WRITERS)


@writers
def test_a_full_disk_leaves_the_old_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("what was there")
    with file_sizes() as limit, pytest.raises(OSError) as caught:
        limit(64)
        WRITERS[name](path)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(path)
    assert path.read_text() == "what was there"
    assert names(tmp_path) == [name]


def test_an_interrupt_while_the_file_is_closed_leaves_no_draft(tmp_path):
    class File:
        def close(self):
            raise KeyboardInterrupt

    draft = atomic.Draft(tmp_path / "x")
    draft.file = File()
    with pytest.raises(KeyboardInterrupt):
        draft.discard()
    assert names(tmp_path) == []


def test_a_capture_whose_last_bytes_do_not_fit_leaves_nothing(tmp_path):
    writer = CaptureWriter(tmp_path / "s.safetensors", 1, 4)
    writer.write(np.ones((1, 4), np.float32))
    with file_sizes() as limit, pytest.raises(OSError):
        limit(64)
        writer.close()
    assert names(tmp_path) == []


@writers
def test_a_file_is_refused_before_its_first_byte_if_the_disk_has_no_room(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_text("what was there")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, (1 << 40) - 99, 99))
    with pytest.raises(ArgumentError, match=r"^path: got .*; takes a disk with as much room: this one has 99 bytes$"):
        WRITERS[name](path)
    assert path.read_text() == "what was there" and names(tmp_path) == [name]
    # Some network file systems say that they have nothing at all.
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))
    WRITERS[name](path)
    assert path.read_bytes() != b"what was there"


def test_a_full_disk_leaves_the_old_figures(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("f.png", "f.svg"):
        (tmp_path / name).write_text("what was there")
    figure = figures.render(figures.Figure(kind="line", marks=[figures.Mark("", "a", 1, 2.0)]))
    with file_sizes() as limit, pytest.raises(OSError, match=r"f\.png"):
        limit(64)
        figures.save(figure, tmp_path / "f")
    assert [(tmp_path / name).read_text() for name in names(tmp_path)] == ["what was there"] * 2


@writers
def test_modes_and_links_stay(tmp_path, name):
    path, link = tmp_path / name, tmp_path / f"link-{name}"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(name)
    WRITERS[name](link)
    assert link.is_symlink() and path.read_bytes() != b"old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(names(tmp_path)) == sorted([name, link.name])


@writers
def test_a_new_file_has_the_mode_of_the_umask(tmp_path, name):
    before = os.umask(0o027)
    try:
        WRITERS[name](tmp_path / name)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640


def test_two_writers_of_one_path_publish_their_own(tmp_path):
    path = tmp_path / "s.safetensors"
    one = CaptureWriter(path, 1, 4, metadata={"who": "one"})
    two = CaptureWriter(path, 1, 4, metadata={"who": "two"})
    one.write(np.full((1, 4), 1, np.float32))
    two.write(np.full((1, 4), 2, np.float32))
    for writer, who, value in ((one, "one", 1), (two, "two", 2)):
        writer.close()
        with Capture(path) as found:
            assert found.metadata["who"] == who
            assert (found.rows_block(0, 1) == value).all()
    assert names(tmp_path) == [path.name]


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path):
    writer = CaptureWriter(tmp_path / "s.safetensors", 1, 4)
    assert len(names(tmp_path)) == 1
    del writer
    assert names(tmp_path) == []


def test_a_capture_needs_a_file_that_can_be_sought(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    kept = os.open(tmp_path / "pipe.safetensors", os.O_RDWR)
    with pytest.raises(ArgumentError, match="a pipe or device"):
        save_capture(tmp_path / "pipe.safetensors")
    os.close(kept)
