"""The ladder of examples/ladder: every rung on the emulator, judged by `ksieve.verify`, and what it reads."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from conftest import ROOT

import cases
import ksieve
from emulator import build
from ksieve.backends.cuda.jit.compile import Sources, compile_kernel
from ksieve.backends.cuda.jit.spec import ARCHITECTURES
from ksieve.backends.cuda.runtime import driver as cuda_driver
from ksieve.core.errors import ArgumentError, KsieveError

pytestmark = [pytest.mark.extended, pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")]

_spec = importlib.util.spec_from_file_location("ladder_run", ROOT / "examples" / "ladder" / "run.py")
ladder = sys.modules["ladder_run"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ladder)
RUNGS = {rung.name: rung for rung in ladder.RUNGS}
every_rung = pytest.mark.parametrize("rung", RUNGS.values(), ids=RUNGS)
INF = np.inf


@pytest.fixture(scope="module")
def emulator():
    return ladder.Emulator()


def check(emulator, rung, scores, lengths, k):
    """Run a rung twice, in two orders of its threads; the reads of each row."""
    scores = np.ascontiguousarray(scores, np.float32)
    lengths = np.ascontiguousarray(lengths, np.int32)
    before, lengths_before = scores.tobytes(), lengths.tobytes()
    for _ in range(2):
        answer = emulator.launch(rung, scores, lengths, k)
        verdict = ksieve.verify(scores, lengths, answer.indices, k=k)
        assert verdict, f"{verdict}, seed {emulator.seed - 1}"
        # What a kernel counts is all that it asks memory for, but for the length, which each thread loads once.
        assert emulator.bytes_read == 4 * (int(answer.reads.sum()) + ladder.THREADS * len(scores))
    assert (scores.tobytes(), lengths.tobytes()) == (before, lengths_before)
    return answer.reads


def full(scores):
    return scores, np.full(len(scores), scores.shape[1])


def hard_rows(width=1537):
    """Rows whose k-th score is difficult to find, by what they hold."""
    rng = np.random.default_rng(11)
    normal = rng.standard_normal((3, width)).astype(np.float32)
    rows = cases.hard_rows(width, 64, 11) | {
        "last bits": np.float32(1) + np.arange(width, dtype=np.float32)[::-1] * np.float32(2.0**-23),
        "any bits": rng.integers(0, 1 << 32, width, dtype=np.uint32).view(np.float32),
        "best ones where samples are": normal[0] + np.where(np.arange(width) % 128 == 0, 50, 0),
        "worst ones where samples are": normal[1] - np.where(np.arange(width) % 32 == 0, 50, 0),
        "a cluster far above": normal[2] * np.float32(1e-30) + np.where(np.arange(width) < 100, np.float32(1e30), 0),
    }
    return {name: np.asarray(row, np.float32) for name, row in rows.items()}


@every_rung
@pytest.mark.parametrize("k", [1, 31, 64, 700, 1536])
def test_hard_rows_are_exact(emulator, rung, k):
    check(emulator, rung, *full(np.stack(list(hard_rows().values()))), k)


@every_rung
@pytest.mark.parametrize("width", [1, 2, 31, 33, 255, 257, 1000, 2047])
def test_every_length_of_any_width(emulator, rung, width):
    rng = np.random.default_rng(width)
    k = max(width // 3, 1)
    lengths = [-5, 0, 1, k - 1, k, k + 1, width - 1, width, width + 1, 2**31 - 1, -(2**31)]
    scores = rng.standard_normal((len(lengths), width)).astype(np.float32)
    for row, length in zip(scores, lengths, strict=True):
        row[max(length, 0) :] = INF  # better than what is valid, and not to be read
    check(emulator, rung, scores, lengths, k)
    check(emulator, rung, scores, lengths, width + 7)


@every_rung
def test_more_scores_than_candidates_fit(emulator, rung):
    """The whole row, or nearly, is wanted, and k is more than rungs 3 and 4 can store."""
    scores = np.random.default_rng(3).standard_normal((3, 6000)).astype(np.float32)
    scores[1] = np.round(scores[1])
    check(emulator, rung, scores, [6000, 5999, 5001], 5000)


@every_rung
def test_zeros_of_either_sign_are_one_value(emulator, rung):
    """Samples see +0.0 alone, and the k-th score is -0.0: a float reaches +0.0 whose key has to do so, too."""
    scores = np.full((1, 4096), -0.0)
    scores[0, :: 4096 // ladder.THREADS] = 0.0
    check(emulator, rung, *full(scores), ladder.THREADS + 44)


def test_a_list_that_is_just_full_is_not_recovered(emulator):
    rung = RUNGS["v3_sampled"]
    for length, recovered in ((4096, False), (4097, True)):
        reads = check(emulator, rung, np.zeros((1, 4100)), [length], 100)  # all of one value: all are admitted
        assert (reads[0] > 2 * length) == recovered


def test_a_column_that_is_just_full_is_not_recovered(emulator):
    """Every score of one thread is selected, and of the others hardly any is admitted."""
    for column, recovered in ((16, False), (17, True)):
        width = column * ladder.THREADS
        scores = np.random.default_rng(column).random((1, width), np.float32)
        scores[0, 5 :: ladder.THREADS] += 10
        reads = check(emulator, RUNGS["v4_filtered"], *full(scores), column)
        assert (reads[0] > 2 * width) == recovered


def test_reads_are_what_each_rung_says(emulator):
    random = full(np.random.default_rng(7).standard_normal((4, 4096)))
    aimed = hard_rows(4096)
    rescued = full(np.stack([aimed["best ones where samples are"], aimed["equal"], aimed["few values"]]))

    def reads(name, given, k=64):
        return check(emulator, RUNGS[name], *given, k) / given[0].shape[1]

    for name, exactly in (("v1_sort", 1), ("v2_radix", 4), ("v5_resident", 1)):
        assert (reads(name, random) == exactly).all()
        assert (reads(name, rescued) == exactly).all()
    for name, view in (("v3_sampled", 1 / 32), ("v4_filtered", 256 / 4096)):
        assert (reads(name, random) == 1 + view).all()
        assert (reads(name, rescued) <= 5 + view).all()
        assert (reads(name, rescued) > 2).any()  # a guess that fails is recovered, not believed
    assert reads("v3_sampled", random, 2000).max() < 1.1


@every_rung
def test_rows_without_a_choice_are_not_read(emulator, rung):
    assert not check(emulator, rung, np.zeros((3, 100)), [-1, 50, 100], 100).any()


def test_rows_that_do_not_fit_are_refused(emulator):
    for name in ("v1_sort", "v5_resident"):
        width = RUNGS[name].widest + 1
        with pytest.raises(ArgumentError, match=f"{width} scores.*{name}"):
            emulator.launch(RUNGS[name], np.zeros((1, width), np.float32), np.ones(1, np.int32), 1)


@pytest.mark.parametrize("name", ["v1_sort", "v5_resident"])
def test_the_widest_row_fits(emulator, name):
    width = RUNGS[name].widest
    scores = np.random.default_rng(1).standard_normal((1, width)).astype(np.float32)
    check(emulator, RUNGS[name], scores, [width], 100)


# ---- the runner


def test_the_runner_prints_a_line_for_every_rung(capsys):
    assert ladder.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[4:]] == list(RUNGS)
    assert not any("not exact" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert [float(line.split()[-3]) for line in lines[4:]] == [1.0, 4.0, 1.03, 1.06, 1.0]


@pytest.mark.parametrize("arguments", [[], ["--cuda"]])
def test_what_is_missing_is_said(capsys, monkeypatch, arguments):
    monkeypatch.setattr(build, "missing", lambda: "no C compiler cc")

    def no_driver():
        raise KsieveError("no NVIDIA driver was found")

    monkeypatch.setattr(cuda_driver, "get", no_driver)
    assert ladder.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert ("NVIDIA driver" if arguments else "no C compiler cc: install GCC") in said.err
    assert "Traceback" not in said.err


@every_rung
@pytest.mark.parametrize("arch", [ARCHITECTURES[0], ARCHITECTURES[-1]])
def test_a_rung_compiles_for_gpus_and_fits_them_all(rung, arch):
    pytest.importorskip("cuda.core")
    used = compile_kernel(rung.spec(arch), Sources.read(ladder.LADDER)).resources
    assert used.spill_stores == used.spill_loads == 0
    assert used.static_shared <= 48 << 10
    assert used.static_shared + rung.shared(rung.widest or 0) + 1024 <= 99 << 10, "what a CTA may have on any GPU"
