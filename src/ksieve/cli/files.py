"""Files that commands read and write."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core.atomic import replacing
from ksieve.core.errors import ArgumentError, FileFormatError
from ksieve.core.paths import look, reason, same_file
from ksieve.core.stats import STATS_COLUMNS, Stats
from ksieve.files.arrays import load_array
from ksieve.files.scores import Scores, open_scores, share_lengths

INDEX_SUFFIXES = (".npy", ".safetensors")

_ALIGNMENT = 64
"""Bytes of which the place of an array in a file is a multiple."""

Write = Callable[[int, NDArray[np.int32]], None]


@contextmanager
def open_parts(paths: Sequence[Path], tensor: str | None, lengths: Path | None) -> Iterator[list[Scores]]:
    """Open files that hold the columns of the same rows; `lengths` is a file of the valid scores of whole rows."""
    with ExitStack() as opened:
        parts = [opened.enter_context(open_scores(path, tensor)) for path in paths]
        if lengths is not None:
            share_lengths(parts, load_array(lengths, prefer="lengths"))
        yield parts


def target(option: str, path: str | Path, name: str, suffixes: Sequence[str]) -> Path:
    """Turn the path of an output option into the file to write, by one rule for every command.

    An existing folder, or a path that ends in a slash, gets a file called `name` inside it; the folder is made if
    need be. Anything else is the file itself, in a folder that exists.

    `option`, `path`: as the user wrote them; a `Path` has lost its last slash. `name`: default file name of the
    command; characters that are unsafe in file names become hyphens. `suffixes`: formats that can be written.

    Raises `ArgumentError` if the suffix names no known format, the file's folder is missing, or one of them cannot be
    written. Pipes and devices pass.
    """
    chosen = Path(path)
    if os.fspath(path).endswith(("/", os.sep)):
        try:
            chosen.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise ArgumentError(option, f"{path} ({reason(error)})", "a folder that can be made") from None
    found = look(chosen, option)
    if found is not None and stat.S_ISDIR(found.st_mode):
        chosen /= re.sub(r"[^\w.,+=-]+", "-", name)
    elif chosen.is_relative_to("/dev") or (found is not None and not stat.S_ISREG(found.st_mode)):
        return chosen
    if chosen.suffix not in suffixes:
        raise ArgumentError(option, str(chosen), f"a file name ending in {' or '.join(suffixes)}")
    place = Path(os.path.realpath(chosen))  # as `ksieve.core.atomic`, which makes its draft beside the file itself
    if not place.parent.is_dir():
        raise ArgumentError(option, str(chosen), "a file in a folder that exists")
    check_folder(option, place.parent)
    if place.is_file() and not os.access(place, os.W_OK):
        raise ArgumentError(option, f"{chosen}, which may not be written", "a file that can be written")
    return chosen


def optional_target(option: str, path: str | Path | None, name: str, suffixes: Sequence[str]) -> Path | None:
    """As `target`; None stays None."""
    return None if path is None else target(option, path, name, suffixes)


def check_folder(option: str, folder: Path | None) -> None:
    """Refuse a folder for output that cannot be written, or cannot be made; None passes."""
    if folder is None:
        return
    found = folder.absolute()
    while look(found, option) is None and found != found.parent:
        found = found.parent
    if not found.is_dir():
        raise ArgumentError(option, str(folder), f"a folder: {found} is none")
    if not os.access(found, os.W_OK | os.X_OK):
        what = "which" if found == folder.absolute() else f"and {found}"
        raise ArgumentError(option, f"{folder}, {what} may not be written", "a folder that can be written")


def keep_apart(outputs: Mapping[str, Path | str | None], inputs: Mapping[str, Path | str | None]) -> None:
    """Refuse an output that is also an input or another output, links resolved; call it before any file is read.

    `outputs`, `inputs`: path by the name of its option or argument; None, pipes and devices pass.
    """
    written = [(name, Path(path)) for name, path in outputs.items() if path is not None]
    read = [(name, Path(path)) for name, path in inputs.items() if path is not None]
    for number, (name, path) in enumerate(written):
        found = look(path, name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            continue
        for other, taken in (*read, *written[:number]):
            if same_file(path, taken):
                raise ArgumentError(name, str(path), f"another file than {other}, which is the same one")


@contextmanager
def index_writer(path: Path | None, rows: int, k: int) -> Iterator[Write]:
    """Yield the function that appends blocks of indices to a file; None discards them.

    The target is replaced only when every row has been written.
    """
    if path is None:
        yield lambda begin, indices: None
        return
    with replacing(path, size=4 * rows * k) as file:
        if path.suffix == ".npy":
            header = {"descr": "<i4", "fortran_order": False, "shape": (rows, k)}
            np.lib.format.write_array_header_1_0(file, header)
        else:
            # The safetensors library writes whole arrays alone, and an answer may be larger than memory.
            array = {"dtype": "I32", "shape": (rows, k), "data_offsets": (0, 4 * rows * k)}
            text = json.dumps({"__metadata__": {"k": str(k), "sentinel": "-1"}, "indices": array}).encode()
            text += b" " * (-(8 + len(text)) % _ALIGNMENT)
            file.write(len(text).to_bytes(8, "little") + text)

        def write(begin: int, indices: NDArray[np.int32]) -> None:
            file.write(np.ascontiguousarray(indices, dtype="<i4").data)

        yield write


def load_indices(path: Path, name: str | None) -> Any:
    """Open an index array; `.npy` and `.safetensors` stay on disk, memory-mapped.

    Raises `FileFormatError`, `ArgumentError` or `BackendError` if the file is unreadable or holds no indices, or `name`
    does not select one of its arrays.
    """
    if name is None and _holds_scores(path):
        raise FileFormatError(f"{path}: a file of scores, not indices; {_SWAPPED}")
    array = load_array(path, name, prefer="indices")
    if array.dtype not in (np.int32, np.int64):
        more = f"; {_SWAPPED}" if np.issubdtype(array.dtype, np.floating) else ""
        raise FileFormatError(f"{path}: an array of dtype {array.dtype}; takes dtype int32 or int64{more}")
    return array


_SWAPPED = "are the two files swapped? The scores come first"


def _holds_scores(path: Path) -> bool:
    """Whether a safetensors file holds scores."""
    if path.suffix != ".safetensors":
        return False
    try:
        with open_scores(path):
            return True
    except (ArgumentError, FileFormatError):
        return False


def write_stats(path: Path, stats: Stats) -> None:
    """Write the statistics of every row: named columns as .csv, the raw int32 array as .npy."""
    with replacing(path) as file:
        if path.suffix == ".npy":
            np.save(file, stats.raw.astype("<i4", copy=False))
        else:
            header = ",".join(("row", *STATS_COLUMNS))
            numbered = np.column_stack([np.arange(len(stats)), stats.raw])
            np.savetxt(file, numbered, fmt="%d", delimiter=",", header=header, comments="")
