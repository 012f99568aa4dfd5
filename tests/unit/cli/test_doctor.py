"""``ksieve doctor``: what it finds, what it advises, and that nothing a machine lacks makes it fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, cuda_devices
from typer.testing import CliRunner

from cuda_fakes import fake_backend
from ksieve import dispatch, doctor, self_test
from ksieve.backends.cuda.jit.bundle import write as write_bundle
from ksieve.backends.cuda.jit.compile import Cubin, shipped_sources
from ksieve.backends.cuda.jit.spec import KernelSpec
from ksieve.cli import doctor as command
from ksieve.core.device import DEVICES
from ksieve.core.errors import BackendError
from ksieve.core.installation import install_command
from ksieve.core.selection import Selection
from ksieve.doctor import Cache, Driver, Gpu, Made, Report
from ksieve.model import reference
from ksieve.planning import tuned
from ksieve.self_test import SelfTest
from ksieve_lab.cli.app import app

H200 = Gpu("NVIDIA H200", (9, 0), 140 << 30)
GOOD, ABSENT = (SelfTest("x", ran, ran, 10 * ran, 0.5, None if ran else "it is missing") for ran in (True, False))
WRONG = replace(GOOD, exact=False, problem="row 3: a better score was left out")
CACHE = Cache("/cache", True, True, 4, 1 << 20)


def report(*, cpu=GOOD, cuda=GOOD, cache=CACHE, **changes):
    """A machine with an H200 on which all is well, but for the changes."""
    packages = dict.fromkeys(doctor.PACKAGES, "13.1") | changes.pop("packages", {})
    whole = Report(
        ksieve="1.0", python="3.12", platform="Linux", threads=8, packages=packages, torch_cuda="13.0", nvrtc="13.0",
        driver=Driver("580.1", "13.0", (H200,), None), visible=None, caches={"cpu": CACHE, "cuda": cache},
        tests=(replace(cpu, backend="cpu"), replace(cuda, backend="cuda"), replace(GOOD, backend="reference")),
    )  # fmt: skip
    return replace(whole, **changes)


NO_GPU = Driver(None, None, (), None)
OLD = Gpu("Tesla T4", (7, 5), 16 << 30)
BUNDLE = Made("/opt/kernels.zip", "42 compiled (2 for sm_80, 40 for sm_90a) with nvrtc 13.0")
BAD_BUNDLE = Made("/opt/kernels.zip", problem="KSIEVE_BUNDLE: /opt/kernels.zip is damaged: unset KSIEVE_BUNDLE")


@pytest.mark.parametrize(
    "found",
    [
        report(),
        report(cuda=ABSENT, driver=NO_GPU, packages={"cuda-core": None, "torch": None}, nvrtc=None, torch_cuda=None),
        report(cuda=ABSENT, driver=Driver("580.1", "13.0", (OLD,), None)),
        report(cuda=ABSENT, driver=NO_GPU, cache=replace(CACHE, writable=False)),
        report(packages={"torch": None, "cupy": None}, torch_cuda=None),
        report(bundle=BUNDLE, nvrtc=None, packages={"cuda-core": None}, cache=replace(CACHE, writable=False)),
    ],
    ids=["all there", "no GPU", "a GPU too old", "a cache that nobody needs", "JAX alone", "a bundle alone"],
)
def test_all_is_well(found):
    assert doctor.advise(found) is None
    assert found.works


@pytest.mark.parametrize(
    ("found", "words", "command", "works"),
    [
        (report(cpu=WRONG), "cpu backend answered wrongly: row 3", "ksieve cache --clear", False),
        (report(cuda=WRONG), "cuda backend answered wrongly", "ksieve cache --clear", False),
        (report(cpu=ABSENT, cuda=ABSENT, driver=NO_GPU), "CPU backend does not run: it is missing",
         "pip install --upgrade numba numpy", False),
        (report(cuda=replace(ABSENT, problem=f"no NVRTC: {install_command('cuda12')}")), "H200 is not used: no NVRTC",
         install_command("cuda12"), True),
        (report(cuda=ABSENT), "NVIDIA H200 is not used: it is missing", None, True),
        (report(cuda=replace(ABSENT, problem=BAD_BUNDLE.problem)), "is damaged", "unset KSIEVE_BUNDLE", True),
        (report(cuda=ABSENT, driver=Driver("580.1", "13.0", (), "it sees none")), "offers no GPU: it sees none",
         "nvidia-smi", True),
        (report(cuda=ABSENT, driver=Driver("580.1", "13.0", (), "it sees none"), visible=""),
         "it sees none; CUDA_VISIBLE_DEVICES is ''", "nvidia-smi", True),
        (report(cache=replace(CACHE, writable=False)), "cannot be kept in /cache",
         "export KSIEVE_CACHE_DIR=<a directory that you alone can write>", True),
        (report(cache=replace(CACHE, damaged=2)), "2 of 4 compiled kernels are damaged", "ksieve cache --clear", True),
        (report(packages={"torch": None, "cupy": None, "jax": None}), "no array library",
         install_command("torch"), True),
        (report(torch_cuda=None), "built without CUDA", "pip install --force-reinstall torch", True),
    ],
)  # fmt: skip
def test_the_one_thing_to_fix(found, words, command, works):
    advice = doctor.advise(found)
    assert words in advice.text
    assert advice.command == command
    assert found.works is works
    assert not advice.text.endswith("."), "the command line ends the sentence"
    assert found.as_dict()["fix_first"]["text"] == advice.text


def test_a_wrong_answer_comes_before_everything_else():
    broken = report(cuda=WRONG, cpu=ABSENT, packages={"numba": None}, cache=replace(CACHE, writable=False))
    assert doctor.advise(broken).serious


# ---- the self-tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_self_test_verifies(backend):
    found = self_test.run(backend)
    assert (found.ran, found.exact, found.problem) == (True, True, None)
    assert found.rows == sum(len(scores) for scores, _, _ in self_test.cases())


def test_the_self_test_notices_a_wrong_answer(monkeypatch):
    def select(scores, lengths, k, *, backend):
        indices, _ = reference.select(scores, lengths, k, policy=None)
        worst = int(np.argmin(np.where(np.isnan(scores[0]), np.inf, scores[0])))
        indices[0, 0] = worst
        return Selection(indices)

    monkeypatch.setattr(dispatch, "select", select)
    found = self_test.run("cpu")
    assert (found.ran, found.exact) == (True, False)
    assert "row 0" in found.problem


@pytest.mark.parametrize("error", [BackendError("no\n driver"), ImportError("Numba needs NumPy 2.3 or less")])
def test_what_a_backend_raises_is_a_finding(monkeypatch, error):
    def select(*_, **__):
        raise error

    monkeypatch.setattr(dispatch, "select", select)
    found = self_test.run("cpu")
    assert (found.ran, found.exact) == (False, False)
    assert found.problem in ("no driver", "ImportError: Numba needs NumPy 2.3 or less")


def test_the_gpu_is_tested_without_an_array_library(monkeypatch):
    driver = next(fakes := fake_backend(monkeypatch))
    found = self_test.run("cuda")
    assert (found.ran, found.exact, found.problem) == (True, True, None)
    assert driver.launches and len(driver.freed) == 3 * len([*self_test.cases()])
    next(fakes, None)


# ---- facts ---------------------------------------------------------------------------------------------------


def test_pytorch_is_read_not_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    version = tmp_path / "torch" / "version.py"
    code = "import sys; sys.path.insert(0, sys.argv[1]); from ksieve import doctor; print(doctor.torch_cuda())"

    def ask(text):
        version.write_text(text)
        ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    assert ask("__version__ = '2.11'\ncuda: Optional[str] = '13.0'\nhip = None\n") == "13.0"
    assert ask("__version__ = '2.11+cpu'\ncuda: Optional[str] = None\n") == "None"


def test_a_cache_says_whether_it_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "a" / "b"))
    cache = doctor._cache("cuda")
    assert (cache.path, cache.exists, cache.writable, cache.entries) == (str(tmp_path / "a" / "b"), False, True, 0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "file" / "b"))
    assert not doctor._cache("cuda").writable
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "open"))
    (tmp_path / "open" / "cpu").mkdir(parents=True, mode=0o700)
    (tmp_path / "open").chmod(0o777)
    cache = doctor._cache("cpu")
    assert not cache.writable and "can be written by others" in cache.problem


# ---- as a user meets it --------------------------------------------------------------------------------------


def invoke(monkeypatch, found, *words):
    monkeypatch.setattr(doctor, "examine", lambda progress: found)
    return CliRunner().invoke(app, ["doctor", *words])


def test_the_page_of_a_good_machine(monkeypatch):
    ran = invoke(monkeypatch, report())
    assert ran.exit_code == 0
    assert "NVIDIA H200, compute capability 9.0, 140 GiB" in ran.stdout
    assert "580.1, supports CUDA 13.0: ksieve[cuda] fits" in ran.stdout
    assert "4 compiled, 1.0 MiB (1,048,576 bytes), writable" in ran.stdout
    assert "exact, 10 rows verified in 500 ms" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "All is well: selections run on the NVIDIA H200 and on the CPU."


def test_the_page_names_the_bundle(monkeypatch):
    shown = " ".join(invoke(monkeypatch, report(bundle=BUNDLE)).stdout.split())
    assert "bundle /opt/kernels.zip: 42 compiled (2 for sm_80, 40 for sm_90a) with nvrtc 13.0" in shown
    shown = " ".join(invoke(monkeypatch, report(bundle=BAD_BUNDLE, cuda=ABSENT)).stdout.split())
    assert "bundle /opt/kernels.zip: KSIEVE_BUNDLE: /opt/kernels.zip is damaged" in shown


def test_the_bundle_of_the_environment_is_read(monkeypatch, tmp_path):
    monkeypatch.delenv("KSIEVE_BUNDLE", raising=False)
    assert doctor.bundle() is None
    path, spec = tmp_path / "kernels.zip", KernelSpec("stream/cta", "sm_80", (("KSIEVE_THREADS", 128),))
    write_bundle(path, {spec: Cubin(b"code", "")}, shipped_sources(), "nvrtc 13.0")
    monkeypatch.setenv("KSIEVE_BUNDLE", str(path))
    assert doctor.bundle() == Made(str(path), "1 compiled (1 for sm_80) with nvrtc 13.0")
    path.write_bytes(b"cut")
    assert "damaged" in doctor.bundle().problem


def test_the_page_ends_with_the_fix_and_its_command(monkeypatch):
    cuda = replace(ABSENT, problem=f"no CUDA packages: {install_command('cuda')}")
    lines = invoke(monkeypatch, report(cuda=cuda)).stdout.splitlines()
    assert lines[-3].startswith("Fix this first: the NVIDIA H200 is not used")
    assert lines[-2] == f"    {install_command('cuda')}"
    assert lines[-1].startswith("Until then: selections run on 8 CPU threads")


@pytest.mark.parametrize(
    ("found", "code"),
    [(report(), 0), (report(cuda=ABSENT), 0), (report(cpu=ABSENT, cuda=ABSENT), 2), (report(cuda=WRONG), 1)],
)
def test_exit_codes(monkeypatch, found, code):
    assert invoke(monkeypatch, found).exit_code == code
    as_json = invoke(monkeypatch, found, "--json")
    assert as_json.exit_code == code
    assert json.loads(as_json.stdout)["works"] is (code == 0)


def test_this_machine_is_examined_whole():
    ran = subprocess.run(
        [sys.executable, "-m", "ksieve", "doctor", "--json"],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert found["works"] is True
    assert {t["backend"]: t["exact"] for t in found["tests"]} == {
        "cpu": True, "cuda": cuda_devices() > 0, "reference": True,
    }  # fmt: skip
    assert found["packages"]["numpy"] == np.__version__
    assert bool(found["driver"]["gpus"]) == (cuda_devices() > 0)


def test_a_machine_with_next_to_nothing():
    """No Numba, no PyTorch, no CUDA packages, no driver: everything is said, nothing raises."""
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "torch", "cuda", "cupy", "jax"):
            raise ImportError(f"No module named {name!r}")
sys.meta_path.insert(0, Blocked())
from ksieve import doctor
report = doctor.examine()
assert not report.test("cpu").ran and "numba" in report.test("cpu").problem, report
assert not report.test("cuda").ran and report.test("reference").exact, report
assert report.nvrtc is None and not report.works
assert doctor.advise(report).serious
assert "torch" not in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


# ---- files of measured launch shapes --------------------------------------------------------------------------


def shapes_report(monkeypatch, tmp_path, text):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KSIEVE_TUNED", raising=False)
    folder = tmp_path / "ksieve" / "tuned"
    folder.mkdir(parents=True)
    (folder / "nvidia-h200-float32.json").write_text(text)
    (found,) = doctor.launch_shapes([DEVICES["h200"]])
    return command._made(found)


def tuned_text(**changes):
    facts = {"device": {"name": "NVIDIA H200"}, "dtype": "float32", "date": "2026-11-25T20:06:38Z", "driver": "580.1"}
    return json.dumps(facts | {"ksieve": report().ksieve} | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (tuned_text(ksieve="0.0.1"), "NOT used: "),
        (tuned_text(device={"name": "NVIDIA B200"}), "no such GPU is here"),
        ("{", "it cannot be read"),
    ],
)
def test_the_files_of_launch_shapes_are_described(monkeypatch, tmp_path, text, words):
    shown = shapes_report(monkeypatch, tmp_path, text)
    assert words in shown and "nvidia-h200-float32.json" in shown
    monkeypatch.setenv("KSIEVE_TUNED", "off")
    assert doctor.launch_shapes() == ()


def test_a_file_of_a_device_that_is_here_is_checked_as_the_planner_does(monkeypatch, tmp_path):
    device = DEVICES["h200"]
    monkeypatch.setenv("KSIEVE_TUNED", str(tmp_path))
    path = tmp_path / "mine.json"
    about = {"device": tuned.described(device), "dtype": "float32", "date": "2026-11-25"}
    entry = {"threads": 512, "ctas_per_sm": 1, "resident_width": 32_768}
    tuned.write(path, tuned.Tuned(about, {"resident": {"resident_block": [entry]}}))
    assert doctor.launch_shapes([device])[0].problem is None
    path.write_text(path.read_text().replace("512", "96"))
    (found,) = doctor.launch_shapes([device])
    assert found.problem.startswith("NOT used: entries that `ksieve tune` has not written")
    assert command._made(found).endswith("make it again with `ksieve tune`")
    (found,) = doctor.launch_shapes()
    assert (found.problem, "measured 2026-11-25" in found.about, "no such GPU" in found.about) == (None, True, True)
