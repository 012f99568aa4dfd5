"""Atomic file writes; ksieve writes every file through this module.

A file is written as a draft, under a random name in its target's folder. It is renamed onto the target when it is
complete and on disk. If writing ends earlier, by an error, Ctrl-C or a full disk, the draft is removed and an existing
target stays as it was. A reader therefore sees either the old file or the new one.

- A symbolic link as the target is followed: the file that it points to is replaced, and the link stays.
- An existing file keeps its mode, and its owner where the process may set it. A new file gets mode 0666 less the umask.
  A file that may not be written is refused, although a rename would succeed.
- Pipes and devices are written directly: they have no contents to protect.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ksieve.core.errors import ArgumentError
from ksieve.core.paths import as_path, look, reason


class Draft:
    """A file that is being written; `publish` renames it onto its target, `discard` removes it.

    Prefer `replacing`. This class is for writers that stay open across calls. A draft that is neither published nor
    discarded is removed at garbage collection or at interpreter exit.

    `path`: the target, whose folder must exist. `seekable`: refuse pipes and devices, most of which can only be
    appended to. `size`: bytes that will be written, where they are known: the disk must have room for them. `folders`:
    make the folder, and those above it, where they are missing. Raises `ArgumentError` if `path` is no path of a file
    that can be written, or the disk has less room than `size`. Its attribute `file` is the open draft.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, seekable: bool = False, size: int = 0, folders: bool = False
    ) -> None:
        self.path = as_path(path)
        found = look(self.path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise ArgumentError("path", f"{str(path)!r}, a folder", "the name of a file")
        in_place = found is not None and not stat.S_ISREG(found.st_mode)
        if in_place and seekable:
            raise ArgumentError(
                "path", f"{str(path)!r}, a pipe or device", "a regular file: it is not written in order"
            )
        self._draft: Path | None = None
        try:
            self.file = self.path.open("wb") if in_place else self._open_draft(found, size, folders)
        except BaseException as error:
            self._unlink()
            if not isinstance(error, OSError):
                raise
            takes = "the path of a file that can be written"
            raise ArgumentError("path", f"{str(path)!r} ({reason(error)})", takes) from error

    def _open_draft(self, found: os.stat_result | None, size: int, folders: bool) -> BinaryIO:
        self._place = place = Path(os.path.realpath(self.path))
        if folders:
            place.parent.mkdir(parents=True, exist_ok=True)
        if not place.parent.is_dir():
            raise ArgumentError("path", repr(str(self.path)), "a path in a folder that exists")
        disk = shutil.disk_usage(place.parent)
        if size > disk.free and disk.total:  # some network file systems know neither
            from rich.filesize import decimal  # `import ksieve` brings NumPy alone

            free = f"a disk with as much room: this one has {decimal(disk.free)}"
            raise ArgumentError("path", f"{str(self.path)!r} for {decimal(size)}", free)
        if found is not None:
            # Raises if the file is write-protected, as writing in place would.
            os.close(os.open(self.path, os.O_WRONLY))
        # Not derived from the target's name, which may already have the greatest length of a file name.
        self._draft = place.with_name(f".ksieve-{secrets.token_hex(12)}.part")
        # Registered before the file exists, so that an interrupt in between leaves no file.
        self._remove = weakref.finalize(self, _remove, self._draft, os.getpid())
        mode = 0o666 if found is None else 0o600
        file = open(self._draft, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        if found is not None:
            with contextlib.suppress(PermissionError):
                os.chown(self._draft, found.st_uid, found.st_gid)
            self._draft.chmod(stat.S_IMODE(found.st_mode) & 0o777)
        return file

    def publish(self) -> None:
        """Flush the file to disk and rename it onto the target. On an error the draft is removed."""
        try:
            self.file.flush()
            if self._draft is not None:
                os.fsync(self.file.fileno())
                self.file.close()
                self._draft.replace(self._place)
                self._remove.detach()
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(self.path)) from error
        finally:
            self.discard()

    def discard(self, error: BaseException | None = None) -> None:
        """Close the file and remove the draft; no effect after `publish`. An `error` without a file gets the target."""
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self.path)
        try:
            # Closing flushes the buffer, which fails on a full disk.
            with contextlib.suppress(OSError, ValueError):
                self.file.close()
        finally:
            self._unlink()

    def _unlink(self) -> None:
        if self._draft is not None:
            self._remove()


@contextmanager
def replacing(path: str | os.PathLike[str], **how: Any) -> Iterator[BinaryIO]:
    """Write a file in a ``with`` block: the target is replaced when the block ends without an error, else left alone.

    `path`, `how`: as `Draft` takes them. Raises `ArgumentError` as `Draft` does, and `OSError`, which names `path`, if
    the disk fills up.
    """
    draft = Draft(path, **how)
    try:
        yield draft.file
    except BaseException as error:
        draft.discard(error)
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


def _remove(draft: Path, process: int) -> None:
    # A forked child must not remove its parent's draft when it exits.
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            draft.unlink()
