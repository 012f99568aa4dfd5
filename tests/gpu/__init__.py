"""The GPU suite; `tests` must be on the module path."""

import os

DRY = os.environ.get("KSIEVE_GPU_DRY_RUN") == "1"
EMULATED = os.environ.get("KSIEVE_GPU_EMULATED") == "1"
HOST = DRY or EMULATED
"""There is no CUDA device (runner.py): what needs streams, graphs or the package's own calls is skipped."""
