"""Paths that no file can have, for every function that takes one: an error of the library, and no file left."""

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import ksieve
import ksieve_lab
from flat_calls import ask
from ksieve import KsieveError
from ksieve.core import atomic
from ksieve.core.device import DEVICES
from ksieve.core.policy import LINES_64, SamplingPolicy
from ksieve.files import load_array
from ksieve.planning import tuned
from ksieve_lab.bench import record
from ksieve_lab.captures import Capture, CaptureWriter, import_scores, write_factors
from ksieve_lab.traces import replay
from ksieve_lab.workloads.producers import write_synthetic


def save_capture(path):
    with CaptureWriter(path, 1, 2) as writer:
        writer.write(np.zeros((1, 2), np.float32))


def save_factors(path):
    write_factors(
        path, q=np.zeros((2, 1, 2), "f4"), keys=np.zeros((4, 2), "f4"), weights=np.zeros((2, 1), "f4")
    )  # fmt: skip


def record_calls(path):
    with ksieve_lab.record(path):
        ask(np.zeros((2, 8), np.float32), k=2, backend="reference")


READERS = {
    "Capture": (Capture, ".safetensors"),
    "load_array": (lambda path: load_array(path, prefer="x"), ".npy"),
    "load_array of an archive": (lambda path: load_array(path, prefer="x"), ".npz"),
    "load_array of torch": (lambda path: load_array(path, prefer="x"), ".pt"),
    "import_scores": (lambda path: import_scores(path, "made.safetensors"), ".npy"),
    "import_scores lengths": (lambda path: import_scores("m.npy", "made.safetensors", lengths=path), ".npy"),
    "SamplingPolicy.load": (SamplingPolicy.load, ".json"),
    "plan policy": (lambda path: ksieve.plan(rows=4, width=1 << 17, k=8, policy=path), ".json"),
    "tuned": (lambda path: tuned.read(Path(path), DEVICES["h200"]), ".json"),
    "a trace": (replay.load, ".json"),
    "a recording": (replay.load, ".safetensors"),
    "a result": (record.read_json, ".json"),
}
WRITERS = {
    "CaptureWriter": (save_capture, ".safetensors"),
    "write_factors": (save_factors, ".safetensors"),
    "import_scores": (lambda path: import_scores("m.npy", path), ".safetensors"),
    "record": (record_calls, ".safetensors"),
    "write_synthetic": (lambda path: write_synthetic(path, "random_normal", 2, 8, k=2), ".safetensors"),
    "SamplingPolicy.save": (LINES_64.save, ".json"),
    "a trace": (replay.EXAMPLE.save, ".json"),
    "a result": (lambda path: record.write_json(path, record.payload("x", {}, {})), ".json"),
    "write_text": (lambda path: atomic.write_text(path, "x"), ".txt"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("m.npy", np.zeros((4, 8), np.float32))
    (tmp_path / "file").touch()
    for suffix in (".safetensors", ".npy", ".npz", ".pt", ".json", ".txt"):
        (tmp_path / f"folder{suffix}").mkdir()
        os.mkfifo(tmp_path / f"pipe{suffix}")
        (tmp_path / f"loop{suffix}").symlink_to(f"loop{suffix}")
        (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    return tmp_path


PATHS = {
    "300 characters": "x" * 300 + "{}",
    "a folder of 300 characters": "x" * 300 + "/a{}",
    "8,000 characters": "/".join(["y" * 200] * 40) + "{}",
    "a NUL": "a\0b{}",
    "a folder": "folder{}",
    "a loop": "loop{}",
    "in a file": "file/a{}",
    "nothing": "",
}
READ_ONLY = {"a pipe": "pipe{}", "a device": "zero{}", "absent": "absent{}", "in no folder": "none/a{}"}


@pytest.mark.parametrize("path", [*PATHS, *READ_ONLY])
@pytest.mark.parametrize("name", READERS)
def test_a_path_that_cannot_be_read(place, name, path):
    read, suffix = READERS[name]
    with pytest.raises(KsieveError) as caught:
        read((PATHS | READ_ONLY)[path].format(suffix))
    assert isinstance(caught.value, ValueError)
    assert not Path("made.safetensors").exists()


@pytest.mark.parametrize("path", [*PATHS, "in no folder"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_path_that_cannot_be_written(place, name, path):
    write, suffix = WRITERS[name]
    if name == "a result" and path == "in no folder":
        pytest.skip("makes its folders")
    before = sorted(place.iterdir())
    with pytest.raises(KsieveError) as caught:
        write(f"{place}/{(PATHS | READ_ONLY)[path].format(suffix)}")
    assert isinstance(caught.value, ValueError)
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize("bad", [3, b"a.json", None, object()])
@pytest.mark.parametrize(("name", "of"), [*((n, READERS) for n in READERS), *((n, WRITERS) for n in WRITERS)])
def test_what_is_no_path(place, name, of, bad):
    if (bad is None and name in ("import_scores lengths", "plan policy")) or name == "tuned":
        pytest.skip("takes None, or a Path alone")
    with pytest.raises(KsieveError):
        of[name][0](bad)


@pytest.mark.parametrize("name", [n for n, (_, suffix) in READERS.items() if suffix != ".pt"])
def test_a_file_that_may_not_be_read(place, monkeypatch, name):
    """Root may read any file, so the system's answer is replaced."""
    read, suffix = READERS[name]
    (place / f"closed{suffix}").write_bytes(b"{}")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path) and real(path, mode))
    with pytest.raises(KsieveError, match="Permission denied"):
        read(f"closed{suffix}")


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EMFILE])
def test_a_folder_that_may_not_be_written(place, monkeypatch, name, number):
    write, suffix = WRITERS[name]
    before, real = sorted(place.iterdir()), os.open

    def refuse(path, flags, *more, **options):
        if flags & os.O_CREAT and str(path).endswith(".part"):
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(KsieveError, match=rf"^path: got '.*{suffix}' \({os.strerror(number)}\); takes the path of a"):
        write(str(place / f"new{suffix}"))
    assert sorted(place.iterdir()) == before


def test_a_target_that_may_not_be_written(place, monkeypatch):
    target, real = place / "old.json", os.open
    target.write_text("old")

    def refuse(path, flags, *more, **options):
        if flags & os.O_WRONLY and Path(path) == target:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(KsieveError, match="Permission denied"):
        LINES_64.save(target)
    assert target.read_text() == "old" and stat.S_ISREG(target.stat().st_mode)


@pytest.mark.parametrize("variable", ["KSIEVE_TUNED", "KSIEVE_CACHE_DIR"])
def test_variables_that_name_no_file_are_words_and_no_traceback(variable, monkeypatch, capsys):
    from ksieve.cli.app import main

    for value in ("x" * 300, "/dev/zero", "/dev/null/a"):
        monkeypatch.setenv(variable, value)
        for words in (["plan", "--rows", "4", "--width", "128k", "--k", "8", "--device", "h200"], ["cache"]):
            monkeypatch.setattr("sys.argv", ["ksieve", *words])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code in (0, 2), (value, words, capsys.readouterr())
