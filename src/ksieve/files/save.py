"""Safetensors files that the library writes: one array block by block, or a few tensors of PyTorch at once."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from ksieve.core.atomic import write_bytes
from ksieve.files.scores import K_KEY, KIND_KEY, VERSION_KEY

_ALIGNMENT = 64


def write_header(
    file: BinaryIO, name: str, dtype: str, shape: tuple[int, ...], size: int, facts: dict[str, str]
) -> None:
    """Write what goes before the `size` bytes of a file's only array, which begin at a multiple of 64 bytes.

    The safetensors library writes whole arrays alone, and an answer may be larger than memory.
    """
    array = {"dtype": dtype, "shape": shape, "data_offsets": (0, size)}
    text = json.dumps({"__metadata__": dict(facts), name: array}).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)


def save_scores(path: str | os.PathLike[str], tensors: Mapping[str, Any], k: int, **metadata: str) -> None:
    """Write "scores" and "lengths", tensors of PyTorch of any score dtype, to a file that `open_scores` reads.

    `tensors`: mapping of str to torch.Tensor. `k`: the K that the scores are meant for, which ``ksieve select`` takes
    by default. `metadata`: further facts.
    """
    from safetensors.torch import save

    facts = {VERSION_KEY: "1", KIND_KEY: "scores", K_KEY: str(k)} | metadata
    write_bytes(path, save(dict(tensors), facts))
