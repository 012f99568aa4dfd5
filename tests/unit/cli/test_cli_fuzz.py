"""Random command lines: none but a refuting verify ends with 1, none in an internal error or a traceback."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ksieve
from ksieve.core.errors import BackendError
from ksieve_lab import demo
from ksieve_lab.captures.writer import CaptureWriter
from ksieve_lab.cli.app import main, tree

SEED, LINES = 30, 500
VALUES = (
    "", "0", "1", "2", "3", "-1", "7", "1k", "2**4", "²", "٣", "nan", "inf", "1e3", "9" * 30, "9" * 5000, "2**63", "-",
    "--", "-x", "\x1b[31m", "[red]", "[/]", "a$\\frac{$", "é", "\udcff", "cpu", "cuda", "cuda:0", "cuda:²", "h200",
    "auto", "reference", "direct", "paper-64", "lines-64", "float16", "bfloat16", "float8", "none", "all", "causal",
    "ragged", "random_normal", "relu-plateau", "endpoint", "2x33", "0x0", "²x²", "x", ",", ";", "[]", "[{}]", "null",
    '[{"family":1}]', "s.safetensors", "i.npy", "wrong.npy", "i.npz", "cut.npz", "zip.npy", "text.json", "deep.json",
    "list.json", "empty", "absent", "folder", "folder/", "new/", "out.npy", "out.json", "out.safetensors", "out.csv",
    "/dev/null", "/dev/full", "/", ".", "x/" * 300, "n" * 300, "sm_90a", "sm_1", "resident_cluster", "quick", "decode",
)  # fmt: skip


def commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, command in group.commands.items():
        found += commands(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]
    return found


def words_of(rng: random.Random, command: Any) -> list[str]:
    """A command line that often parses: required parameters mostly there, values mostly of the right kind."""
    words: list[str] = []
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words += [rng.choice(VALUES)] if rng.random() < 0.95 else []
        elif rng.random() < (0.95 if parameter.required else 0.2) and "--help" not in parameter.opts:
            flagged = getattr(parameter, "is_flag", False)
            words += [rng.choice(parameter.opts)] + ([] if flagged else [rng.choice(VALUES)])
    if rng.random() < 0.05:
        words.insert(rng.randrange(len(words) + 1), rng.choice(VALUES))
    return words


@pytest.mark.extended
def test_no_command_line_ends_with_1_or_in_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KSIEVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "SYNTHETIC", demo.SYNTHETIC | {"rows": 2, "width": 4096})
    scores = np.random.default_rng(5).standard_normal((20, 500), dtype=np.float32)
    with CaptureWriter("s.safetensors", 20, 500, k=4) as writer:
        writer.write(scores, np.full(20, 500, np.int32))
    indices = ksieve.topk(scores, k=4)
    np.save("i.npy", indices)
    np.savez("i.npz", indices=indices)
    data = Path("i.npz").read_bytes()
    Path("cut.npz").write_bytes(data[:100])
    Path("zip.npy").write_bytes(data)
    np.save("wrong.npy", np.zeros_like(indices))
    for name, text in (("text.json", "{"), ("deep.json", "[" * 5000), ("list.json", "[1]"), ("empty", "")):
        Path(name).write_text(text)
    Path("folder").mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise BackendError("not measured here")

    # What takes minutes or needs a GPU: its arguments are parsed, and its run is refused.
    for name in ("bench.cpu.run", "bench.ablation.run", "bench.chain.run", "traces.replay.run"):
        monkeypatch.setattr(f"ksieve_lab.{name}", refuse)
    monkeypatch.setattr("ksieve.backends.cuda.jit.build.needed", refuse)

    rng, listed = random.Random(SEED), commands(tree())
    codes = set()
    for _ in range(LINES):
        path, command = rng.choice(listed)
        words = [*path, *words_of(rng, command)]
        monkeypatch.setattr(sys, "argv", ["ksieve", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        text = capsys.readouterr()
        code = ended.value.code or 0
        assert code in (0, 2) or ((code == 1 and path == ("verify",) and "NOT exact" in text.out + text.err) or
                                  (code == 1 and path == ("verify",) and {"--quiet", "--json"} & set(words))), (
            SEED, words, code, text.err)  # fmt: skip
        assert "Traceback" not in text.err and "\x1b[31m" not in text.out + text.err, (SEED, words)
        assert code == 0 or path == ("verify",) or text.err.startswith(("error: ", " ", "\n", "Usage", "warning")), (
            words, text.err)  # fmt: skip
        codes.add(int(code))
    assert {0, 2} <= codes
