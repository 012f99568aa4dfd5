"""Cache of compiled CPU and CUDA code on disk: one file per entry, checked completely before use.

The name of an entry is a hash of its facts, the inputs that determine the code. The file holds a checksum, the facts
and the code. An entry is used only if the checksum and every fact agree. The file and its directories must belong to
the caller or root, and no other user may write them: code from another user never runs. If a check fails, the code is
compiled again, the entry is replaced where possible, and one warning is logged. Files are written under a temporary
name and renamed. If several processes need one entry, one process compiles and the others wait for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ksieve.core.errors import BackendError
from ksieve.core.paths import reason
from ksieve.core.text import parse_json

KINDS = ("cpu", "cuda")
"""Directories of the cache."""

PATIENCE = 120.0
"""Seconds that a process waits while another one compiles the same entry."""

MOST_BYTES = 64 << 20
"""Largest size of an entry in bytes; larger files are refused."""

_MAGIC = b"ksieve code 1 "
_SUFFIX = ".code"
_PARTIAL = ".partial-"
_OURS = re.compile(rf"[0-9a-f]{{32}}(\{_SUFFIX}|\.lock)|{re.escape(_PARTIAL)}.*")

_log = logging.getLogger(__name__)


class UnusableError(ValueError):
    """A file or directory of the cache is not used, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class Code:
    """Compiled code and the report of its compiler."""

    code: bytes
    report: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry on disk, as listed by `Store.entries`; for an unusable one `facts` is None."""

    path: Path
    size: int
    facts: dict[str, Any] | None


def cache_dir() -> Path:
    """Return the cache directory: ``$KSIEVE_CACHE_DIR``, or ``ksieve`` in the user's cache directory.

    For a user without a home directory it is in the directory of temporary files.
    """
    if chosen := os.environ.get("KSIEVE_CACHE_DIR"):
        return Path(os.path.expanduser(chosen)).absolute()  # noqa: PTH111 (of a user without a home, Path raises)
    import platformdirs

    with contextlib.suppress(RuntimeError):  # of a user without a home; older versions return a relative path
        found = platformdirs.user_cache_path("ksieve", appauthor=False)
        if found.is_absolute():
            return found
    return Path(tempfile.gettempdir(), f"ksieve-{os.geteuid()}")


@functools.cache
def say_once(text: str) -> None:
    """Log a warning that this process has not logged yet."""
    _log.warning("%s", text)


class Store:
    """The entries of one kind.

    `kind`: one of `KINDS`. `root`: the cache directory; `cache_dir` when omitted. Nothing is made before the first
    entry is kept.
    """

    def __init__(self, kind: str, root: Path | None = None) -> None:
        self.root = cache_dir() if root is None else root
        self.folder = self.root / kind

    def path(self, facts: Mapping[str, Any]) -> Path:
        """Return the file of an entry, whether it exists or not."""
        return self.folder / (hashlib.sha256(_canonical(facts).encode()).hexdigest()[:32] + _SUFFIX)

    def problem(self) -> str | None:
        """Reason why the directory is not used; None if it is used, or does not exist yet."""
        try:
            self._check()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return reason(error)
        return None

    def writable(self) -> bool:
        """Whether a file can be created in the directory, or the directory itself can be created."""
        place = self.folder
        try:
            while not place.exists() and place != place.parent:
                place = place.parent
            if not place.is_dir():
                return False
            # Permission bits do not show a read-only mount or a full disk: only writing a file does.
            with tempfile.TemporaryFile(dir=place):
                return True
        except OSError:
            return False

    def load(self, facts: Mapping[str, Any]) -> Code | None:
        """Return an entry's code, or None without a usable entry; the fault of an unusable one is logged once."""
        path = self.path(facts)
        try:
            self._check()
            found, code = _read(path)
            if _canonical(found) != _canonical(facts):
                raise UnusableError("it holds the code of something else")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            say_once(f"compiled code in {path} is not used ({reason(error)}); it is compiled again")
            return None
        return code

    def save(self, facts: Mapping[str, Any], code: Code) -> None:
        """Write an entry, replacing any file of its name.

        Raises `OSError` or `UnusableError` if the directory cannot be written, or other users can write it. No file is
        left then.
        """
        self._make()
        header = json.dumps({"facts": facts, "report": code.report})
        rest = header.encode() + b"\n" + code.code
        handle, name = tempfile.mkstemp(prefix=_PARTIAL, dir=self.folder)  # mode 0600, for any umask
        partial, place = Path(name), self.path(facts)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            partial.replace(place)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise

    def keep(self, facts: Mapping[str, Any], code: Code) -> None:
        """`save`, but a failure costs one warning."""
        try:
            self.save(facts, code)
        except (OSError, ValueError) as error:
            say_once(
                f"compiled kernels cannot be kept in {self.root} ({reason(error)}): set KSIEVE_CACHE_DIR to a "
                "directory that you alone can write; each process compiles its own"
            )

    @contextlib.contextmanager
    def alone(self, facts: Mapping[str, Any]) -> Iterator[None]:
        """Lock an entry: other processes that need it wait, and look for it again before they compile.

        If the lock is not acquired within `PATIENCE`, two processes compile the same code, which is harmless.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.path(facts).with_suffix(".lock"), mode=0o600)
        # Without a lock, `keep` reports the fault.
        with contextlib.suppress(OSError, ValueError, NotImplementedError):
            self._make()
            try:
                lock.acquire(timeout=0)
            except Timeout:
                say_once("another process compiles the same kernels; waiting for it")
                lock.acquire(timeout=PATIENCE)
        try:
            yield
        finally:
            if lock.is_locked:
                # Before the release, so that the next process locks a file that other processes can find.
                with contextlib.suppress(OSError):
                    Path(lock.lock_file).unlink()
                with contextlib.suppress(OSError):
                    lock.release()

    def obtain(self, facts: Mapping[str, Any], make: Callable[[], Code]) -> tuple[Code, bool]:
        """Return an entry's code, and whether it was compiled by this call."""
        if (found := self.load(facts)) is not None:
            return found, False
        with self.alone(facts):
            if (found := self.load(facts)) is not None:
                return found, False
            code = make()
            self.keep(facts, code)
            return code, True

    def entries(self) -> Iterator[Entry]:
        """List the entries on disk, with the unusable ones; none if the cache is absent or cannot be read."""
        used = self.problem() is None
        for path in self._files():
            if path.suffix != _SUFFIX or path.name.startswith(_PARTIAL):
                continue
            facts, size = None, 0
            try:
                size = path.lstat().st_size
                if used:
                    facts = _read(path)[0]
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                pass
            yield Entry(path, size, facts)

    def clear(self) -> int:
        """Remove every entry and all temporary files of interrupted processes; return the number removed.

        Only files and directories that this class writes are removed; other files in the directory stay.

        Raises `BackendError` if a file could not be removed; all others have been.
        """
        removed, failed = 0, []
        for path in self._files():
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                removed += 1
            except OSError as error:
                failed.append(f"{path}: {reason(error)}")
        if failed:
            raise BackendError(f"{len(failed)} files of the cache could not be removed; the first is {failed[0]}")
        return removed

    def _files(self) -> list[Path]:
        """Files and directories that this class may have written."""
        try:
            if not stat.S_ISDIR(self.folder.lstat().st_mode):
                return []
            return sorted(path for path in self.folder.iterdir() if _OURS.fullmatch(path.name))
        except (OSError, ValueError):
            return []

    def _check(self) -> None:
        """Raise `UnusableError` if another user could have changed the directory."""
        # The cache may be a symbolic link of the user, or /tmp itself, whose sticky bit protects its contents.
        for status, path, sticky in ((self.root.stat(), self.root, True), (self.folder.lstat(), self.folder, False)):
            if not stat.S_ISDIR(status.st_mode):
                raise UnusableError(f"{path} is no directory")
            _check_owner(status, str(path), sticky=sticky)

    def _make(self) -> None:
        # Parents are made explicitly: `Path.mkdir` would give them the mode of the umask.
        for place in (*reversed(self.folder.parents), self.folder):
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
        self._check()


def _canonical(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)


def _check_owner(status: os.stat_result, name: str, *, sticky: bool = False) -> None:
    """Raise `UnusableError` if a user other than the caller or root could change a file or directory."""
    if status.st_uid not in (0, os.geteuid()):
        raise UnusableError(f"{name} belongs to user {status.st_uid}, neither to you nor to root")
    if status.st_mode & 0o022 and not (sticky and status.st_mode & stat.S_ISVTX):
        raise UnusableError(f"{name} can be written by others: chmod go-w {name}")


@contextlib.contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[BinaryIO]:
    """Open a file to read; no pipe is waited for.

    Raises `OSError`, or `UnusableError` if it is no regular file, or another user could have written it.
    """
    with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnusableError("it is no regular file")
        _check_owner(status, str(path))
        yield file


def _read(path: Path) -> tuple[dict[str, Any], Code]:
    """Return the facts and the code of an entry.

    Raises `OSError` or `ValueError` if the entry is absent (FileNotFoundError), is damaged, or could have been written
    by another user.
    """
    with opened(path, os.O_NOFOLLOW) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise UnusableError(f"it is larger than {MOST_BYTES >> 20} MiB")
        content = file.read(MOST_BYTES + 1)
    head, _, rest = content.partition(b"\n")
    if head != _MAGIC + hashlib.sha256(rest).hexdigest().encode():
        raise UnusableError("it is damaged")
    header, _, code = rest.partition(b"\n")
    match parse_json(header):
        case {"facts": dict(facts), "report": str(report)}:
            return facts, Code(code, report)
    raise UnusableError("it is damaged")
