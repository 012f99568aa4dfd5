"""Exit code 1 means "refuted" and nothing else, and an error is one message, whatever goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import ksieve
from ksieve.cli import terminal
from ksieve_lab.captures.writer import CaptureWriter

ROWS, WIDTH, K = 6, 3000, 16
HOSTILE = {"title": "é\x1b]0;owned\x07\x1b[31m[red]x[/] [/]\u202e\n", "file": "forged", "a\x1b[2J[b]": ":warning:"}
ENV = {**os.environ, "PYTHONPATH": str(Path(ksieve.__file__).parents[1])}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures under hostile names, exact, wrong and damaged answers."""
    at = tmp_path_factory.mktemp("exits")
    scores = np.random.default_rng(3).standard_normal((ROWS, WIDTH), dtype=np.float32)
    lengths = np.full(ROWS, WIDTH, np.int32)
    for name in ("s", r"a$\frac{$", "é中", "[red]x[bold]"):
        with CaptureWriter(at / f"{name}.safetensors", ROWS, WIDTH, k=K, metadata=HOSTILE) as writer:
            writer.write(scores, lengths)
    indices = ksieve.topk(scores, k=K)
    np.save(at / "i.npy", indices)
    np.savez(at / "i.npz", indices=indices)
    wrong = indices.copy()
    wrong[0, 0] = wrong[0, 1]
    np.save(at / "wrong.npy", wrong)
    data = (at / "i.npz").read_bytes()
    (at / "cut.npz").write_bytes(data[: len(data) // 2])
    flipped = bytearray(data)
    flipped[120] ^= 0xFF
    (at / "flipped.npz").write_bytes(flipped)
    (at / "zip.npy").write_bytes(data)
    (at / "text.npy").write_text("hello")
    (at / "empty.npy").touch()
    for dtype in ("F8_E4M3", "F8_E5M2", "BF16"):
        size = ROWS * K * (2 if dtype == "BF16" else 1)
        header = json.dumps({"indices": {"dtype": dtype, "shape": [ROWS, K], "data_offsets": [0, size]}}).encode()
        (at / f"{dtype}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return at


def _default_signals() -> None:
    """Let signals that the caller of the tests ignores (``nohup``, a background job) reach the command."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ksieve_command(folder: Path, *arguments: str, env: dict[str, str] | None = None, **options) -> subprocess.Popen:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"} | options
    options.setdefault("preexec_fn", _default_signals)
    return subprocess.Popen([sys.executable, "-m", "ksieve", *arguments], cwd=folder, env=ENV | (env or {}), **options)


def ran(folder: Path, *arguments: str, **options) -> tuple[int, str, str]:
    process = ksieve_command(folder, *arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def is_one_message(err: str) -> bool:
    """One line that begins with ``error: ``, and further lines indented; no traceback, no control character."""
    first, *rest = err.rstrip("\n").split("\n")
    return first.startswith("error: ") and all(line.startswith("  ") for line in rest) and "Traceback" not in err


# ---- the answers ---------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_verdicts_and_damaged_files_have_codes_of_their_own(folder: Path) -> None:
    for answer, code in (("i.npy", 0), ("i.npz", 0), ("wrong.npy", 1)):
        assert ran(folder, "verify", "s.safetensors", answer)[0] == code, answer
    damaged = ["cut.npz", "flipped.npz", "zip.npy", "text.npy", "empty.npy", "absent.npy", "absent.safetensors", "."]
    for answer in [*damaged, "F8_E4M3.safetensors", "F8_E5M2.safetensors", "BF16.safetensors"]:
        code, out, err = ran(folder, "verify", "s.safetensors", answer)
        assert (code, out) == (2, ""), (answer, err)
        assert is_one_message(err), err
        assert answer in err


@pytest.mark.extended
def test_a_reader_that_leaves_is_neither_a_verdict_nor_a_message(folder: Path) -> None:
    for words in (("verify", "s.safetensors", "i.npy"), ("verify", "s.safetensors", "wrong.npy"), ("--help",),
                  ("select", "--help"), ("--version",), ("plan", "--rows", "1", "--width", "9", "--k", "1"),
                  ):  # fmt: skip
        reading, writing = os.pipe()
        os.close(reading)
        code, _, err = ran(folder, *words, stdout=writing)
        os.close(writing)
        assert (code, err) == (141, ""), words


@pytest.mark.extended
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_output_that_cannot_be_written(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        code, _, err = ran(folder, "verify", "s.safetensors", "i.npy", stdout=full)
        assert code == 2 and is_one_message(err) and "No space left" in err
        assert ran(folder, "info", "absent", stderr=full)[0] == 2


@pytest.mark.extended
def test_closed_streams_change_no_code(folder: Path) -> None:
    for command, code in (
        ("verify s.safetensors i.npy >&-", 0),
        ("verify s.safetensors wrong.npy >&- 2>&-", 1),
        ("verify s.safetensors absent.npy 2>&-", 2),
    ):
        done = subprocess.run(
            ["sh", "-c", f'"$0" -m ksieve {command}', sys.executable], cwd=folder, env=ENV, check=False
        )
        assert done.returncode == code, command


@pytest.mark.extended
def test_any_name_can_be_printed_under_any_locale(folder: Path, tmp_path: Path) -> None:
    paths = [str(folder / f"{name}.safetensors") for name in (r"a$\frac{$", "é中", "[red]x[bold]")]
    for path in paths:
        for words in (("info", path), ("select", path, "--out", "é.npy"), ("study", path, "--rows", "4", "--out", "é")):
            code, out, err = ran(tmp_path, *words, env=ASCII)
            assert code == 0, (words, err)
            assert out.isascii() and "\x1b" not in out
    assert ran(tmp_path, "info", str(folder / "é中"), env=ASCII)[0] == 2
    code, out, err = ran(tmp_path, "study", *paths, "--rows", "4", "--out", str(tmp_path / "study"))
    assert code == 0, err


def test_a_choice_that_is_none_is_reported_in_plain_words(folder: Path) -> None:
    code, _, err = ran(folder, "select", "s.safetensors", "--backend", "gpu")
    assert code == 2 and "'--backend': 'gpu' is not one of 'auto', 'cpu', 'reference', 'cuda'" in err


@pytest.mark.extended
@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_files_without_an_end_are_not_read(folder: Path) -> None:
    for words in (("plot", "/dev/zero"), ("bench", "gpu", "--scores", "factors:/dev/zero"), ("replay", "/dev/zero"),
                  ("info", "/dev/zero"), ("verify", "s.safetensors", "/dev/zero"), ("plan", "--rows", "1", "--width",
                  "99k", "--k", "1", "--policy", "/dev/zero")):  # fmt: skip
        code, out, err = ran(folder, *words)
        assert (code, out) == (2, "") and is_one_message(err), (words, err)


# ---- exceptions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "error: out of memory"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (EOFError("Ran out of input"), 70, "internal error: EOFError: Ran out of input"),
        (RuntimeError("no"), 70, "internal error: RuntimeError: no"),
        (RecursionError(), 70, "internal error: RecursionError"),
        (OSError(28, "No space left on device", "x.npy"), 2, "error: x.npy: No space left on device"),
        (PermissionError(13, "Permission denied", b"x\xff"), 2, r"error: x\udcff: Permission denied"),
        (SystemExit("text"), 2, "error: text"),
        (SystemExit(1), 2, ""),
        (SystemExit(143), 143, ""),
        (ModuleNotFoundError("No module named 'x'", name="x"), 2, "error: the Python package x is not installed"),
        (ksieve.BackendError("a\x1b[31m[/]\nerror: b"), 2, "error: a\\x1b[31m[/]\n  error: b"),
    ],
)
def test_whatever_is_raised_has_a_code_and_one_message(
    raised: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("ksieve.api.plan", fail)
    monkeypatch.setattr(sys, "argv", ["ksieve", "plan", "--rows", "1", "--width", "9", "--k", "1"])
    with pytest.raises(SystemExit) as ended:
        from ksieve_lab.cli.app import main

        main()
    text = capsys.readouterr()
    assert (ended.value.code, text.out) == (code, "")
    assert said in text.err
    assert text.err == "" or is_one_message(text.err) or code == 130
    assert (text.err == "") == (said == "")


PAUSED = """
import signal, sys
from contextlib import contextmanager
from ksieve.cli import terminal
from ksieve_lab.cli.app import main

@contextmanager
def progress(*_, **__):
    def update(done, *_):
        if done:
            print("written", flush=True)
            signal.pause()
    yield update

terminal.progress = progress
sys.argv = ["ksieve", *sys.argv[1:]]
main()
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "number", "said"),
    [(("import", "m.npy", "out.safetensors"), signal.SIGTERM, b""),
     (("select", "s.safetensors", "--out", "out.npy"), signal.SIGHUP, b""),
     (("select", "s.safetensors", "--out", "out.safetensors"), signal.SIGINT, b"interrupted\n")],
)  # fmt: skip
def test_a_command_that_a_signal_ends_leaves_the_older_file_and_no_draft(
    folder: Path, tmp_path: Path, words: tuple[str, ...], number: signal.Signals, said: bytes
) -> None:
    """And the code says which signal it was."""
    (tmp_path / "s.safetensors").write_bytes((folder / "s.safetensors").read_bytes())
    np.save(tmp_path / "m.npy", np.zeros((4, 1000), np.float32))
    (tmp_path / words[-1]).write_text("old")
    before = sorted(tmp_path.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED, *words], cwd=tmp_path, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=_default_signals,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == b"written\n"
    assert len(list(tmp_path.iterdir())) == len(before) + 1
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, said)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / words[-1]).read_text() == "old"


def test_an_ignored_signal_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    from ksieve.cli import exits

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            exits.run(lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert ended.value.code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# ---- text ----------------------------------------------------------------------------------------------------


def test_no_text_steers_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;t\x07\x9b31m[red]x[/] [/nothing] :warning: \u202e\u2028\ud800\x00"
    monkeypatch.setenv("COLUMNS", "300")
    for forced in (False, True):
        if forced:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("NO_COLOR", "1")
        terminal.say(evil)
        terminal.facts({evil: evil})
        terminal.table((evil, evil), [(evil, evil)], title=evil)
        terminal.note(evil)
        terminal.complain(evil)
        with terminal.progress(evil, 3, evil, waiting=evil) as update, terminal.status("x"):
            update(1)
        text = capsys.readouterr()
        kept = r"\x1b]0;t\x07\x9b31m[red]x[/] [/nothing] :warning: \u202e\u2028\ud800\x00"
        assert kept in text.out and kept in text.err
        assert "\x1b]" not in text.out + text.err
        assert not set(text.out) & set("\x07\x9b\u202e\u2028\ud800\x00")
    assert terminal.safe("a\nb\tc") == r"a\nb\tc"
    assert terminal.safe("é 层 a\nb", lines=True) == "é 层 a\nb"


def test_metadata_never_replaces_a_fact(folder: Path) -> None:
    _, out, _ = ran(folder, "info", "s.safetensors")
    assert out.startswith("file ")
    assert "s.safetensors (" in out.splitlines()[0]
    assert any(line.split()[:3] == ["metadata", "file", "forged"] for line in out.splitlines())


def test_every_exit_code_is_documented() -> None:
    from ksieve.cli import exits

    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d+) \| \w.+ \|$", page, re.MULTILINE)] == sorted(exits.Exit)
