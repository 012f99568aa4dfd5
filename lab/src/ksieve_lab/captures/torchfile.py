"""Check of the storages of a torch file, before PyTorch maps them.

PyTorch maps as many bytes as the pickle in a file states, without comparing them with the record: for a short record it
maps bytes of the next one, or past the end of the file. The pickle is read here without importing or calling any name
in it.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

_ITEM_BYTES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}  # fmt: skip
"""Bytes of an element of a typed storage; an element of any other storage has at least one byte."""


def check_storages(path: Path) -> None:
    """Check that every storage has an uncompressed record of at least its size; a file that is no archive passes.

    Raises
    ------
    ValueError
        If a storage has no such record. A damaged archive or pickle may raise other exceptions.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: entry for entry in archive.infolist()}
        pickles = [name for name in records if name.endswith("/data.pkl") or name == "data.pkl"]
        if len(pickles) != 1:
            return
        with archive.open(pickles[0]) as stream:
            reader = _Reader(stream)
            reader.load()
    end = path.stat().st_size
    for key, needed in reader.storages.items():
        record = records.get(f"{pickles[0].removesuffix('data.pkl')}data/{key}")
        if record is None:
            raise ValueError(f"storage {key!r} has no record")
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise ValueError(f"storage {key!r} is compressed")
        if not 0 <= needed <= record.file_size or record.header_offset + record.file_size > end:
            raise ValueError(f"storage {key!r} holds {record.file_size:,} bytes; its tensors take {needed:,}")


class _Anything:
    """Placeholder for every object that a pickle names, constructs or calls."""

    def __init__(self, name: str = "") -> None:
        self._ksieve_name = name

    def __call__(self, *_: Any, **__: Any) -> _Anything:
        return _Anything()

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass


class _Reader(pickle.Unpickler):
    """Collects the storages that a pickle refers to; no name in it is imported."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.storages: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        return _Anything(name)

    def persistent_load(self, reference: Any) -> _Anything:
        kind, storage, key, _, count = reference
        if kind != "storage" or not isinstance(key, str) or type(count) is not int:
            raise ValueError(f"a reference to a {kind!r}")
        name = storage._ksieve_name if isinstance(storage, _Anything) else ""
        size = count * _ITEM_BYTES.get(name, 1)
        self.storages[key] = max(size, self.storages.get(key, 0)) if size >= 0 else -1
        return _Anything()
