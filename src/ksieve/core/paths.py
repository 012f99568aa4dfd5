"""Paths that callers hand over: checked in words before a file is opened."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from ksieve.core.errors import ArgumentError, kind_of


def as_path(path: object, name: str = "path") -> Path:
    """Return the path that an argument holds; ArgumentError if it holds none."""
    if isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str):
        return Path(path)
    raise ArgumentError(name, kind_of(path), "the path of a file")


def look(path: Path, name: str = "path") -> os.stat_result | None:
    """Return the status of what a path leads to, or None if nothing is there.

    Raises `ArgumentError` if the system refuses the path: too long, with a NUL, a loop of links, in a folder that may
    not be searched.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ArgumentError(name, f"{str(path)!r} ({reason(error)})", "a path that the system accepts") from None


def unreadable(path: Path) -> str | None:
    """Say why a path is no file that can be read; None if it is one. Pipes and devices, which may not end, are none."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except (OSError, ValueError) as error:
        return reason(error)
    if not stat.S_ISREG(mode):
        return "not a file"
    return None if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder; False for a path that the system refuses."""
    try:
        return path.is_dir()
    except OSError:
        return False


def reason(error: OSError | ValueError) -> str:
    """Words of an error about a path, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_utf8(path: str | os.PathLike[str], *, errors: str = "strict") -> str:
    """Read a text file; ValueError, which says why, if it cannot be read or is not UTF-8."""
    if fault := unreadable(Path(path)):
        raise ValueError(fault)
    try:
        return Path(path).read_text(encoding="utf-8", errors=errors)
    except OSError as error:
        raise ValueError(reason(error)) from error


def same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths name one file, links resolved; the files need not exist."""
    try:
        with contextlib.suppress(OSError):
            return Path(one).samefile(other)
        return os.path.realpath(one) == os.path.realpath(other)
    except ValueError:  # a path with a NUL names no file
        return False
