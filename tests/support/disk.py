"""A disk without room, and a folder of all users, for a part of a test."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def file_sizes() -> Iterator[Callable[[int], None]]:
    """Yield a function after which no file of this process grows past the bytes given: writes fail with EFBIG.

    The limit ends with the block. It has to end before the test does: pytest writes its progress to a file as well.
    """
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def folder_of_all_users() -> Iterator[Path]:
    """Yield a new folder that every user may read; skips the test where temporary files are private."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        if not all(folder.stat().st_mode & 0o001 for folder in place.parents):
            pytest.skip("temporary files are private here")
        yield place
