"""Scores that another thread rewrites during the call: any index or -1 may come out, never anything else."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from flat_calls import ask
from ksieve.backends.cpu import kernels, scratch
from ksieve.backends.cpu.ranking import emit_last_of_row
from ksieve.backends.cpu.sieve import tighten
from ksieve.core.keys import order_key
from ksieve.model.guess import BLOCK

pytestmark = pytest.mark.extended

RUBBISH = 0x7F7F7F7F


def _memory(row: np.ndarray, k: int, room: int = 0) -> np.ndarray:
    """Scratch memory of a row of which k are selected."""
    memory = np.empty(kernels.bytes_needed(room, None), np.uint8)
    memory[scratch.ASKED :][: 8 * 9].view(np.int64)[:] = row.ctypes.data, 0, row.size, 4, 0, k, 0, room, 0
    return memory


def test_ties_that_are_gone_leave_the_slots_as_they_were() -> None:
    """`emit_last_of_row` reads the row once more; of five equal scores one is left."""
    row = np.full(200, -1, np.float32)
    row[150] = 1
    out = np.arange(10, dtype=np.int32)
    memory = _memory(row, 10)
    emit_last_of_row(out.ctypes.data, 5, int(order_key([1.0])[0]), memory.ctypes.data)
    assert out.tolist() == [0, 1, 2, 3, 4, 150, 6, 7, 8, 9]


def test_more_ties_than_before_stay_within_their_slots() -> None:
    row = np.ones(200, np.float32)
    out = np.full(12, -7, np.int32)
    memory = _memory(row, 10)
    emit_last_of_row(out.ctypes.data, 5, int(order_key([1.0])[0]), memory.ctypes.data)
    assert out.tolist() == [-7] * 5 + [199, 198, 197, 196, 195] + [-7, -7]


def test_keys_that_passed_a_cutoff_and_are_worse_now_lose_nothing() -> None:
    """Of a store that looked full of good scores, few are: enough must stay for a selection."""
    room, k = 60, 10
    memory = _memory(np.empty(0, np.float32), k, room)
    index = memory[scratch.INDEX :][: 4 * (room + BLOCK)].view(np.int32)
    key = memory[scratch.INDEX + index.nbytes :][: index.nbytes].view(np.uint32)
    for good in (0, 3, 9):
        key[:100] = 5000
        key[:good] = 10
        index[:100] = np.arange(100)
        stay = tighten(100, 100, 0, memory.ctypes.data)
        assert k <= stay <= room // 2
        assert sorted(index[:stay].tolist())[:k] == list(range(k))
        assert (key[:good] == 10).all() and (key[good:stay] == 5000).all()


CALLS = [
    {},
    {"tie_break": "high"},
    {"tie_break": "low", "sorted": True},
    {"policy": "direct", "tie_break": "high"},
    {"values": True, "sorted": True},
]
CALLS_EACH = 1000


@pytest.mark.parametrize(
    ("width", "k", "options"),
    [*((40_000, 500, asked) for asked in CALLS), (3000, 40, {}), (3000, 40, CALLS[2])],
    ids=str,
)
def test_every_slot_holds_an_index_while_scores_change(width: int, k: int, options: dict) -> None:
    rng = np.random.default_rng(7)
    states = [
        rng.standard_normal((8, width), dtype=np.float32),
        np.where(rng.random((8, width)) < 0.4, np.float32(1), np.float32(0)),
        np.sort(rng.random((8, width), dtype=np.float32), axis=1),
        np.full((8, width), np.nan, np.float32),
    ]
    scores, stop = states[0].copy(), threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            for state in states:
                scores[:] = state

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        out = np.empty((8, k), np.int32)
        for _ in range(CALLS_EACH):
            out[...] = RUBBISH
            ask(scores, k=k, out=out, **options)
            assert ((out >= -1) & (out < width)).all(), np.unique(out[(out < -1) | (out >= width)])
    finally:
        stop.set()
        writer.join()
