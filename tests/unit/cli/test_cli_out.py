"""One rule for output files: a folder gets a file named by the command, anything else is the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ksieve
from ksieve.cli import files
from ksieve.core.errors import ArgumentError
from ksieve_lab.captures.writer import CaptureWriter

ENV = {**os.environ, "PYTHONPATH": str(Path(ksieve.__file__).parents[1])}


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_rule(there):
    (there / "folder").mkdir()
    for path in ("folder", "folder/", "./folder", str(there / "folder"), Path("folder")):
        assert files.target("--out", path, "name.json", (".json",)).resolve() == there / "folder" / "name.json"
    assert files.target("--out", "new/deep/", "name.json", (".json",)) == Path("new/deep/name.json")
    assert (there / "new" / "deep").is_dir()
    assert files.target("--out", "x.json", "name.json", (".json",)) == Path("x.json")
    assert files.target("--out", "folder", "../a b/\x1b[31m.json", (".json",)) == Path("folder/..-a-b-31m.json")
    assert files.optional_target("--out", None, "name.json", (".json",)) is None
    for path, message in (("x.txt", "a file name ending in .json"), ("none/x.json", "a folder that exists")):
        with pytest.raises(ArgumentError, match=message):
            files.target("--out", path, "name.json", (".json",))
    (there / "file").touch()
    with pytest.raises(ArgumentError, match=r"^--out: got file/ \(File exists\); takes a folder"):
        files.target("--out", "file/", "name.json", (".json",))


def unwritable(monkeypatch, *paths):
    """Let some paths look read-only, as they do to any user but root."""
    closed, real = {os.path.realpath(path) for path in paths}, os.access

    def access(path, mode):
        return not (mode & os.W_OK and os.path.realpath(path) in closed) and real(path, mode)

    monkeypatch.setattr(os, "access", access)


def test_an_output_that_cannot_be_written_is_refused(there, monkeypatch, run):
    for folder in ("ro", "rw"):
        (there / folder).mkdir()
    (there / "rw" / "kept.json").write_text("{}")
    (there / "link.json").symlink_to(there / "ro" / "x.json")
    unwritable(monkeypatch, there / "ro", there / "rw" / "kept.json")
    for path in ("ro", "ro/x.json", "link.json"):
        with pytest.raises(ArgumentError, match=r"^--out: got .*ro, which may not be written; takes a folder that can"):
            files.target("--out", path, "name.json", (".json",))
    with pytest.raises(ArgumentError, match=r"got rw/kept\.json, which may not be written; takes a file that can be"):
        files.target("--out", "rw/kept.json", "name.json", (".json",))
    assert files.target("--out", "rw/new.json", "name.json", (".json",)) == Path("rw/new.json")
    assert files.target("--out", "/dev/stdout", "name.json", (".json",)) == Path("/dev/stdout")
    files.check_folder("--figures", None)
    files.check_folder("--figures", Path("rw/a/b"))
    with pytest.raises(ArgumentError, match=rf"got ro/a/b, and {there}/ro may not be written"):
        files.check_folder("--figures", Path("ro/a/b"))
    with pytest.raises(ArgumentError, match=r"takes a folder: .*kept\.json is none"):
        files.check_folder("--figures", Path("rw/kept.json"))
    assert run("tune", "--out", "ro/t.json").err.startswith("error: --out: got "), "before any work"


@pytest.mark.extended
def test_every_command_follows_the_rule(there, run):
    scores = np.random.default_rng(5).standard_normal((40, 4000), dtype=np.float32)
    with CaptureWriter("s.safetensors", 40, 4000, k=8) as writer:
        writer.write(scores, np.full(40, 4000, np.int32))
    np.save("m.npy", scores)
    commands = [
        (("select", "s.safetensors", "--out", "a/"), "a/s-indices.npy"),
        (("select", "s.safetensors", "--stats-out", "b/"), "b/s-stats.csv"),
        (("synth", "random_normal", "c/", "--rows", "2", "--width", "1k"), "c/random_normal-2x1024.safetensors"),
        (("import", "m.npy", "d/"), "d/m.safetensors"),
        (("calibrate", "s.safetensors", "--out", "e/"), "e/policy.json"),
        (("replay", "--example", "--rounds", "1", "--backend", "cpu", "--save", "g/", "--out", "h/"), "g/example.json"),
        (("bench", "cpu", "--shapes", "2x4k", "--k", "8", "--rounds", "1", "--only", "compared",
          "--scores", "random_normal", "--out", "i/"), ""),
    ]  # fmt: skip
    for words, path in commands:
        assert run(*words).code == 0, words
        assert Path(path).exists(), path
    assert [p.suffix for folder in ("h", "i") for p in Path(folder).iterdir()] == [".json", ".json"]


@pytest.mark.extended
def test_completion():
    def complete(line):
        env = ENV | {"_KSIEVE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run([sys.executable, "-m", "ksieve"], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    assert complete("ksieve ver") == ["verify"]
    assert set(complete("ksieve plan --device h")) == {"h20", "h100", "h200"}
    assert "direct" in complete("ksieve select --policy d")
    assert complete("ksieve synth relu") == ["relu_plateau"]
    assert complete("ksieve plan --dtype b") == ["bfloat16"]
