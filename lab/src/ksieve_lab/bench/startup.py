"""Costs outside a call, measured in fresh processes: import and first call."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from ksieve.core.errors import BackendError

LONGEST = 600
"""Seconds of a process, unless said otherwise."""

_MOST = 240

_IMPORT = """
import time
start = time.perf_counter()
import ksieve
print(time.perf_counter() - start)
"""

_FIRST_CALL = """
import time
import numpy as np
scores = np.arange(65536, dtype=np.float32)[None]
start = time.perf_counter()
import ksieve
ksieve.topk(scores, k=2048)
print(time.perf_counter() - start)
"""


def import_seconds(repeats: int = 5) -> float:
    """Median seconds of ``import ksieve`` in a fresh interpreter."""
    return float(statistics.median(fresh("-c", _IMPORT) for _ in range(repeats)))


def first_call_seconds(repeats: int = 3) -> tuple[float, float]:
    """Seconds from before ``import ksieve`` to the first result: with nothing compiled yet, and from the disk cache."""
    with tempfile.TemporaryDirectory(prefix="ksieve-cache-") as cache:
        compiling, *cached = (fresh("-c", _FIRST_CALL, KSIEVE_CACHE_DIR=cache) for _ in range(1 + repeats))
    return compiling, statistics.median(cached)


def fresh(*arguments: str, seconds: float = LONGEST, **variables: str) -> Any:
    """What a fresh interpreter prints, as JSON; `variables` are added to its environment.

    Raises `BackendError` if it fails, takes longer, or prints no JSON; the text names no folders.
    """
    try:
        done = subprocess.run(
            [sys.executable, *arguments], env=os.environ | variables, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
        if done.returncode:
            last = re.sub(r"\s+", " ", done.stderr.strip()[-3000:])  # a compiler's log follows its error
            raise BackendError(without_folders(f"the process failed: {last}"))
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise BackendError(f"the process took more than {seconds} s") from None
    except ValueError as error:
        raise BackendError(f"the process printed no JSON: {error}") from None


def without_folders(text: str) -> str:
    """Shorten a text for a result file, which must not contain local paths; compilers name many."""
    return re.sub(r"(?<![\w.])/[^\s'\"]*/", "", text)[:_MOST]
