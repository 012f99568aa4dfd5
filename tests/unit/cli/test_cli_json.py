"""``--json`` prints one JSON object on stdout and nothing else; ``--quiet`` prints nothing that is no error."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flat_calls import ask
from ksieve_lab import demo
from ksieve_lab.captures.writer import CaptureWriter
from ksieve_lab.cli.app import tree
from parts import but_for

ROWS, WIDTH, K = 4, 40_000, 32


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A working folder with a capture, an exact answer and a wrong one."""
    scores = np.random.default_rng(5).standard_normal((ROWS, WIDTH), dtype=np.float32)
    with CaptureWriter(tmp_path / "s.safetensors", ROWS, WIDTH, k=K, metadata={"title": "é\x1b[31m", "rows": "9"}) as w:
        w.write(scores, np.array([WIDTH, WIDTH, 30_000, -3], np.int32))
    # With statistics, so that no command below is the first to compile what counts them, and says so.
    indices, _ = ask(scores, np.array([WIDTH, WIDTH, 30_000, -3], np.int32), k=K, stats=True)
    np.save(tmp_path / "i.npy", indices)
    indices[1, 0] = indices[1, 1]
    np.save(tmp_path / "wrong.npy", indices)
    np.save(tmp_path / "scores.npy", scores)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "cache"))
    small = getattr(demo, "SYNTHETIC", {}) | {"rows": 2, "width": 40_000}
    monkeypatch.setattr(demo, "SYNTHETIC", small, raising=False)
    return tmp_path


COMMANDS: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = {
    ("plan", "--rows", "4", "--width", "64k", "--k", "8"): (0, {"family": "cpu", "threads": int}),
    ("plan", "--rows", "4", "--width", "64k", "--k", "8", "--device", "h200"): (0, {"workspace_bytes": int}),
    ("info", "s.safetensors"): (
        0,
        {"rows": ROWS, "width": WIDTH, "k": K, "lengths": {"least": 0, "most": WIDTH, "sum": 110_000},
         "metadata": dict, "kind": "scores", "bytes": int},
    ),
    ("verify", "s.safetensors", "i.npy"): (0, {"exact": True, "rows": ROWS, "k": K, "failed": 0, "first": None}),
    ("verify", "s.safetensors", "wrong.npy"): (1, {"exact": False, "failed": 1, "reasons": {"duplicate": 1}}),
    ("select", "s.safetensors", "--out", "o.npy"): (0, {"rows": ROWS, "indices": "o.npy", "routes": None}),
    ("select", "s.safetensors", "--stats"): (0, {"routes": dict, "select_seconds": float}),
    ("synth", "random_normal", "r.safetensors", "--rows", "2", "--width", "1k"): (0, {"rows": 2, "width": 1024}),
    ("import", "scores.npy", "c.safetensors"): (0, {"rows": ROWS, "width": WIDTH}),
    ("demo",): (0, {"libraries": dict, "rows": 2, "k": 2048}),
    ("doctor",): (0, {"works": True, "packages": dict}),
    ("cache",): (0, {"entries": 0, "bytes": 0}),
    ("cache", "--clear"): (0, {"removed": 0}),
    ("replay", "--example", "--rounds", "1"): (0, {"bench": "replay", "results": dict}),
    ("bench", "cpu", "--shapes", "2x33000", "--rounds", "1", "--only", "compared", "--k", "100"): (
        0, {"bench": "cpu", "results": dict},
    ),
}  # fmt: skip


SHORT = [words for words in COMMANDS if words[0] != "replay"]


@pytest.mark.parametrize("words", but_for(SHORT, COMMANDS), ids=" ".join)
def test_json_is_one_object_and_nothing_else(there, run, words):
    code, expected = COMMANDS[words]
    ran = run(*words, "--json")
    assert (ran[0], ran[2]) == (code, "")
    found = json.loads(ran[1], parse_constant=lambda name: pytest.fail(name))
    assert isinstance(found, dict)
    for name, value in expected.items():
        assert type(found[name]) is value if isinstance(value, type) else found[name] == value, name
    assert ran[1].isascii() and "\x1b" not in ran[1]


def test_a_refuted_answer_as_json(there, run):
    _, out, _ = run("verify", "s.safetensors", "wrong.npy", "--json")
    first = json.loads(out)["first"]
    assert (first["row"], first["length"], first["reason"], first["slots"]) == (1, WIDTH, "duplicate", [0, 1])
    assert set(first["worst"]) == set(first["best_left"]) == {"position", "score"}


@pytest.mark.parametrize(
    "words", but_for(SHORT, [w for w in COMMANDS if w[0] not in ("plan", "info", "cache")]), ids=" ".join
)
def test_quiet_prints_nothing(there, run, words):
    assert run(*words, "--quiet") == (COMMANDS[words][0], "", "")


def test_errors_stay(there, run):
    for mode in ("--quiet", "--json"):
        code, out, err = run("verify", "s.safetensors", "absent.npy", mode)
        assert (code, out) == (2, "") and err.startswith("error: ")
    # The mode of one command does not outlive it.
    assert run("info", "s.safetensors")[1] != ""


def test_study_prints_its_result_file(there, run):
    pytest.importorskip("matplotlib")
    code, out, _ = run("study", "s.safetensors", "--rows", "2", "--out", "st", "--json")
    assert code == 0
    assert json.loads(out)["bench"] == "study"


def test_every_command_that_prints_facts_takes_json():
    def walk(group, path):
        found: dict[str, set[str]] = {}
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                found |= walk(command, f"{path}{name} ")
            else:
                found[path + name] = {option for p in command.params for option in p.opts}
        return found

    commands = walk(tree(), "")
    assert [name for name, options in commands.items() if "--json" not in options] == ["plot"]
    assert [name for name, options in commands.items() if "--quiet" not in options] == ["plan", "cache", "info"]
