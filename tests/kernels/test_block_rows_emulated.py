"""Calls of `ksieve bench blocks --verify-rows` on emulated kernels: positions of a table, and whole blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuda_fakes import take_tensors
from emulator import build, driver
from ksieve import dispatch
from ksieve.planning.devices import DEVICES
from ksieve_lab.bench import block_rows

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present"),
]

KINDS = ("DeepSeek-V4.1, inside a table", "MiniMax-M3, pages")


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_exact(monkeypatch, name):
    kind = next(kind for kind in block_rows.KINDS if kind.name == name)
    monkeypatch.setattr(block_rows, "KINDS", (replace(kind, dtypes=kind.dtypes[-1:]),))
    monkeypatch.setattr(dispatch, "_fast_paths", {})
    emulated = driver.install(monkeypatch)
    take_tensors(monkeypatch, emulated)
    found = block_rows.verify_rows(32, device=replace(DEVICES["h200"], index=-1), where="cpu")
    assert found["exact"] and found["rows"] == 32, found["wrong"]
    assert emulated.bytes_read > 0, "a kernel has run"
