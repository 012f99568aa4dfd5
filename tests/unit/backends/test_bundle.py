"""Bundles of compiled kernels: what is used, what is refused and how.

What a process needs besides one is proved in test_cuda_driver.py, with the real bindings of the driver.
"""

from __future__ import annotations

import json
import logging
import os
import random
import zipfile
from dataclasses import replace

import pytest

from ksieve.backends import code_cache
from ksieve.backends.cuda.jit import bundle, cache
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Cubin, Sources
from ksieve.backends.cuda.jit.spec import KernelSpec
from ksieve.core.errors import BackendError

SPEC = KernelSpec("stream/cta", "sm_80", (("KSIEVE_THREADS", 128), ("KSIEVE_K", 3)))
OTHER = replace(SPEC, defines=(("KSIEVE_THREADS", 256), ("KSIEVE_K", 3)))
HOPPER = replace(SPEC, arch="sm_90a")


def cubin_of(spec):
    return Cubin(b"\x7fELF" + repr(spec).encode() * 40, "")


def write(path, *specs, made_with="nvrtc 13.0"):
    bundle.write(path, {spec: cubin_of(spec) for spec in specs}, compiler.shipped_sources(), made_with)
    return path


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch, tmp_path):
    """Nothing compiles and nothing is cached, and nothing has been said yet."""

    def absent(*_):
        raise BackendError("NVRTC, CUDA's run-time compiler, was not found")

    monkeypatch.setattr(compiler, "compile_kernel", absent)
    monkeypatch.setattr(compiler, "compiler_version", absent)
    code_cache.say_once.cache_clear()
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def named(monkeypatch, tmp_path):
    """A bundle that the environment names."""
    path = write(tmp_path / "kernels.zip", SPEC, HOPPER)
    monkeypatch.setenv("KSIEVE_BUNDLE", str(path))
    return path


def refused(text):
    return pytest.raises(
        BackendError, match=f"^KSIEVE_BUNDLE: (?=.*{text})(?=.*ksieve build --device ).*unset KSIEVE_BUNDLE$"
    )


def changed(path, **facts):
    """Rewrite the index of a bundle."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["index.json"] = json.dumps(json.loads(members["index.json"]) | facts).encode()
    path.unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    path.chmod(0o644)


# ---- what is found -------------------------------------------------------------------------------------------


def test_kernels_come_from_it_without_a_compiler_or_a_cache(named, tmp_path):
    for spec in (SPEC, HOPPER):
        assert bundle.obtain(spec) == (cubin_of(spec), False)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_the_cache_is_asked(named, monkeypatch, value):
    monkeypatch.delenv("KSIEVE_BUNDLE")
    if value is not None:
        monkeypatch.setenv("KSIEVE_BUNDLE", value)
    monkeypatch.setattr(cache, "obtain", lambda spec, sources: ("cached", spec))
    assert bundle.obtain(SPEC) == ("cached", SPEC)


def test_sources_of_someone_else_never_come_from_it(named, monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "obtain", lambda spec, sources: ("compiled", sources.digest))
    assert bundle.obtain(SPEC, Sources.of(tmp_path, {"a.cu": "text"}))[0] == "compiled"
    assert bundle.obtain(SPEC, compiler.shipped_sources())[0] == cubin_of(SPEC)


def test_a_kernel_that_it_has_not_is_looked_for_elsewhere_and_said_once(named, monkeypatch, caplog):
    monkeypatch.setattr(cache, "obtain", lambda spec, sources: (cubin_of(spec), True))
    for _ in range(2):
        assert bundle.obtain(OTHER) == (cubin_of(OTHER), True)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "has no kernel stream/cta.cu for sm_80 (threads=256" in said


def test_a_kernel_that_is_nowhere_names_the_bundle_and_the_command(named):
    with pytest.raises(BackendError, match=r"NVRTC.*not found; KSIEVE_BUNDLE: .*kernels.zip has no kernel .*--bundle`"):
        bundle.obtain(OTHER)


def test_a_warm_up_compiles_what_the_bundle_has_not(named, monkeypatch):
    assert bundle.missing([SPEC, OTHER, HOPPER]) == [OTHER]
    named.write_bytes(b"cut")
    with refused("damaged"):
        bundle.missing([SPEC])
    monkeypatch.delenv("KSIEVE_BUNDLE")
    assert bundle.missing([SPEC, OTHER]) == [SPEC, OTHER]


def test_a_replaced_bundle_is_read_again(named):
    assert bundle.obtain(SPEC)[0] == cubin_of(SPEC)
    write(named, HOPPER)
    with refused("has kernels for sm_90a, and this GPU needs sm_80"):
        bundle.obtain(SPEC)


# ---- its bytes -----------------------------------------------------------------------------------------------


def test_the_bytes_depend_on_the_kernels_alone(tmp_path):
    sources = compiler.shipped_sources()
    kernels = {spec: cubin_of(spec) for spec in (SPEC, OTHER, HOPPER)}
    logged = {spec: Cubin(cubin.code, "Compile time = 3 ms") for spec, cubin in reversed(kernels.items())}
    assert bundle.pack(kernels, sources, "nvrtc 13.0") == bundle.pack(logged, sources, "nvrtc 13.0")
    assert bundle.pack(kernels, sources, "nvrtc 13.0") != bundle.pack(kernels, sources, "nvrtc 12.8")


@pytest.mark.parametrize("umask", [0, 0o077])
def test_every_user_can_read_it_and_none_but_its_owner_can_write_it(tmp_path, umask):
    before = os.umask(umask)
    try:
        assert write(tmp_path / "kernels.zip", SPEC).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_failure_leaves_the_former_bundle(named, monkeypatch):
    before = named.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(named, OTHER)
    assert named.read_bytes() == before and [*named.parent.iterdir()] == [named]


# ---- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: p.unlink(), "No such file or directory"),
        (lambda p: p.write_bytes(b""), "damaged, or no bundle"),
        (lambda p: p.write_bytes(p.read_bytes()[:-100]), "damaged, or no bundle"),
        (lambda p: p.write_bytes(p.read_bytes().replace(b"nvrtc 13.0", b"nvrtc 13.1")), "damaged"),
        (lambda p: p.write_bytes(p.read_bytes().replace(b"\x7fELFKernelSpec", b"\x7fELFKernelspec")), "damaged"),
        (lambda p: (p.unlink(), p.mkdir()), "[Ii]s a directory"),
        (lambda p: (p.unlink(), zipfile.ZipFile(p, "w").close(), p.chmod(0o644)), "no bundle"),
        (lambda p: changed(p, kernels=3), "damaged, or no bundle"),
        (lambda p: changed(p, kernels=["sm_80/x"]), "1 of its kernels are"),
        (lambda p: changed(p, ksieve="0.0.1"), "it was made by ksieve 0.0.1, .*--device sm_80 --device sm_90a"),
        (lambda p: changed(p, sources="0" * 64), "other CUDA sources than those of this package"),
        (lambda p: write(p, HOPPER), "has kernels for sm_90a, and this GPU needs sm_80.*--device sm_80"),
        (lambda p: write(p), "has kernels for no GPU"),
        pytest.param(lambda p: (p.unlink(), os.mkfifo(p)), "no regular file"),  # is not waited for
        pytest.param(lambda p: p.chmod(0o664), "can be written by others: chmod go-w"),
        pytest.param(lambda p: p.chmod(0o646), "can be written by others: chmod go-w"),
    ],
    ids=["absent", "empty", "truncated", "index", "kernel", "a folder", "another archive", "index of another kind",
         "a kernel is missing", "another version", "other sources", "another GPU", "no kernel",
         "a pipe", "the group can write it", "everyone can write it"],
)  # fmt: skip
def test_what_cannot_be_used_is_an_error_that_says_what_to_do(named, damage, text, monkeypatch):
    monkeypatch.setattr(cache, "obtain", lambda *_: pytest.fail("the cache was asked"))
    damage(named)
    with refused(text):
        bundle.obtain(SPEC)


def test_what_belongs_to_another_user_is_refused(named, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: named.stat().st_uid + 1)
    if named.stat().st_uid == 0:
        assert bundle.obtain(SPEC)[0] == cubin_of(SPEC), "what root made is for every user"
        os.chown(named, 4242, 4242)
    with refused("belongs to user"):
        bundle.obtain(SPEC)


def test_fuzz_of_damaged_bundles(named):
    """Any changed byte is an error with a remedy, or changes nothing of the kernel."""
    rng, whole = random.Random(5), named.read_bytes()
    for _ in range(400):
        at = rng.randrange(len(whole))
        named.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        bundle._read_once.cache_clear()
        try:
            assert bundle.obtain(SPEC) == (cubin_of(SPEC), False)
        except BackendError as error:
            assert str(error).startswith("KSIEVE_BUNDLE: ") and "unset KSIEVE_BUNDLE" in str(error)
