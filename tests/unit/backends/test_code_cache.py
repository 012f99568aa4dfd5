"""The cache of compiled code: what is taken, what is replaced, what is written, and who waits."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import sys
import threading
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from disk import file_sizes, folder_of_all_users
from ksieve.backends import code_cache
from ksieve.backends.cuda.jit import cache
from ksieve.backends.cuda.jit import compile as compiler
from ksieve.backends.cuda.jit.compile import Cubin, Sources
from ksieve.backends.cuda.jit.spec import KernelSpec

SPEC = KernelSpec("dummy", "sm_80", (("KSIEVE_THREADS", 128), ("KSIEVE_K", 3)))
OTHER = replace(SPEC, arch="sm_90a")
SOURCES = Sources(Path("/nowhere"), (("dummy.cu", "text"),), "digest")
KERNELS = Path(cache.__file__).parents[3] / "kernels"


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.cu")), ids=lambda path: path.relative_to(KERNELS).as_posix())
def test_a_file_defines_the_kernel_of_its_name(path):
    """A moved file whose kernel keeps its name compiles, and is not found when it is loaded."""
    spec = replace(SPEC, stem=path.relative_to(KERNELS).with_suffix("").as_posix())
    assert f" {spec.entry}(" in path.read_text(encoding="utf-8")


def code_of(spec):
    return b"\x7fELF" + repr(spec).encode() * 40


@pytest.fixture(autouse=True)
def compiles(monkeypatch):
    """A compiler that takes no time, and the list of what it compiled; nothing has been said yet."""
    done = []

    def compile_kernel(spec, _):
        done.append(spec)
        return Cubin(code_of(spec), "report")

    monkeypatch.setattr(compiler, "compile_kernel", compile_kernel)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "nvrtc 13.0")
    code_cache.say_once.cache_clear()
    return done


def obtain(folder, spec=SPEC):
    """Obtain a cubin, check it, and return whether it was compiled now."""
    cubin, compiled = cache.obtain(spec, SOURCES, folder)
    assert cubin == Cubin(code_of(spec), "report")
    return compiled


def files(folder):
    return [path for path in sorted(folder.rglob("*")) if not path.is_dir()]


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def forge(path, facts=None, header=None):
    """Change an entry's facts, or its whole header, under a checksum that fits."""
    _, head, code = path.read_bytes().split(b"\n", 2)
    described = json.loads(head)
    described["facts"] |= facts or {}
    rest = (json.dumps(described).encode() if header is None else header) + b"\n" + code
    path.write_bytes(b"ksieve code 1 " + sha256(rest).hexdigest().encode() + b"\n" + rest)


# ---- who may have written it -------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_can_read_and_write_what_is_made(tmp_path, umask):
    folder = tmp_path / "parent" / "cache"
    before = os.umask(umask)
    try:
        assert obtain(folder)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "parent", *tmp_path.rglob("*")]}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes
    assert not obtain(folder)


@pytest.mark.parametrize("part", ["file", "folder", "root"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_not_taken(tmp_path, compiles, caplog, part, mode):
    assert obtain(tmp_path / "c")
    file = files(tmp_path / "c")[0]
    place = {"file": file, "folder": file.parent, "root": tmp_path / "c"}[part]
    place.chmod(place.stat().st_mode | mode)
    assert obtain(tmp_path / "c"), "code was taken that another user could have written"
    assert compiles == [SPEC, SPEC]
    assert any("can be written by others: chmod go-w" in text for text in warnings_in(caplog))
    place.chmod(stat.S_IMODE(place.stat().st_mode) & ~0o022)
    assert not obtain(tmp_path / "c")


@pytest.mark.parametrize("part", ["file", "folder", "root"])
def test_what_belongs_to_another_user_is_not_taken(tmp_path, caplog, monkeypatch, part):
    folder = tmp_path / "c"
    assert obtain(folder)
    file = files(folder)[0]
    if os.geteuid() == 0:
        os.chown({"file": file, "folder": file.parent, "root": folder}[part], 12345, -1)
    elif part == "root":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        pytest.skip("only root can give files away")
    assert obtain(folder), "another user's code was taken"
    assert any("belongs to user" in text for text in warnings_in(caplog))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_cache_of_root_serves_other_users(compiles):
    """As in an image: root fills it and lets others read; who runs there takes what is in it, and writes nothing."""
    with folder_of_all_users() as place:
        folder = place / "c"
        assert obtain(folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        child = os.fork()
        if child == 0:
            code = 3
            with contextlib.suppress(BaseException):
                os.setuid(54321)
                code = 0 if (obtain(folder), obtain(folder, OTHER)) == (False, True) else 1
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(files(folder)) == 1


def test_a_sticky_root_such_as_tmp_is_fine(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t").chmod(0o1777)
    assert obtain(tmp_path / "t") and not obtain(tmp_path / "t")


# ---- what is in it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", ["kernel", "arch", "defines", "compiler", "ksieve", "sources"])
def test_every_fact_is_compared(tmp_path, compiles, fact):
    obtain(tmp_path / "c")
    (entry,) = files(tmp_path / "c")
    forge(entry, {fact: {"KSIEVE_K": 4} if fact == "defines" else "something else"})
    assert obtain(tmp_path / "c"), f"an entry with another {fact} was taken"
    assert not obtain(tmp_path / "c")


HOSTILE = {
    "empty": lambda p: p.write_bytes(b""),
    "truncated": lambda p: p.write_bytes(p.read_bytes()[:-7]),
    "one bit in the code": lambda p: p.write_bytes(p.read_bytes()[:-9] + b"\0" + p.read_bytes()[-8:]),
    "one bit in the facts": lambda p: p.write_bytes(p.read_bytes().replace(b"sm_80", b"sm_81")),
    "deep JSON": lambda p: forge(p, header=b'{"facts": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep facts": lambda p: forge(p, header=b'{"report": "", "facts": ' + b'{"a":' * 90_000 + b"1" + b"}" * 90_001),
    "a list": lambda p: forge(p, header=b"[]"),
    "a number": lambda p: forge(p, header=b"1"),
    "no JSON": lambda p: forge(p, header=b"\xff\xfe"),
    "5,000 digits": lambda p: forge(p, header=b"1" * 5000),
    "facts of a list": lambda p: forge(p, header=b'{"facts": [], "report": ""}'),
    "a report of a number": lambda p: forge(p, header=b'{"facts": {}, "report": 1}'),
    "unreadable": lambda p: p.chmod(0),
    "a directory": lambda p: (p.unlink(), (p / "in it").mkdir(parents=True)),
    "a link": lambda p: p.symlink_to(p.rename(p.with_name("elsewhere"))),
    "a link to itself": lambda p: (p.unlink(), p.symlink_to(p)),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "a terabyte": lambda p: os.truncate(p, 1 << 40),
}


@pytest.mark.parametrize("damage", HOSTILE.values(), ids=HOSTILE)
def test_whatever_is_damaged_is_compiled_again_replaced_and_said_once(tmp_path, caplog, damage, monkeypatch):
    obtain(tmp_path / "c")
    (entry,) = files(tmp_path / "c")
    damage(entry)
    if entry.exists() and not entry.stat().st_mode & 0o400 and os.geteuid() == 0:
        pytest.skip("root reads everything")
    store = code_cache.Store("cuda", tmp_path / "c")
    assert [(e.path, e.facts) for e in store.entries()] == [(entry, None)]
    assert obtain(tmp_path / "c") and not obtain(tmp_path / "c")
    assert len(warnings_in(caplog)) == 1 and "compiled again" in warnings_in(caplog)[0]
    assert [e.facts["arch"] for e in store.entries()] == ["sm_80"]
    damage(entry)
    assert store.clear() == 1 and list(store.entries()) == []


def test_clear_removes_entries_and_leftovers_alone(tmp_path):
    store = code_cache.Store("cuda", tmp_path)
    assert store.clear() == 0 and list(store.entries()) == []
    obtain(tmp_path)
    (store.folder / ".partial-dead").mkdir()
    (store.folder / "mine.txt").write_text("keep")
    assert store.clear() == 2
    assert [path.name for path in store.folder.iterdir()] == ["mine.txt"]


# ---- where it cannot be written ----------------------------------------------------------------------------


UNWRITABLE = {
    "a file": lambda p: (p.write_text(""), p)[1],
    "below a file": lambda p: (p.write_text(""), p / "c")[1],
    "a link to nothing": lambda p: (p.symlink_to(p.with_name("none") / "gone"), p)[1],
    "a NUL": lambda p: p.with_name("a\0b"),
    "a file in it": lambda p: (p.mkdir(), (p / "cuda").write_text(""), p)[2],
}


@pytest.mark.parametrize("how", UNWRITABLE.values(), ids=UNWRITABLE)
def test_an_unwritable_cache_costs_one_warning(tmp_path, caplog, how):
    folder = how(tmp_path / "f")
    (tmp_path / "none").touch()
    assert obtain(folder) and obtain(folder)
    (text,) = {t for t in warnings_in(caplog) if "cannot be kept" in t}
    assert "KSIEVE_CACHE_DIR" in text and sum("cannot be kept" in t for t in warnings_in(caplog)) == 1
    assert list(code_cache.Store("cuda", folder).entries()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path, caplog):
    with file_sizes() as limit:
        limit(200)
        assert obtain(tmp_path / "c")
    assert files(tmp_path / "c") == []
    assert len(warnings_in(caplog)) == 1
    assert obtain(tmp_path / "c") and not obtain(tmp_path / "c")


def test_a_user_without_a_home_has_a_cache_in_the_temporary_directory(tmp_path, monkeypatch):
    pwd = pytest.importorskip("pwd")

    def nobody(_):
        raise KeyError

    for name in ("KSIEVE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert code_cache.cache_dir() == tmp_path / f"ksieve-{os.geteuid()}"
    monkeypatch.setenv("KSIEVE_CACHE_DIR", "~/c")
    assert code_cache.cache_dir() == tmp_path / "~" / "c"
    monkeypatch.setenv("KSIEVE_CACHE_DIR", "c")
    assert code_cache.cache_dir() == tmp_path / "c"
    monkeypatch.delenv("KSIEVE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert code_cache.cache_dir() == Path("/xdg/ksieve") or sys.platform != "linux"


# ---- several at once ---------------------------------------------------------------------------------------


def test_of_two_that_need_an_entry_one_compiles_and_the_other_waits(tmp_path, compiles, monkeypatch, caplog):
    go, compile_kernel, found = threading.Event(), compiler.compile_kernel, {}

    def slow(spec, sources):
        assert go.wait(60)
        return compile_kernel(spec, sources)

    def run(name):
        found[name] = obtain(tmp_path / "c")

    monkeypatch.setattr(compiler, "compile_kernel", slow)
    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while "another process compiles" not in caplog.text and time.monotonic() < until:
        time.sleep(0.01)
    go.set()
    for thread in threads:
        thread.join(60)
    assert "another process compiles" in caplog.text and sorted(found.values()) == [False, True] and compiles == [SPEC]
    assert len(files(tmp_path / "c")) == 1, "a lock was left behind"


def test_who_has_waited_long_enough_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr(code_cache, "PATIENCE", 0.1)
    store = code_cache.Store("cuda", tmp_path / "c")
    with store.alone(cache.facts_of(SPEC, SOURCES)):
        assert obtain(tmp_path / "c")


def test_a_lock_that_cannot_be_had_does_not_matter(tmp_path):
    store = code_cache.Store("cuda", tmp_path / "c")
    lock = store.path(cache.facts_of(SPEC, SOURCES)).with_suffix(".lock")
    lock.mkdir(parents=True)
    for place in (tmp_path / "c", tmp_path / "c" / "cuda"):
        place.chmod(0o700)
    assert obtain(tmp_path / "c") and not obtain(tmp_path / "c")
    assert store.clear() == 2
