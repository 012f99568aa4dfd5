#!/usr/bin/env bash
# Real engines, their own plugin loaders, and ksieve in the place of their operators. Needs a network and no GPU.
#   scripts/engine_loaders.sh [vllm] [sglang]   install the newest wheels in virtual environments of their own (10 GB
#                                               each, in out/engines; --work DIR), print a table, write
#                                               out/engine-loaders-ENGINE.json (--out DIR)
# scripts/engine_loaders.py says what is installed and what stands in for a GPU's driver. Uses $PYTHON (python3) as it
# is: it needs numpy, pip, and a version for which the engines have wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" scripts/engine_loaders.py "$@"
