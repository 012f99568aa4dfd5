"""The writer of every file: drafts, their names and modes, links, pipes, and what interrupts it."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ksieve.core import atomic
from ksieve.core.errors import ArgumentError
from ksieve_lab.traces.replay import EXAMPLE


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_target_that_becomes_a_folder_is_named(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(IsADirectoryError) as caught, atomic.replacing(path) as file:
        file.write(b"1")
        path.mkdir()
        (path / "y").touch()
    assert caught.value.filename == str(path)
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit])
def test_whatever_is_raised_removes_the_draft(tmp_path, raised):
    (tmp_path / "x").write_text("old")
    with pytest.raises(raised), atomic.replacing(tmp_path / "x") as file:
        file.write(b"new")
        assert len(names(tmp_path)) == 2
        raise raised
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "old"


def test_an_error_on_the_way_to_disk_leaves_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("old")

    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left") as caught:
        atomic.write_text(tmp_path / "x", "new")
    assert caught.value.filename == str(tmp_path / "x")
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "old"


def test_drafts_are_private_and_their_names_cannot_be_planted(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("old")
    (tmp_path / "x").chmod(0o600)
    (tmp_path / "other").write_text("another's")
    with atomic.replacing(tmp_path / "x"):
        (draft,) = set(names(tmp_path)) - {"x", "other"}
        assert stat.S_IMODE((tmp_path / draft).stat().st_mode) == 0o600
    # Even a name that is guessed is not written through.
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda size: draft.split("-")[1].split(".")[0])
    (tmp_path / draft).symlink_to("other")
    with pytest.raises(ArgumentError, match="File exists"):
        atomic.write_text(tmp_path / "x", "new")
    assert (tmp_path / "other").read_text() == "another's"


def test_the_end_of_the_process_removes_drafts_and_a_fork_does_not(tmp_path):
    code = """if True:
        import os, sys
        from ksieve.core.atomic import Draft
        draft = Draft(sys.argv[1])
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        print(len(os.listdir(os.path.dirname(sys.argv[1]))))
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert names(tmp_path) == []


@pytest.mark.extended
def test_pipes_are_written_in_place(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe.json").read_text()))
    reader.start()
    EXAMPLE.save(tmp_path / "pipe.json")
    reader.join(30)
    assert '"ksieve_trace"' in got[0]
    code = "import sys; from ksieve.core.atomic import write_text; print('a', flush=True); write_text(sys.argv[1], 'b')"
    done = subprocess.run([sys.executable, "-c", code, "/dev/stdout"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"a\nb"


def test_a_file_that_standard_output_is_redirected_to_holds_the_result_alone(tmp_path):
    code = (
        "from ksieve.core.atomic import write_text; print('a', flush=True); write_text('/dev/stdout', 'b'); print('c')"
    )
    with (tmp_path / "x").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_text() == "b"


def test_names_that_cannot_be_written(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for bad in (*(tmp_path / name for name in ("loop", "x" * 300, "none/x", "loop/x")), "a\0b", ""):
        with pytest.raises(ArgumentError, match=r"^path: got '"):
            atomic.write_text(bad, "")
    longest = tmp_path / ("x" * 255)
    atomic.write_text(longest, "y")
    assert longest.read_text() == "y"


def test_a_dangling_link_gets_its_file(tmp_path):
    (tmp_path / "link").symlink_to("later")
    atomic.write_text(tmp_path / "link", "y")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "later").read_text() == "y"


def test_names_that_the_locale_could_not_decode_are_written(tmp_path):
    atomic.write_text(tmp_path / "x", "é".encode().decode("ascii", "surrogateescape") + "\udcff")
    assert (tmp_path / "x").read_text(encoding="utf-8") == "é\\xff"
