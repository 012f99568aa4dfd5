"""Machine code of the CPU kernels on disk: a small function stands in for the kernels, whose compilation takes long."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ksieve
from ksieve.backends import code_cache
from ksieve.backends.cpu import compiled
from ksieve.backends.cpu.kernels import select_rows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "c"))
    code_cache.say_once.cache_clear()
    return tmp_path / "c" / "cpu"


def add_product(x, y, total):
    for i in range(x.size):
        total += x[i] * y
    return total


def call(function=add_product):
    """Call a freshly decorated function, check its result, and say whether it was compiled."""
    made = compiled.cached_jit(function)
    assert made(np.arange(100, dtype=np.int64), 3, 5) == 3 * 4950 + 5
    misses = len(made.stats.cache_misses)
    assert misses + len(made.stats.cache_hits) == 1
    return bool(misses)


def files(folder):
    return sorted(folder.iterdir())


def test_code_is_kept_once_and_loaded_by_the_next(folder, caplog):
    assert call() and not call()
    (entry,) = files(folder)
    assert entry.suffix == ".code"
    content = entry.read_bytes()
    entry.write_bytes(content[:-2000] + b"\0" + content[-1999:])
    assert call(), "damaged code was run"
    assert not call() and caplog.text.count("compiled again") == 1


def test_what_a_function_closes_over_decides(folder):
    def entry(number):
        def same(x, y, total):
            for i in range(x.size):
                total += x[i] * y
            return total + number - number

        return same

    assert call(entry(1)) and call(entry(2))
    assert not call(entry(1)) and not call(entry(2))


def test_code_that_this_numba_cannot_load_is_compiled_again(folder):
    assert call()
    store = code_cache.Store("cpu")
    (entry,) = store.entries()
    for content in (b"no pickle", b"N.", b"]."):
        store.save(entry.facts, code_cache.Code(content))
        assert call() and not call()


def test_a_numba_that_does_not_fit_costs_the_cache_alone(folder, monkeypatch, caplog):
    monkeypatch.setattr(compiled, "_unfit", "no attribute '_Cache'")
    function = compiled.cached_jit(add_product)
    compiled.cached_jit(add_product)
    assert function(np.arange(3), 1, 0) == 3
    assert [r.getMessage() for r in caplog.records if "cannot be cached with Numba" in r.getMessage()] != []
    assert len(caplog.records) == 1 and not folder.exists()


# ---- kernels that call each other


def plus_one(x: int) -> int:
    return x + 1


def plus_two(x: int) -> int:
    return plus_one(plus_one(x))


@pytest.fixture
def pair(folder, monkeypatch):
    """Kernels of both functions that are not loaded yet."""
    # Numba takes the value of a global name when it compiles.
    one = compiled.kernel(plus_one)
    monkeypatch.setitem(globals(), "plus_one", one)
    return one, compiled.kernel(plus_two)


def test_a_kernel_calls_another_and_holds_no_copy_of_it(pair):
    one, two = pair
    assert two(40) == 42
    assert [each.name for each in two.needed] == ["plus_one", "plus_two"]
    (text,) = two.function.inspect_llvm().values()
    assert f"declare i64 @{one._symbol}(" in text and not re.search(r"define.*plus_one", text)


def test_progress_says_what_is_compiled_and_how_many_are_ready(pair, caplog, monkeypatch):
    with caplog.at_level(logging.DEBUG, logger="ksieve.backends.cpu"):
        compiled.prepare(pair[1])
        said = [(record.levelname, re.sub(r"[0-9.]+ s\b", "T", record.getMessage())) for record in caplog.records]
    start = "compiling the CPU kernels, once per machine and version: "
    assert said == [
        ("WARNING", start + "0 of 2 are ready; next is plus_one"),
        ("INFO", "compiled 2 CPU kernels in T"),
    ]
    assert all(record.name.startswith("ksieve.") for record in caplog.records)
    assert not logging.getLogger("ksieve").handlers, "a handler would hide the message from scripts"


def test_progress_warns_again_after_a_while_and_says_nothing_of_what_is_loaded(pair, caplog, monkeypatch):
    monkeypatch.setattr(compiled.Progress, "SECONDS", 0.0)
    compiled.prepare(pair[1])
    assert len(caplog.records) == 2
    caplog.clear()
    compiled.prepare(*pair)
    for function in (plus_one.function.py_func, plus_two):
        compiled.prepare(compiled.kernel(function))  # from the disk
    assert caplog.records == []


def test_threads_that_need_a_kernel_at_once_compile_it_once(pair):
    one, two = pair
    begin = threading.Barrier(4)

    def run(number):
        begin.wait()
        return two(number)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [2, 3, 4, 5]
    assert [len(each.function.stats.cache_misses) for each in (one, two)] == [1, 1]


def test_an_interrupted_compilation_leaves_no_lock_and_can_be_repeated(pair, folder, monkeypatch):
    one, two = pair
    monkeypatch.setattr(code_cache, "PATIENCE", 0.0)

    def interrupted(*_):
        assert [path.suffix for path in folder.iterdir()].count(".lock") == 1
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(two.function._compiler, "compile", interrupted)
        two(1)
    assert one.address and not two.address
    assert [path.suffix for path in files(folder)] == [".code"]
    assert two(1) == 3


CALL = """
import numpy as np, ksieve
from ksieve.backends.cpu.kernels import select_rows
x = np.arange(5000, dtype=np.float32)[None]
assert sorted(ksieve.topk(x, k=3)[0]) == [4997, 4998, 4999]
stats = [each.function.stats for each in select_rows.needed]
print(sum(len(s.cache_hits) for s in stats), sum(len(s.cache_misses) for s in stats), ksieve.__file__)
"""


@pytest.fixture
def installed(tmp_path):
    """Run code with a copy of the package, whose user has a cache at its usual place; return what it prints."""
    package = tmp_path / "site" / "ksieve"
    shutil.copytree(Path(ksieve.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    env |= {"PYTHONPATH": str(package.parent), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env |= {"KSIEVE_CACHE_DIR": "", "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    env["NUMBA_OPT"] = "1"  # what is compiled here runs once; 0 leaves addresses in it, so that it would not be kept

    def run(code):
        done = subprocess.run(
            [sys.executable, "-B", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    run.package, run.cache = package, tmp_path / "cache" / "ksieve" / "cpu"
    return run


@pytest.mark.extended
def test_the_kernels_themselves_survive_one_flipped_byte(installed, tmp_path):
    """A process loads what another compiled, one whose file is damaged compiles, the next loads; each is exact."""
    origin = installed.package / "__init__.py"
    ksieve.topk(np.arange(5000, dtype=np.float32)[None], k=3)  # this process, or one before it
    shutil.copytree(code_cache.Store("cpu").folder, installed.cache)
    static = [each.function._cache._static for each in select_rows.needed]
    for entry in code_cache.Store("cpu", installed.cache.parent).entries():
        if entry.facts is None or not any(facts.items() <= entry.facts.items() for facts in static):
            entry.path.unlink()
    files = sorted(path for path in installed.cache.rglob("*") if path.is_file())
    assert len(files) == len(static)
    assert installed(CALL) == (f"{len(files)} 0 {origin}", "")
    for path in files[::4]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 16
        path.write_bytes(content)
    answer, said = installed(CALL)
    damaged = len(files[::4])
    assert answer == f"{len(files) - damaged} {damaged} {origin}"
    assert said.count("is damaged") == damaged and "compiling the CPU kernels" in said
    assert sorted(path for path in installed.cache.rglob("*") if path.is_file()) == files
    assert not list(tmp_path.rglob("*.nb[ci]")), "pip uninstall would leave them"
    assert installed(CALL) == (f"{len(files)} 0 {origin}", "")


@pytest.mark.extended
def test_kernels_of_a_changed_source_have_another_entry(installed):
    """By what decides the entry's name: `test_what_a_function_closes_over_decides` is about the entry itself."""
    code = "from ksieve.backends.cpu.kernels import select_rows; print(select_rows.function._cache._static)"
    found = [installed(code)[0] for _ in range(2)]
    assert found[0] == found[1] and "closure" in found[0]
    for name in ("backends/cpu/ranking.py", "backends/cpu/kernels.py", "core/keys.py"):
        with (installed.package / name).open("a") as source:
            source.write("# changed\n")
        found.append(installed(code)[0])
    assert len(set(found)) == 4
