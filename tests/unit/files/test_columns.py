"""Rows that are read by tiles of columns, and rows that lie in several captures."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ksieve
from ksieve import ArgumentError
from ksieve.files import stream
from ksieve.files.scores import JoinedColumns
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.writer import CaptureWriter, write_factors

WIDTHS, ROWS, K = (300, 7, 1000), 40, 24


def matrices(dtype=np.float32):
    """Scores, all different, and lengths of the parts of 40 rows; the first rows have few valid scores, or none."""
    rng, made = np.random.default_rng(3), []
    for width in WIDTHS:
        lengths = rng.integers(-2, width + 3, ROWS).astype(np.int32)
        lengths[:3] = 0, 1, 5
        scores = rng.permutation(ROWS * width).reshape(ROWS, width)
        made.append(((scores % 2048).astype(dtype), lengths))
    return made


def write(folder, parts):
    paths = []
    for number, (scores, lengths) in enumerate(parts):
        paths.append(folder / f"{number}.safetensors")
        with CaptureWriter(paths[-1], *scores.shape, str(scores.dtype), k=K) as writer:
            writer.write(scores, lengths)
    return paths


def whole(parts):
    """The same rows without the gaps between their valid scores, and where each score comes from."""
    width = sum(WIDTHS)
    scores, places = np.full((ROWS, width), np.nan, np.float32), np.full((ROWS, width), -1)
    lengths, before = np.zeros(ROWS, np.int32), 0
    for part, valid in parts:
        for r, count in enumerate(np.clip(valid, 0, part.shape[1])):
            at = slice(lengths[r], lengths[r] + count)
            scores[r, at], places[r, at] = part[r, :count], np.arange(before, before + count)
            lengths[r] += count
        before += part.shape[1]
    return scores, lengths, places


def check(found, parts):
    scores, lengths, places = whole(parts)
    back = np.full_like(found, -1)
    for r, row in enumerate(found):
        used = row[row >= 0]
        back[r, : used.size] = np.searchsorted(places[r, : lengths[r]], used)
        assert (places[r, back[r, : used.size]] == used).all()
    ksieve.verify(scores, lengths, back, k=K).raise_if_failed()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_captures_of_the_same_rows(tmp_path, dtype):
    parts = matrices(dtype)
    captures = [Capture(path) for path in write(tmp_path, parts)]
    source, found, seen = JoinedColumns(captures), np.empty((ROWS, K), np.int32), []

    def sink(begin, indices):
        found[begin : begin + len(indices)] = indices

    # 80 columns of 32 rows at a time
    result = stream.select(source, K, sink, block_bytes=4 * 32 * 80, progress=seen.append)
    assert (seen, result.plan.problem.width, result.stats) == ([0, 32, 40], 80, None)
    check(found, parts)


def test_select_next(tmp_path, run):
    parts = matrices()
    first, *others = write(tmp_path, parts)

    def select(*words):
        return run("select", first, *words)

    def verify(*words):
        return run("verify", first, *words)

    further = [word for path in others for word in ("--next", path)]
    code, out, _ = select(*further, "--out", tmp_path / "found.npy")
    assert code == 0
    assert f"selected k={K} of {ROWS} rows x {sum(WIDTHS):,} on cpu" in out
    found = np.load(tmp_path / "found.npy")
    check(found, parts)
    code, out, err = verify(tmp_path / "found.npy", *further)
    assert (code, f"exact: all {ROWS} rows checked" in out) == (0, True), out + err
    # A position behind the valid scores of the first capture, in front of those of the second.
    row = next(r for r, valid in enumerate(parts[0][1]) if 5 < valid < WIDTHS[0])
    found[row, 0] = parts[0][1][row]
    np.save(tmp_path / "wrong.npy", found)
    code, out, _ = verify(tmp_path / "wrong.npy", *further)
    assert (code, f"NOT exact: 1 of {ROWS} rows failed" in out) == (1, True), out
    assert verify(tmp_path / "found.npy", *further[:2])[0] == 1, "in another order, or not all of them"
    code, _, err = verify(tmp_path / "found.npy", "--next", tmp_path / "none.safetensors")
    assert (code, "none.safetensors: no such file" in err) == (2, True)
    code, out, _ = select(*further, "--json")
    assert (code, json.loads(out)["next"]) == (0, [str(path) for path in others])
    table = tmp_path / "rows.csv"
    for words in (("--policy", "direct"), ("--stats",), ("--stats-out", table), ("--backend", "reference")):
        code, _, err = select(*further, *words)
        assert (code, err.startswith(f"error: {words[0]}: got ")) == (2, True)
        assert ("with tiles of columns" if "reference" in words else "--next or rows of more than") in err
    assert not table.exists()
    with pytest.raises(ArgumentError, match=r"^backend: got 'reference' with tiles of columns"):
        stream.select(JoinedColumns([Capture(first)]), K, lambda begin, found: None, backend="reference")
    few = tmp_path / "few.safetensors"
    with CaptureWriter(few, 2, 9, k=K) as writer:
        writer.write(np.zeros((2, 9), np.float32), np.full(2, 9, np.int32))
    code, _, err = select("--next", few)
    assert (code, "few.safetensors: 2 rows of float32; takes files of 40 rows of float32" in err) == (2, True)
    code, _, err = select("--next", few, "--out", tmp_path / "few.safetensors")
    assert (code, "another file than --next" in err) == (2, True)


def test_a_tile_has_the_bits_of_its_rows(tmp_path):
    rng = np.random.default_rng(1)
    q, keys = rng.standard_normal((5, 3, 8)).astype(np.float32), rng.integers(-9, 9, (700, 8)).astype(np.int8)
    weights, scale = rng.random((5, 3)).astype(np.float32), rng.random(700).astype(np.float32)
    path = tmp_path / "f.safetensors"
    write_factors(path, q=q, keys=keys, weights=weights, key_scale=scale, lengths=np.full(5, 700, np.int32))
    with Capture(path) as capture, Capture(write(tmp_path, matrices())[0]) as scores:
        for source in (capture, scores):
            assert source.tile(1, 4, 130, 299).tobytes() == source.rows_block(1, 4)[:, 130:299].tobytes()
        assert capture.tile(0, 1, 690, 701).shape == (1, 10)
