#!/usr/bin/env bash
# Times selection over ranks with the package of another tree and with this one, in turn, on all GPUs of this machine,
# and prints what each adds to the selection from the shard. Both must give the same digest of verified rows.
# Usage: scripts/compare_ranks.sh OTHER_SRC OUT      (git archive main src | tar -x -C other; OTHER_SRC is other/src)
set -euo pipefail
other=$1 out=$2 python=${PYTHON:-python3}
gpus=$(nvidia-smi --list-gpus | wc -l)
for turn in 1 2; do
  for name in other this; do
    src=src
    if [ "$name" = other ]; then src=$other; fi
    PYTHONPATH=$src OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --nproc-per-node "$gpus" -m ksieve bench ranks \
      --device cuda --rounds 5 --dtypes float32,bfloat16 --verify-rows 2000 --out "$out/$name-$turn" \
      --shapes "${SHAPES:-1x131072,64x131072,512x131072,8192x131072,1x1048576,64x1048576,512x1048576,8192x1048576}"
  done
done
"$python" - "$out" "$gpus" <<'PYTHON'
import json
import sys
from pathlib import Path

folder, gpus = Path(sys.argv[1]), sys.argv[2]
runs = {
    name: [json.loads((folder / f"{name}-{turn}" / f"ranks-cuda-{gpus}.json").read_text())["results"] for turn in (1, 2)]
    for name in ("other", "this")
}
digests = {run["verified"]["digest"] for both in runs.values() for run in both}
print("the same answers" if len(digests) == 1 else f"DIFFERENT ANSWERS: {digests}")
print("rows x width       dtype     gather adds  other adds   this adds   of the gather")
for cases in zip(*(run["shapes"] for both in runs.values() for run in both), strict=True):
    first = cases[0]
    added = [case["selectors"]["planned"]["added_us"] for case in cases]
    gather = sorted(case["selectors"]["gathered"]["added_us"] for case in cases)
    before, after = min(added[:2]), min(added[2:])
    shape = f"{first['rows']} x {first['width']}"
    print(f"{shape:<18} {first['dtype']:<9}{gather[1]:12.0f}{before:12.0f}{after:12.0f}{after / gather[1]:12.2f}")
PYTHON
