"""What parts of the suite import, on the CPU: it changes no setting of theirs."""

from __future__ import annotations

import os
import subprocess
import sys

OFF = "PYTORCH_NO_CUDA_MEMORY_CACHING"
"""The sanitizers' grid switches PyTorch's cache of memory off, without which a capture cannot allocate."""


def test_the_kernels_of_the_sanitizers_are_named_without_their_settings():
    program = f"import os, gpu.compile_all, gpu.sanitize_grid; print(os.environ.get({OFF!r}))"
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {name: value for name, value in os.environ.items() if name != OFF} | {"PYTHONPATH": paths}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == "None"
