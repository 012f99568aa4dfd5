#!/usr/bin/env bash
# The frameworks' own top-k tests, run against ksieve's adapters. Their files are fetched, never committed.
#   scripts/framework_tests.sh fetch [FRAMEWORK...]     write their test files to out/frameworks (--sources DIR)
#   scripts/framework_tests.sh run [FRAMEWORK...]       run them on the GPU (--device cpu: on the CPU backend), print a
#                                                       table, write out/framework-tests.json (--out DIR);
#                                                       --jobs N runs N files at a time
# Frameworks: vllm, pytorch, sglang, flashinfer. tests/frameworks/catalog.json lists the files, and every test that is not
# run, with the reason. Uses $PYTHON (python3) as it is: it needs torch, numpy and pytest, and cuda-core for the GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src:tests${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m frameworks "$@"
