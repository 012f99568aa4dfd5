"""What callers hand over: arrays of no dimension, integers of 64 bits, and calls at the end."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import ksieve
from flat_calls import ask
from ksieve.core.errors import ArgumentError
from ksieve_lab import oracle

ROW = np.random.default_rng(1).standard_normal(300).astype(np.float32)
K = 5


def in_torch(array):
    return pytest.importorskip("torch").from_numpy(np.asarray(array))


LIBRARIES = pytest.mark.parametrize("library", [np.asarray, in_torch], ids=["numpy", "torch"])


@LIBRARIES
@pytest.mark.parametrize("own", [-1, 0, 3, K, K + 9])
def test_one_row_takes_an_array_k_of_no_dimension(library, own):
    k = library(np.array(own, np.int32))
    found = np.asarray(ksieve.topk(library(ROW), k=k, max_k=K, sorted=True))
    used = min(max(own, 0), K)
    assert found.tolist() == [*np.argsort(-ROW, kind="stable")[:used], *[-1] * (K - used)]
    assert ksieve.verify(library(ROW), None, found, k=k, sorted=True).ok
    assert not ksieve.verify(library(ROW), None, found[::-1].copy(), k=k, sorted=True).ok or used == 0


@LIBRARIES
def test_every_vector_of_one_row_has_no_dimension(library):
    numbers = {"starts": 7, "ends": 250, "offsets": 1000}
    given = {name: library(np.array(value, np.int32)) for name, value in numbers.items()}
    counts = library(np.array(-7, np.int32))
    found = np.asarray(ask(library(ROW), k=K, sorted=True, counts=counts, **given))
    assert found.tolist() == (np.argsort(-ROW[7:250], kind="stable")[:K] + 1007).tolist()
    assert int(counts) == K
    table = library(np.arange(300, dtype=np.int32)[None] + 20)
    mapped = ksieve.topk(
        library(ROW), k=K, sorted=True, transform=ksieve.PageTable(table, row_to_request=library(np.array(0, np.int32)))
    )
    assert np.asarray(mapped).tolist() == (np.argsort(-ROW, kind="stable")[:K] + 20).tolist()


def test_an_array_k_of_no_dimension_is_one_row_s_alone():
    with pytest.raises(ArgumentError, match=r"^max_k: got None; takes an int"):
        ksieve.topk(ROW, k=np.array(3, np.int32))
    with pytest.raises(ArgumentError, match=r"^max_k: got 5, which is not taken unless k is an array"):
        ksieve.topk(ROW[None], k=np.array(3, np.int32), max_k=K)


@LIBRARIES
@pytest.mark.parametrize("bound", ["lengths", "ends"])
@pytest.mark.parametrize("bits", [np.int32, np.int64])
def test_starts_of_64_bits(library, bound, bits):
    """Beside bounds of either size; numbers whose low half says something else are clamped."""
    scores = np.random.default_rng(2).standard_normal((5, 40)).astype(np.float32)
    starts = np.array([-(2**40) + 3, 0, 7, 39, 2**40 + 1], np.int64)
    bounds = np.array([40, 3, 20, 40, 40], bits)
    call = {"starts": starts, bound: bounds, "sorted": True}
    found = ask(library(scores), k=K, **{n: library(v) if n != "sorted" else v for n, v in call.items()})
    oracle.assert_served(scores, K, call, {"indices": np.asarray(found)})


AT_EXIT = """
import builtins, sys
import numpy as np, ksieve

class Last:
    def __init__(self, call):
        self.call = call
    def __del__(self):
        try:
            self.call()
        except ksieve.BackendError as error:
            print(error)

scores = np.zeros((2, 9), np.float32)
running = ksieve.Running(2, 3, 9)
CALLS = (
    lambda: ksieve.topk(scores, k=3), lambda: ksieve.select(scores, k=3, values=True),
    lambda: ksieve.plan(rows=2, width=9, k=3), lambda: ksieve.verify(scores, None, np.zeros((2, 3), np.int32)),
    lambda: ksieve.Running(2, 3, 9), lambda: running.push(scores, 0), lambda: running.finish(),
)
builtins.last = [Last(call) for call in CALLS]  # outlives every module
"""


def test_calls_while_python_shuts_down_are_backend_errors():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    said = "Python is shutting down and imports no module any more: call ksieve before that"
    assert done.stdout.splitlines() == [said] * 7
