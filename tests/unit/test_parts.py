"""Every test of the CPU suite is of `make test` or of `make test-all`, and each says what it leaves to the other."""

from __future__ import annotations

import pytest

from conftest import ROOT

pytest_plugins = ["pytester"]

SUITE = """
import pytest

def test_plain():
    pass

def test_of_torch():
    pytest.importorskip("torch")

@pytest.mark.extended
def test_long():
    pass

@pytest.mark.gpu
def test_of_a_device():
    pass
"""
WHOLE = """
import pytest

absent = pytest.importorskip("absent_library")

def test_of_an_absent_library():
    pass
"""


@pytest.mark.parametrize(
    ("part", "workers", "ran", "lines"),
    [
        (
            "first",
            "2",
            {"test_plain", "test_of_torch"},
            [
                "make test-all: 1 tests and 1 files that need an extra*",
                "make test-gpu: 1 tests that need a CUDA device",
            ],
        ),
        (
            "rest",
            "0",
            {"test_of_torch", "test_long"},
            ["make test: 1 tests that no extra changes", "not here: 1 skipped, absent_library is not installed"],
        ),
    ],
)
def test_parts(pytester: pytest.Pytester, part: str, workers: str, ran: set[str], lines: list[str]) -> None:
    pytester.makeini(f"[pytest]\npythonpath = {ROOT / 'tests' / 'support'}\nmarkers =\n  gpu\n  extended\n")
    pytester.makeconftest("pytest_plugins = ['parts']")
    pytester.makepyfile(test_suite=SUITE, test_whole=WHOLE)
    done = pytester.runpytest_subprocess("--part", part, "-n", workers, "-v", "-p", "no:cacheprovider")
    text = done.stdout.str()
    assert {
        name for name in ("test_plain", "test_of_torch", "test_long", "test_of_a_device") if f"::{name}" in text
    } == ran
    done.stdout.fnmatch_lines(lines)
    assert done.ret == 0
