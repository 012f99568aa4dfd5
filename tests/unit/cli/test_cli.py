"""The command line, run as a user runs it: arguments in, text, files and exit code out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import typer
from safetensors.numpy import load_file, save_file

import ksieve
from flat_calls import ask, plan_of
from ksieve import PageTable, RowBounds
from ksieve.cli.app import app
from ksieve.core.device import DEVICES
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.core.table import BY_NAME, names
from ksieve.files import stream
from ksieve_lab import workloads
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.writer import CaptureWriter

WIDTH, K = 50_000, 64
LENGTHS = np.array([50_000, 40_000, 30, 0, -5, 60_000, 64, 49_999], np.int32)


@pytest.fixture(scope="module")
def matrix():
    return np.random.default_rng(7).standard_normal((LENGTHS.size, WIDTH), dtype=np.float32)


@pytest.fixture(scope="module")
def capture(matrix, tmp_path_factory):
    path = tmp_path_factory.mktemp("captures") / "scores.safetensors"
    with CaptureWriter(path, *matrix.shape, k=K) as writer:
        writer.write(matrix, LENGTHS)
    return path


# ---- select ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("name", ["indices.npy", "indices.safetensors"])
def test_select_writes_an_exact_answer(run, capture, matrix, tmp_path, name, backend):
    out = tmp_path / name
    ran = run("select", capture, "--k", 100, "--out", out, "--backend", backend)
    assert (ran.code, ran.err) == (0, "")
    assert str(out) in ran.out
    indices = np.load(out) if out.suffix == ".npy" else load_file(out)["indices"]
    assert indices.dtype == np.int32
    assert indices.shape == (LENGTHS.size, 100)
    assert ksieve.verify(matrix, LENGTHS, indices).ok
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_select_takes_the_captures_own_k(run, capture, tmp_path):
    assert run("select", capture, "--out", tmp_path / "i.npy").code == 0
    assert np.load(tmp_path / "i.npy").shape == (LENGTHS.size, K)


def test_select_says_when_no_k_is_known(run, tmp_path):
    with CaptureWriter(tmp_path / "bare.safetensors", 1, 4) as writer:
        writer.write(np.zeros((1, 4), np.float32))
    ran = run("select", tmp_path / "bare.safetensors")
    assert ran.code == 2
    assert ran.err.startswith("error: --k: got nothing; takes an int from 1 to 1048576")


@pytest.mark.parametrize("suffix", [".csv", ".npy"])
def test_statistics_equal_the_api_call(run, capture, matrix, tmp_path, suffix):
    path = tmp_path / f"stats{suffix}"
    ran = run("select", capture, "--stats-out", path, "--policy", "paper-64", "--backend", "cpu")
    assert ran.code == 0
    _, expected = ask(matrix, LENGTHS, k=K, policy="paper-64", stats=True)
    if suffix == ".npy":
        np.testing.assert_array_equal(np.load(path), expected.raw)
    else:
        header, *lines = path.read_text().splitlines()
        assert header == ",".join(("row", *STATS_COLUMNS))
        table = np.array([[int(cell) for cell in line.split(",")] for line in lines])
        np.testing.assert_array_equal(table[:, 0], np.arange(LENGTHS.size))
        np.testing.assert_array_equal(table[:, 1:], expected.raw)


def test_statistics_table_counts_every_row(run, capture):
    ran = run("select", capture, "--stats", "--policy", "direct", "--backend", "cpu")
    cells = [line.split() for line in ran.out.splitlines()]
    # Lengths of 30, 0, -5 and k are short rows; the other four are longer than k and never sampled.
    assert ["short", "4", "50.0%", "0.000"] in cells
    assert ["direct", "4", "50.0%", "1.000"] in cells
    assert cells[-1][:3] == ["all", "8", "100.0%"]


def test_blocks_smaller_than_the_capture_give_the_same_sets(capture, matrix):
    parts: list[tuple[int, np.ndarray]] = []
    seen: list[int] = []
    with Capture(capture) as source:
        result = stream.select(
            source,
            K,
            lambda begin, indices: parts.append((begin, indices.copy())),
            backend="cpu",
            return_stats=True,
            block_bytes=3 * 4 * WIDTH,
            progress=seen.append,
        )
    assert [begin for begin, _ in parts] == [0, 3, 6]
    assert seen == [0, 3, 6, 8]
    assert ksieve.verify(matrix, LENGTHS, np.concatenate([p for _, p in parts])).ok
    assert isinstance(result.stats, Stats)
    expected = [ask(matrix[b : b + 3], LENGTHS[b : b + 3], k=K, stats=True)[1].raw for b in (0, 3, 6)]
    np.testing.assert_array_equal(result.stats.raw, np.concatenate(expected))


def test_an_empty_capture_selects_nothing(run, tmp_path):
    with CaptureWriter(tmp_path / "empty.safetensors", 0, 5):
        pass
    ran = run("select", tmp_path / "empty.safetensors", "--k", 3, "--out", tmp_path / "i.npy", "--stats")
    assert ran.code == 0
    assert np.load(tmp_path / "i.npy").shape == (0, 3)


# ---- verify ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sentinel", [-1, 2**31 - 1])
def test_verify_accepts_an_exact_answer(run, capture, matrix, tmp_path, sentinel):
    """Of any file type: `test_arrays_of_every_file_type`."""
    indices = ksieve.topk(matrix, LENGTHS, k=K).astype(np.int64)
    indices[indices == -1] = sentinel
    np.savez(tmp_path / "answer.npz", other=np.zeros(3), indices=indices)
    ran = run("verify", capture, tmp_path / "answer.npz", "--sentinel", sentinel)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("exact: all 8 rows checked, k=64")


def test_verify_refutes_with_exit_code_1_and_the_row(run, capture, matrix, tmp_path):
    indices = ksieve.topk(matrix, LENGTHS, k=K)
    left_out = int(indices[1, 5])
    worst = int(np.argmin(matrix[1, :40_000]))
    indices[1, 5] = worst
    np.save(tmp_path / "wrong.npy", indices)
    ran = run("verify", capture, tmp_path / "wrong.npy")
    assert ran.code == 1
    assert "NOT exact: 1 of 8 rows failed" in ran.out
    assert f"row 1 (length 40000), not largest: slot 5 holds position {worst}" in ran.out
    assert f"position {left_out} with score" in ran.out


def test_verify_asks_which_array_is_meant(run, capture, tmp_path):
    arrays = {"a": np.zeros((8, 2), np.int32), "b": np.zeros((8, 2), np.int32)}
    save_file(arrays, tmp_path / "two.safetensors")
    np.savez(tmp_path / "two.npz", **arrays)
    for name in ("two.safetensors", "two.npz"):
        ran = run("verify", capture, tmp_path / name)
        assert ran.code == 2
        assert "--name: got nothing; takes an array of " in ran.err and "'a'" in ran.err and "'b'" in ran.err
    assert run("verify", capture, tmp_path / "two.safetensors", "--name", "a").code == 1


def test_verify_compares_k(run, capture, tmp_path):
    np.save(tmp_path / "i.npy", np.zeros((8, 3), np.int32))
    ran = run("verify", capture, tmp_path / "i.npy", "--k", 4)
    assert (ran.code, ran.err.strip()) == (2, "error: --k: got 4; takes 3, the width of indices")


def test_verify_says_which_k_it_judged_and_where_it_comes_from(run, capture, matrix, tmp_path):
    answer = tmp_path / "i.npy"
    np.save(answer, ksieve.topk(matrix, LENGTHS, k=16))
    ran = run("verify", capture, answer)
    last = f"k=16: from the columns of {answer}; {capture} is meant for k={K}"
    assert (ran.code, ran.out.splitlines()[-1]) == (0, last)
    assert json.loads(run("verify", capture, answer, "--json").out)["k_from"] == "columns"
    ran = run("verify", capture, answer, "--k", 16)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, f"k=16: as --k requires; {capture} is meant for k={K}")
    found = json.loads(run("verify", capture, answer, "--k", 16, "--json").out)
    assert (found["k"], found["k_from"], found["file_k"]) == (16, "--k", K)
    np.save(answer, ksieve.topk(matrix, LENGTHS, k=K))
    assert run("verify", capture, answer).out.splitlines()[-1] == f"k={K}: from the columns of {answer}"


@pytest.mark.parametrize("options", [(), ("--k", "0"), ("--k", "3")])
def test_an_answer_without_columns_is_none(run, capture, tmp_path, options):
    np.save(tmp_path / "i.npy", np.zeros((8, 0), np.int32))
    ran = run("verify", capture, tmp_path / "i.npy", *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: INDICES: got ") and "shape (8, 0); takes an array with a column" in ran.err


# ---- synth, import, info ---------------------------------------------------------------------------------


def test_synth_writes_what_it_was_asked_for(run, tmp_path):
    ask = ("--rows", 5, "--width", 3000, "--lengths", "ragged", "--seed", 3, "--k", 10, "--dtype", "bfloat16")
    ran = run("synth", "relu-plateau", tmp_path / "a.safetensors", *ask)
    assert ran.code == 0
    assert run("synth", "relu_plateau", tmp_path / "b.safetensors", *ask).code == 0
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    with Capture(tmp_path / "a.safetensors") as source:
        assert (source.rows, source.width, source.dtype, source.k) == (5, 3000, "bfloat16", 10)
        assert (source.lengths < 3000).any()
    assert "5 rows x 3,000 bfloat16" in ran.out


def test_synth_lists_producers_and_lengths(run):
    ran = run("synth", "--list")
    assert ran.code == 0
    assert all(name in ran.out for name in (*workloads.PRODUCERS, *workloads.LENGTHS))


# ---- plan ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", *DEVICES, "H200"])
def test_plan_prints_the_api_plan(run, device):
    """Also of a GPU that is not here."""
    asked = {"rows": 512, "width": 70_000, "k": 33, "dtype": "float16", "policy": "direct", "device": device}
    ran = run("plan", *(word for name, value in asked.items() for word in (f"--{name}", value)))
    assert (ran.code, ran.out.strip()) == (0, str(plan_of(**asked)))


# ---- options of the table --------------------------------------------------------------------------------


def test_commands_take_the_options_of_the_table():
    """Whatever is added to the table."""
    commands: Any = typer.main.get_command(app).commands
    judged = names(lambda option: option.judged and option.where != "Segments")
    plain = names(lambda option: option.name in judged and not option.shape and option.where != "RowBounds")
    for command, taken in {"plan": tuple(BY_NAME), "verify": judged, "select": ("lengths", *plain)}.items():
        params = {each.name: each for each in commands[command].params if each.name in BY_NAME}
        assert tuple(params) == taken, command
        for name, each in params.items():
            option = BY_NAME[name]
            negated = option.kind == "flag" and option.neutral
            assert (each.opts, each.secondary_opts) == ([f"--{'no-' * negated}{name.replace('_', '-')}"], [])
            assert option.meaning.removeprefix("whether ").lower() in each.help.lower()


@pytest.mark.parametrize(
    "asked",
    [
        "--no-largest --nan highest --sorted value --tie-break low",
        "--block-size 4 --force-first 1 --force-last 2 --forced-extra --expand 4",
    ],
)
def test_an_answer_is_selected_and_verified_with_options(run, tmp_path, matrix, asked):
    np.save(tmp_path / "s.npy", matrix)
    out = tmp_path / "i.npy"
    assert run("select", tmp_path / "s.npy", "--k", 9, "--out", out, *asked.split()).code == 0
    ran = run("verify", tmp_path / "s.npy", out, *asked.split())
    assert (ran.code, ran.out.startswith("exact: all 8 rows checked, k=9")) == (0, True)
    assert run("verify", tmp_path / "s.npy", out).code != 0, "without the options"


def test_arrays_of_options_are_read_from_files(run, tmp_path, matrix):
    arrays = {"lengths": LENGTHS[::2], "starts": np.arange(8, dtype=np.int64) + 5}
    answer = ksieve.topk(matrix, arrays["lengths"], k=9, bounds=RowBounds(arrays["starts"], next_n=2))
    for name, array in (arrays | {"scores": matrix, "answer": answer}).items():
        np.save(tmp_path / f"{name}.npy", array)
    given = [word for name in arrays for word in (f"--{name}", tmp_path / f"{name}.npy")]
    checked = ("verify", tmp_path / "scores.npy", tmp_path / "answer.npy")
    assert run(*checked, *given, "--next-n", 2).code == 0
    assert "--lengths: got shape (4,); takes shape (8,)" in run(*checked, *given).err
    ran = run(*checked, *given, "--next", tmp_path / "scores.npy")
    assert (ran.code, ran.err.startswith("error: --next: got windows")) == (2, True)


def test_a_plan_has_the_options_that_it_was_asked_for(run):
    asked = ("plan", "--rows", 64, "--width", "4k", "--device", "h200")
    ran = run(
        *asked, "--max-k", 20, "--lengths", "int64", "--page-table", "--page-size", 64, "--no-largest", "--values"
    )
    made = ksieve.plan(
        rows=64, width=4096, max_k=20, device="h200", lengths="int64", transform=PageTable(True, 64), largest=False,
        values=True,
    )  # fmt: skip
    assert (ran.code, ran.out.strip()) == (0, str(made))
    assert run(*asked).err.startswith("error: --k: got nothing; takes an int")
    assert run(*asked, "--k", 3, "--page-size", 64).err.startswith("error: --page-table: got nothing; takes it with")
    assert run(*asked, "--k", 3, "--block-size", 999).err.startswith("error: --block-size: got 999; takes")
    assert "'--tie-break': 'best' is not one of" in run(*asked, "--k", 3, "--tie-break", "best").err


# ---- demo ------------------------------------------------------------------------------------------------


def test_demo_reports_routes_traffic_times_and_exactness(run, tmp_path, matrix):
    with CaptureWriter(tmp_path / "d.safetensors", 4, WIDTH, k=K) as writer:
        writer.write(matrix[:4], np.full(4, WIDTH, np.int32))
    ran = run("demo", tmp_path / "d.safetensors")
    assert (ran.code, ran.err) == (0, "")
    assert "exact: all 4 rows checked" in ran.out
    cells = [line.split() for line in ran.out.splitlines()]
    assert any(line[:2] == ["all", "4"] for line in cells)
    compared = next(line for line in cells if line[:1] == ["numpy.argpartition"])
    assert compared[-1] == "exact"
    assert compared[-2] in ("faster", "slower")
    if "torch is not installed" not in ran.out:
        assert next(line for line in cells if line[:1] == ["torch.topk(sorted=False)"])[-1] == "exact"


def test_demo_fails_when_the_answer_is_wrong(run, capture, monkeypatch):
    right = ksieve.api.topk

    def wrong(*arguments, **options):
        answer = right(*arguments, **options)
        indices = answer[0] if options.get("return_stats") else answer
        indices[0, 0] = indices[0, 1]
        return answer

    monkeypatch.setattr("ksieve_lab.demo.api.topk", wrong)
    ran = run("demo", capture)
    assert ran.code == 1
    assert "NOT exact" in ran.out


# ---- names in messages -----------------------------------------------------------------------------------


def test_messages_name_options_in_place_of_arguments(run, tmp_path, capture):
    source, out = tmp_path / "x.npy", tmp_path / "x.safetensors"
    np.save(source, np.zeros((3, 4)))
    assert run("import", source, out).err.strip().endswith("or float64 rounded on request: --dtype float32")
    np.savez(tmp_path / "two.npz", a=np.zeros((3, 4), np.int32), b=np.zeros((3, 4), np.int32))
    answer = tmp_path / "two.npz"
    assert run("verify", capture, answer).err.startswith("error: --name: got nothing; takes an array of ")
    assert run("study", capture, "--device", "z").err.startswith("error: --device: got 'z'; takes cpu, cuda")
    assert run("replay", "--prompt", "0").err == "error: --prompt: got 0; takes an int of at least 1, or 0 with " + (
        "--decode-steps\n"
    )


# ---- the program as a whole ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_matrix_as_people_have_it(run, tmp_path, matrix, suffix):
    path, out = tmp_path / f"s{suffix}", tmp_path / "i.npy"
    if suffix == ".npy":
        np.save(path, matrix)
    else:
        save_file({"other": matrix[:, :9].copy(), "logits": matrix}, path)
    lengths = tmp_path / "lengths.npy"
    np.save(lengths, LENGTHS.astype(np.int64))
    given = ("--lengths", lengths, *(() if suffix == ".npy" else ("--tensor", "logits")))
    ran = run("select", path, "--k", K, "--out", out, *given)
    assert (ran.code, ran.err) == (0, "")
    assert ksieve.verify(matrix, LENGTHS, np.load(out)).ok
    assert run("verify", path, out, *given).code == 0
    assert run("verify", path, out, *given[2:]).code == 1, "without its lengths"
    wrong = run("select", path, "--k", 3, "--lengths", out, *given[2:])
    assert "--lengths: got dtype int32, shape (8, 64); takes integers" in wrong.err
    ran = run("select", path, *given[:2], "--k", 3, "--tensor", "x")
    assert (ran.code, ran.err.startswith("error: --tensor: got 'x'")) == (2, True)
    # Files of the same rows: lengths are those of both.
    further = ("--next", path, *given)
    assert run("select", path, "--k", K, "--out", out, *further).code == 0
    assert run("verify", path, out, *further).code == 0
    assert ksieve.verify(np.hstack([matrix, matrix]), LENGTHS, np.load(out)).ok


def test_an_output_is_not_the_file_of_lengths(run, tmp_path, matrix):
    np.save(tmp_path / "s.npy", matrix)
    np.save(tmp_path / "n.npy", LENGTHS)
    ran = run("select", tmp_path / "s.npy", "--k", 3, "--lengths", tmp_path / "n.npy", "--out", tmp_path / "n.npy")
    assert (ran.code, "takes another file than --lengths" in ran.err) == (2, True)


def test_debug_shows_the_traceback_and_keeps_the_exit_code(run, tmp_path, monkeypatch):
    assert "Traceback" not in run("info", tmp_path / "absent").err
    monkeypatch.setenv("KSIEVE_DEBUG", "1")
    ran = run("info", tmp_path / "absent")
    assert ran.code == 2
    assert ran.err.startswith("Traceback") and ran.err.splitlines()[-1].startswith("error: ")


def test_version_and_help(run):
    assert run("--version").out == f"ksieve {ksieve.__version__}\n"
    for command in ("select", "verify", "plan", "synth", "info", "import", "demo"):
        ran = run(command, "--help")
        assert ran.code == 0
        assert f"ksieve {command}" in ran.out
        assert "[OPTIONS]" in ran.out and "Example" in ran.out  # a bracket is text, not markup


def test_the_program_starts_without_heavy_libraries():
    code = "import sys, ksieve.cli; print([m for m in ('numba', 'torch', 'matplotlib', 'cuda') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
