"""``ksieve build`` and ``ksieve cache`` as a user meets them."""

from __future__ import annotations

import itertools

import pytest
from conftest import cuda_devices
from typer.testing import CliRunner

from ksieve import self_test
from ksieve.backends.code_cache import Store
from ksieve.backends.cuda import keep, ranks
from ksieve.backends.cuda.jit import bundle, cache
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Cubin
from ksieve.backends.cuda.jit.spec import kernel_spec
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.problem import Device, Problem
from ksieve.core.ranking import RANKINGS
from ksieve.planning.choose import choose
from ksieve_lab.cli.app import app

pytest.importorskip("cuda.core")
ROW_KERNEL = ("build", "--device", "sm_90a", "--rows", "16", "--width", "3072", "--k", "512")


@pytest.fixture
def run(tmp_path, monkeypatch):
    try:
        compiler.compiler_version()
    except BackendError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "kernels"))

    def invoke(*words):
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.stdout

    return invoke


def test_build_fills_the_cache_once_and_cache_shows_and_clears_it(run, tmp_path):
    none = ["entries  0", "damaged  0", "size     0 bytes"]
    assert run("cache").splitlines() == [f"path     {tmp_path / 'kernels'}", *none]
    first = run(*ROW_KERNEL)
    assert (
        "register_block direct float32 sm_90a" in first and "1 kernel in" in first and "1 of them compiled now" in first
    )
    assert "0 of them compiled now" in run(*ROW_KERNEL, "--k", "1024")
    (entry,) = Store("cuda").entries()
    shown = run("cache")
    assert "entries  1" in shown and entry.facts["compiler"] in shown
    entry.path.write_bytes(b"cut")
    assert "entries  1\ndamaged  1\n" in run("cache")
    assert run("cache", "--clear").startswith("removed 1 entry from ")
    assert list(Store("cuda").entries()) == []


def test_build_takes_several_dtypes_and_architectures(run):
    run(*ROW_KERNEL, "--device", "sm_80", "--dtype", "float16", "--dtype", "bfloat16")
    made = [(e.facts["arch"], e.facts["defines"]["KSIEVE_DTYPE"]) for e in Store("cuda").entries()]
    assert sorted(made) == [("sm_80", 1), ("sm_80", 2), ("sm_90a", 1), ("sm_90a", 2)]


def test_build_of_statistics_kernels(run):
    run(*ROW_KERNEL, "--stats")
    (entry,) = Store("cuda").entries()
    assert entry.facts["defines"]["KSIEVE_STATS"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "sm_75"), r"device: got 'sm_75'; takes one of sm_80,"),
        (("--device", "sm_80", "--family", "nope"), r"family: got 'nope'; takes one of"),
        (("--device", "sm_80", "--family", "resident_cluster"), r"family: got 'resident_cluster'; takes a device"),
    ],
)
def test_what_cannot_be_built_is_refused(run, words, message):
    with pytest.raises(ArgumentError, match=message):
        run("build", *words)
    assert list(Store("cuda").entries()) == []


FOR_ENGINE = ("build", "--for", "tensorrt_llm", "--device", "a100", "--max-rows=4", "--max-width=3k", "--k=64")


def test_build_for_an_engine(run):
    pytest.importorskip("torch")
    assert "2 kernels in" in run(*FOR_ENGINE)
    made = [entry.facts["defines"] for entry in Store("cuda").entries()]
    assert sorted(defines.get("KSIEVE_WINDOWS", 0) for defines in made) == [0, 1]
    assert {defines["KSIEVE_RANKING"] for defines in made} == {2}  # TensorRT-LLM ranks NaN first
    assert "0 of them compiled now" in run(*FOR_ENGINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*FOR_ENGINE, "--rows", "4"), r"--rows: got .*, which is not taken with --for, which has --max-rows"),
        ((*FOR_ENGINE, "--policy", "direct"), r"--policy: got direct, which is not taken with --for"),
        ((*FOR_ENGINE, "--stats"), r"--stats: got True, which is not taken with --for"),
        ((*ROW_KERNEL, "--max-rows", "4"), r"--max-rows: got 4; takes a number with --for; --rows and --width list"),
        ((*ROW_KERNEL, "--max-width", "4"), r"--max-width: got 4; takes a number with --for"),
    ],
)
def test_options_of_build_that_exclude_each_other(run, words, message):
    with pytest.raises(ArgumentError, match=message):
        run(*words)


@pytest.mark.skipif(cuda_devices() > 0, reason="this machine has a CUDA device")
def test_build_without_a_gpu_asks_for_an_architecture(run):
    with pytest.raises(BackendError, match="pass --device: this machine's GPU cannot be used"):
        run("build")


def test_build_into_a_cache_that_cannot_be_written_is_no_success(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    with pytest.raises(BackendError, match="cannot be written: set KSIEVE_CACHE_DIR"):
        run(*ROW_KERNEL)
    monkeypatch.setattr(Store, "writable", lambda self: True)  # as on a disk that is full later
    with pytest.raises(BackendError, match=r"were not kept in .*: set KSIEVE_CACHE_DIR"):
        run(*ROW_KERNEL)


def test_a_bundle_has_the_same_bytes_whoever_makes_it_and_every_kernel_of_doctor(run, tmp_path, monkeypatch):
    said = run(*ROW_KERNEL, "--bundle", str(tmp_path / "one.zip"))
    assert "2 for sm_90a" in said and f"KSIEVE_BUNDLE={tmp_path / 'one.zip'}" in said
    (tmp_path / "file").touch()
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "file" / "kernels"))  # which no bundle needs
    monkeypatch.setenv("KSIEVE_BUNDLE", str(tmp_path / "absent.zip"))  # which `build` does not use
    run(*ROW_KERNEL, "--bundle", f"{tmp_path}/new/")
    assert (tmp_path / "new" / "ksieve-kernels.zip").read_bytes() == (tmp_path / "one.zip").read_bytes()
    monkeypatch.setenv("KSIEVE_BUNDLE", str(tmp_path / "one.zip"))
    monkeypatch.setattr(compiler, "compiler_version", lambda: pytest.fail("the compiler was asked"))
    for scores, _, k in self_test.cases():
        (rows, width), device = scores.shape, Device("cuda", 0)
        plan = choose(Problem(rows, width, width, k, "float32", device), DEVICES["h200"], kept=False)
        assert bundle.obtain(kernel_spec(plan))[0].code.startswith(b"\x7fELF")


def test_an_unwritable_bundle_is_refused_before_anything_is_compiled(run, tmp_path):
    for path in ("absent/kernels.zip", "kernels.bin"):
        with pytest.raises(ArgumentError, match="--bundle: got"):
            run(*ROW_KERNEL, "--bundle", str(tmp_path / path))
    assert list(Store("cuda").entries()) == []


def test_build_with_the_kernels_of_ranks(run, tmp_path, monkeypatch):
    """What a process with the bundle then asks for is in it, and every one is listed."""
    made = Cubin(b"code", "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads, Used 32 registers")
    monkeypatch.setattr(cache, "compile_all", lambda specs: [(spec, (made, True)) for spec in specs])
    said = run(*ROW_KERNEL, "--k", "4096", "--ranks", "--bundle", str(tmp_path / "ranks.zip"))
    assert "distributed/between float32 sm_90a" in said and "resident_block direct float32 sm_90a" in said
    monkeypatch.setenv("KSIEVE_BUNDLE", str(tmp_path / "ranks.zip"))
    for stem, ranking in itertools.product(ranks.STEMS, RANKINGS):
        spec = ranks.rank_kernel(stem, "sm_90a", slots=2049, dtype="float32", ranking=ranking)
        assert bundle.obtain(spec) == (Cubin(b"code", ""), False)
    for options in ranks.selections():
        asked = Problem(16, 3072, 3072, 512, "float32", Device("cuda", 0), options)
        assert not bundle.missing([kernel_spec(choose(asked, DEVICES["h200"], kept=False))])
    for words in (("--stats",), ("--policy", "direct"), ("--family", "stream")):
        with pytest.raises(ArgumentError, match=rf"{words[0]}: got .*, which is not taken with --ranks"):
            run(*ROW_KERNEL, "--ranks", *words)


def test_build_with_the_kernels_of_tiles(run, tmp_path, monkeypatch):
    made = Cubin(b"code", "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads, Used 32 registers")
    monkeypatch.setattr(cache, "compile_all", lambda specs: [(spec, (made, True)) for spec in specs])
    more = ("--k", str(keep.MOST_SLOTS + 1), "--tiles", "--bundle", str(tmp_path / "tiles.zip"))
    assert "running/keep float32 sm_90a" in run(*ROW_KERNEL, *more)
    monkeypatch.setenv("KSIEVE_BUNDLE", str(tmp_path / "tiles.zip"))
    for ranking in RANKINGS:
        assert bundle.obtain(keep.keep_kernel("sm_90a", "float32", ranking)) == (Cubin(b"code", ""), False)
    for options, width in itertools.product(keep.selections(), (512, 1024, keep.capacity_of(512))):
        asked = Problem(16, width, width, 512, "float32", Device("cuda", 0), options)
        assert not bundle.missing([kernel_spec(choose(asked, DEVICES["h200"], kept=False))])
