"""The runner of the frameworks' tests, on a framework's test file that is written here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from frameworks import catalog, sources

pytest.importorskip("torch")

FILE = "tests/topk_varlen/test_topk_varlen.py"
TESTS = """
import flashinfer
import pytest
import torch

def test_selects():
    x = torch.tensor([[1.0, 3.0, 2.0]], device="cuda")
    values, indices = flashinfer.top_k(x, 2, sorted=True)
    assert x.device == torch.zeros(1, device=torch.device("cuda:0")).cuda().device
    assert (values.tolist(), indices.tolist()) == ([[3.0, 2.0]], [[1, 2]])
    torch.set_default_device("cuda")

def test_no_device_is_left_behind():
    assert torch.get_default_device() == torch.device("cpu")

def test_wrong():
    assert flashinfer.top_k(torch.zeros(1, 3, device="cuda"), 2)[0].sum() == 7

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

def test_error(broken):
    pass

def test_graph():
    torch.cuda.CUDAGraph()

def test_input_validation():
    assert False
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run on the CPU: the folder of its results, and the process."""
    out = tmp_path_factory.mktemp("frameworks")
    file = out / "sources" / "flashinfer" / FILE
    file.parent.mkdir(parents=True)
    file.write_text(TESTS)
    other = out / "sources" / "flashinfer" / "tests/utils/test_topk.py"
    other.parent.mkdir(parents=True)
    other.write_text("import os\n\ndef test_dies():\n    os._exit(3)\n")
    digests = dict.fromkeys(catalog.FRAMEWORKS["flashinfer"]["tests"], "0")
    source = {"origin": "a local copy", "version": "1.2", "sha256": digests}
    (out / "sources" / "flashinfer" / "source.json").write_text(json.dumps(source))
    root = Path(__file__).parents[3]
    command = [
        root / "scripts/framework_tests.sh",
        "run",
        "flashinfer",
        "--device",
        "cpu",
        "--sources",
        out / "sources",
    ]
    environment = os.environ | {"PYTHON": sys.executable}
    process = subprocess.run(
        [*command, "--out", out / "out"], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    return json.loads((out / "out" / "framework-tests.json").read_text()), process


def test_what_became_of_every_test(ran):
    payload, process = ran
    found = next(each for each in payload["results"]["files"] if each["file"] == FILE)
    assert [found[name] for name in ("passed", "failed", "skipped", "not_applicable")] == [2, 2, 1, 1]
    assert found["calls"]["flashinfer.top_k"] == 2
    assert set(found["failures"]) == {"test_wrong", "test_error"} and "no fixture" in found["failures"]["test_error"]
    assert found["skips"] == {"test_graph": "CUDA graphs need a CUDA device"}
    assert list(found["not_run"]) == ["test_input_validation"]
    assert process.returncode == 1
    assert (found["version"], found["sha256"]) == ("1.2", "0")
    assert re.search(rf"flashinfer +1\.2 +{FILE} +2 +2 +1 +1 ", process.stdout)


def test_a_process_that_dies_is_a_failure(ran):
    payload, process = ran
    died = payload["results"]["files"][0]
    assert (died["failed"], died["exit"]) == (1, 3)
    assert "the process ended with 3" in process.stdout
    assert "NOT FINISHED flashinfer tests/utils/test_topk.py: pytest ended with 3" in process.stdout


def test_the_catalog():
    for rule in catalog.NOT_RUN:
        assert len(rule["why"]) > 10, rule
        re.compile(rule.get("tests", ""))
        listed = catalog.FRAMEWORKS.get(rule["framework"], {}).get("tests", [])
        assert (rule["file"] in listed) == ("tests" in rule), "single tests of files that are run, or whole other files"


@pytest.mark.parametrize("kind", ["archive", "git"])
def test_fetch_from_this_machine(kind, tmp_path):
    tree = tmp_path / "tree-1.2"
    files = catalog.FRAMEWORKS["vllm"]["tests"] + catalog.FRAMEWORKS["vllm"]["files"]
    for file in files:
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(f"# {file}\n")
    if kind == "archive":
        given = tmp_path / "tree.tar.gz"
        with tarfile.open(given, "w:gz") as tar:
            tar.add(tree, tree.name)
    else:
        given = tree
        git = ["git", "-C", str(tree), "-c", "user.name=x", "-c", "user.email=x@example.org"]
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"], ["tag", "1.2"]):
            subprocess.run([*git, *command], check=True)
        (tree / files[0]).write_text("changed since\n")
    sources.fetch("vllm", tmp_path / "out", f"{given}@1.2")
    for file in files:
        assert (tmp_path / "out" / "vllm" / file).read_text() == f"# {file}\n"
    source = json.loads((tmp_path / "out" / "vllm" / "source.json").read_text())
    assert source["version"] == "1.2" and set(source["sha256"]) == set(files)
    assert str(tmp_path) not in json.dumps(source)
    assert ("commit" in source) == (kind == "git")


def test_pip_gets_its_answer_without_code_of_the_distribution(tmp_path):
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: some-kernels\nVersion: 1.2\n\nText\n")
    code = f"{sources.BACKEND}\nprint(prepare_metadata_for_build_wheel('made'))"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout == "some_kernels-1.2.dist-info\n"
    assert "Name: some-kernels" in (tmp_path / "made/some_kernels-1.2.dist-info/METADATA").read_text()
