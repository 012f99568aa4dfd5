"""No command replaces a file that it reads, by whatever name, nor writes two outputs to one file."""

import os
from pathlib import Path

import numpy as np
import pytest

from ksieve.core.errors import ArgumentError
from ksieve_lab.captures.importers import import_scores
from ksieve_lab.workloads.producers import write_synthetic


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_synthetic(tmp_path / "s.safetensors", "random_normal", 4, 300, k=8)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.safetensors").symlink_to("s.safetensors")
    os.link(tmp_path / "s.safetensors", tmp_path / "hard.safetensors")
    # Captures need no suffix of their own, so a result file can be one.
    (tmp_path / "s.json").symlink_to("s.safetensors")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "report.html").symlink_to("../s.safetensors")
    np.save(tmp_path / "lengths.npy", np.array([3, 4, 5, 6]))
    (tmp_path / "lengths.safetensors").symlink_to("lengths.npy")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "select s.safetensors --out s.safetensors",
        "select s.safetensors --out ./sub/../s.safetensors",
        "select s.safetensors --out link.safetensors",
        "select link.safetensors --out s.safetensors",
        "select s.safetensors --out hard.safetensors",
        "select s.safetensors --out i.npy --stats-out i.npy",
        "select s.safetensors --out i.npy --stats-out ./sub/../i.npy",
        "import s.safetensors link.safetensors",
        "import s.safetensors out.safetensors --lengths out.safetensors",
        "calibrate s.safetensors --out s.json",
        "study s.safetensors",
        "replay s.safetensors --save s.json",
        "replay --example --save r.json --out r.json",
        "bench cpu --scores s.safetensors --out s.json",
    ],
)
def test_an_output_that_is_an_input_is_refused(folder, command, capsys, monkeypatch):
    from ksieve_lab.cli.app import main

    before = (folder / "s.safetensors").read_bytes()
    listed = sorted(folder.rglob("*"))
    monkeypatch.setattr("sys.argv", ["ksieve", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2 and "takes another file than" in said
    assert (folder / "s.safetensors").read_bytes() == before
    assert sorted(folder.rglob("*")) == listed


def test_the_library_refuses_them_too(folder):
    for source, target, lengths in (
        ("lengths.npy", "lengths.safetensors", None),
        ("s.safetensors", "hard.safetensors", None),
        ("s.safetensors", "lengths.safetensors", "lengths.npy"),
    ):
        with pytest.raises(ArgumentError, match=r"^target: got .*another file"):
            import_scores(folder / source, folder / target, lengths=lengths)
