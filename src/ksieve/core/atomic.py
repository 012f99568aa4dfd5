"""Atomic file writes; ksieve writes every file through this module.

A file is written as a draft, under a random name in the folder of its target, and renamed onto the target when it is
complete and on disk. If writing ends before that (an error, Ctrl-C, a full disk, the end of the process), the draft is
removed and an existing target stays as it was. A reader therefore sees either the old file or the new one.

- A symbolic link as the target is followed: the file that it points to is replaced, and the link stays.
- An existing file keeps its mode, and its owner where the process may set it. A new file gets mode 0666 less the umask.
  A file that may not be written is refused, although a rename would succeed.
- Pipes, devices and the process's own descriptors (``/dev/stdout``, ``/dev/fd/3``) are written directly: they have no
  contents to protect.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from ksieve.core.errors import ArgumentError
from ksieve.core.paths import as_path, look, reason
from ksieve.core.text import bytes_text

_LINKS = 40
"""Symbolic links that are followed, as Linux does."""


class Draft:
    """A file that is being written; `publish` renames it onto its target, `discard` removes it.

    Prefer `replacing`. This class is for writers that stay open across calls. A draft that is neither published nor
    discarded is removed at garbage collection or at interpreter exit.

    Parameters
    ----------
    path : path
        The target. Its folder must exist.
    seekable : bool
        Refuse pipes, devices and open descriptors, most of which can only be appended to.
    size : int
        Bytes that will be written, where they are known: the disk must have room for them.
    folders : bool
        Make the folder, and those above it, where they are missing.

    Attributes
    ----------
    path : Path
        The target, as given.
    file : binary file
        The open draft. Its errors name the target.

    Raises
    ------
    ArgumentError
        If `path` is no path of a file that can be written, or the disk has less room than `size`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, seekable: bool = False, size: int = 0, folders: bool = False
    ) -> None:
        self.path = as_path(path)
        found = look(self.path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise ArgumentError("path", f"{str(path)!r}, a folder", "the name of a file")
        self._draft: Path | None = None
        self._process = os.getpid()
        try:
            in_place = (found is not None and not stat.S_ISREG(found.st_mode)) or _descriptor(self.path) is not None
            if in_place and seekable:
                got = f"{str(path)!r}, a pipe or device"
                raise ArgumentError("path", got, "a regular file: it is not written in order")
            handle = _open_in_place(self.path) if in_place else self._open_draft(found, size, folders)
            self.file = cast(BinaryIO, io.BufferedWriter(_Raw(handle, str(self.path))))
        except BaseException as error:
            self._unlink()
            if not isinstance(error, OSError):
                raise
            takes = "the path of a file that can be written"
            raise ArgumentError("path", f"{str(path)!r} ({reason(error)})", takes) from error

    def _open_draft(self, found: os.stat_result | None, size: int, folders: bool) -> int:
        place = Path(os.path.realpath(self.path))
        if place.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self.path))
        if folders:
            place.parent.mkdir(parents=True, exist_ok=True)
        if not place.parent.is_dir():
            raise ArgumentError("path", repr(str(self.path)), "a path in a folder that exists")
        disk = shutil.disk_usage(place.parent)
        if size > disk.free and disk.total:  # some network file systems know neither
            free = f"a disk with as much room: this one has {bytes_text(disk.free)}"
            raise ArgumentError("path", f"{str(self.path)!r} for {bytes_text(size)}", free)
        if found is not None:
            # Raises if the file is write-protected, as writing in place would.
            os.close(os.open(self.path, os.O_WRONLY))
        # Not derived from the target's name, which may already have the greatest length of a file name.
        draft = place.with_name(f".ksieve-{secrets.token_hex(12)}.part")
        # Registered before the file exists, so that an interrupt in between leaves no file.
        self._remove = weakref.finalize(self, _remove, draft, self._process)
        self._place, self._draft = place, draft
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(draft, flags, 0o666 if found is None else 0o600)
        if found is not None and hasattr(os, "fchown"):
            try:
                with contextlib.suppress(PermissionError):
                    os.fchown(handle, found.st_uid, found.st_gid)
                os.fchmod(handle, stat.S_IMODE(found.st_mode) & 0o777)
            except BaseException:
                os.close(handle)
                raise
        return handle

    def publish(self) -> None:
        """Flush the file to disk and rename it onto the target. On an error the draft is removed."""
        try:
            self.file.flush()
            if self._draft is None:
                self.file.close()
                return
            try:
                _sync(self.file.fileno())
                self.file.close()
                self._draft.replace(self._place)
            except OSError as error:
                raise OSError(error.errno, error.strerror or str(error), str(self.path)) from error
            self._remove.detach()
            self._draft = None
            _sync_folder(self._place.parent)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Close the file and remove the draft; no effect after `publish`."""
        try:
            # Closing flushes the buffer, which fails on a full disk.
            with contextlib.suppress(OSError, ValueError):
                self.file.close()
        finally:
            self._unlink()

    def _unlink(self) -> None:
        if self._draft is not None:
            _remove(self._draft, self._process)
            self._remove.detach()  # not before: after an interrupt in between it removes the file


@contextmanager
def replacing(path: str | os.PathLike[str], **how: Any) -> Iterator[BinaryIO]:
    """Write a file in a ``with`` block: the target is replaced when the block ends without an error, else left alone.

    `path`, `how`: as `Draft` takes them. Raises `ArgumentError` as `Draft` does, and `OSError`, which names `path`, if
    the disk fills up.
    """
    draft = Draft(path, **how)
    try:
        yield draft.file
    except BaseException:
        draft.discard()
        raise
    draft.publish()


def write_bytes(path: str | os.PathLike[str], data: bytes, *, folders: bool = False) -> None:
    """Write a whole file atomically, as `replacing`."""
    with replacing(path, size=len(data), folders=folders) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str, *, folders: bool = False) -> None:
    """Write a whole UTF-8 text file atomically, as `replacing`.

    Surrogates that stand for undecodable bytes of file names are decoded as UTF-8 where possible, else escaped.
    """
    data = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").encode("utf-8")
    write_bytes(path, data, folders=folders)


class _Raw(io.FileIO):
    """A raw file whose write errors name the target; those of the system name no file."""

    def __init__(self, handle: int, target: str) -> None:
        super().__init__(handle, "w")
        self._target = target

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = self._target
            raise


def _descriptor(path: Path) -> int | None:
    """Return the number of the process's descriptor that a path such as /dev/stdout resolves to, else None."""
    current = path.absolute()
    for _ in range(_LINKS):
        folder = Path(os.path.realpath(current.parent))
        if current.name.isdecimal() and re.fullmatch(rf"/proc/{os.getpid()}/(task/\d+/)?fd", str(folder)):
            return int(current.name)
        if not current.is_symlink():
            return None
        current = folder / current.readlink()
    return None


def _open_in_place(path: Path) -> int:
    number = _descriptor(path)
    if number is None:
        return os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
    # Buffered prints to the same descriptor are flushed first; a duplicate shares the file position.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream.fileno() == number:
                stream.flush()
    return os.dup(number)


def _remove(draft: Path, process: int) -> None:
    # A forked child must not remove its parent's draft when it exits.
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            draft.unlink()


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system does not support fsync
            raise


def _sync_folder(folder: Path) -> None:
    """Flush a rename to disk, on systems that can open folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
