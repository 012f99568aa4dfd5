"""The GPU suite; `tests` must be on the module path."""

import os

HOST = os.environ.get("KSIEVE_GPU_EMULATED") == "1"
"""There is no CUDA device: kernels run on the CPU (runner.py), and what needs streams or graphs is skipped."""
