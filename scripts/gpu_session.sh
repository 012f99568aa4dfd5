#!/usr/bin/env bash
# What a machine with a GPU is asked to do, in steps that can be chosen; results and logs go to ${OUT:-out}.
#   scripts/gpu_session.sh quick       every kernel family in a process of its own (1 minute)
#   scripts/gpu_session.sh suite       the GPU test suite (8 minutes); PYTEST="-k capture" narrows it. Its parts, for
#                                      GPUs side by side: suite-kernels, -rows, -held[-aimed|-others], -half, -rankings,
#                                      -callers, -serving, -tiles, -adapters, -options, -pairs, -blocks[-options],
#                                      -entries[-others], -slots, -contract, and -ranks, which takes all GPUs
#   scripts/gpu_session.sh suite-host  what a call costs the host, which other processes would slow down: to be run alone
#   scripts/gpu_session.sh compile     the kernels of all parts and of the sanitizers, on all processors; before parts that
#                                      run side by side
#   scripts/gpu_session.sh sanitize    compute-sanitizer over a reduced grid (5 minutes); for GPUs side by side
#                                      sanitize-memcheck, -racecheck, -synccheck, and after these sanitize-record
#   scripts/gpu_session.sh regress     a fixed set of calls against the committed times of the same card (5 minutes);
#                                      ARGS="--against FILE" against a result of another tree on the same machine
#   scripts/gpu_session.sh operator|decode|short|general|options|segments|layer|blocks|engines|engines-first|trace|worst|
#                                      ablation|chain|replay: the result file of one bench (1 to 4 minutes);
#                                      ARGS="--k 512" goes to it, FACTORS=file scores operator and trace with real factors
#   scripts/gpu_session.sh all         compile, every part of the suite and the sanitizers, the longest first; then the
#                                      parts that take the whole machine
# Several steps run one after another; a failing one does not stop the next. Uses $PYTHON (python3) as it is.
# GPUS=4 runs them side by side, each on a GPU of its own, as soon as one is free; SIDE=15 so many at a time, on GPUs that
# they share: parts of the suite keep processors busy, not GPUs.
set -u
cd "$(dirname "$0")/.." || exit 2
OUT=${OUT:-out} PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
export PYTHONPATH=src:lab/src:.:tests:tests/support PYTHONUNBUFFERED=1 KSIEVE_RESULTS_DIR=${KSIEVE_RESULTS_DIR:-$OUT}
export XLA_PYTHON_CLIENT_PREALLOCATE=false
failed=()

quick() {
  local logs names rc=0
  logs=$(mktemp -d)
  names=${VARIANTS:-$($PYTHON -c 'from gpu.variants import VARIANTS; print(*VARIANTS)')}
  # One process each: a kernel that hangs or faults takes no other along.
  export logs QUICK="tests/gpu/test_exact.py tests/gpu/test_stats.py" PYTHON
  printf '%s\n' $names | KSIEVE_SUITE_COMPILED=1 KSIEVE_RESULTS_DIR=$logs xargs -P "${JOBS:-8}" -I{} bash -c \
    'timeout -k 5 ${QUICK_SECONDS:-120} $PYTHON -m pytest -m gpu -q $QUICK -k "[{}] or [{}-4097]" >$logs/{} 2>&1 ||
      echo "exit $?" >>$logs/{}'
  for name in $names; do
    printf '%-20s %s\n' "$name" "$(grep -E '^exit|(passed|failed|error).* in ' "$logs/$name" | xargs)"
    grep -q '^exit' "$logs/$name" && { rc=1; grep -m2 '^E  ' "$logs/$name" | cut -c1-400; }
  done
  return $rc
}

# suite [PART ARGUMENTS...]: a part of the suite, or all of it.
suite() {
  local part=${1:-} log=$OUT/suite${1:+-$1}.log
  shift
  [ $# -gt 0 ] || set -- tests/gpu tests/contract/test_contract.py tests/contract/test_options.py
  KSIEVE_SUITE_PART=$part timeout -k 10 "${SUITE_SECONDS:-560}" $PYTHON -m pytest -m gpu "$@" -q --durations=15 ${PYTEST:-} \
    2>&1 | tee "$log"
  return "${PIPESTATUS[0]}"
}
# Each part's files of tests/gpu, and which tests of them. A file of tests/gpu goes with those of tests/contract: what
# they have in common writes the result. `serving` takes the files that no other part names.
aimed='nearly_all or subnormals or aimed or how_often' pairs='every_pair or narrow_scores'
streamed='every_pair and (persistent or split)'
parts="rows:exact
held:held:registers_hold
held-aimed:held:$aimed
held-others:held:not (registers_hold or $aimed)
half:half
rankings:rankings
callers:callers
ranks:ranks
kernels:bands graphs layout narrow paths stats volume
contract:lazy_views
host:host_cost
pairs:options:$pairs
options:options:not ($pairs)
blocks:blocks:every_size
blocks-options:blocks:not every_size
entries:entries:$streamed
entries-others:entries:not ($streamed)
adapters:adapters frameworks
slots:values windows
segments:segments
tiles:tiles torch_topk
serving:"
suite_part() {
  local name=$1 files chosen arguments=()
  IFS=: read -r _ files chosen <<<"$(grep "^$name:" <<<"$parts")"
  for file in $files; do arguments+=("tests/gpu/test_$file.py"); done
  [ "$name" = contract ] && arguments+=(tests/contract/test_contract.py tests/contract/test_options.py)
  if [ "$name" = serving ]; then
    arguments=(tests/gpu)
    for file in $(grep -v "^contract:" <<<"$parts" | cut -d: -f2); do arguments+=("--ignore=tests/gpu/test_$file.py"); done
  fi
  [ -n "$chosen" ] && arguments+=(-k "$chosen")
  suite "$name" "${arguments[@]}"
}

compile() {
  SUITE_SECONDS=${COMPILE_SECONDS:-1200} suite compile && $PYTHON -m gpu.sanitize_grid --compile
}

tools='memcheck racecheck synccheck'
sanitize() {
  local tool rc=0
  $PYTHON -m gpu.sanitize_grid --compile || return 1
  for tool in $tools; do sanitized "$tool" || rc=1; done
  sanitize-record || rc=1
  return $rc
}
sanitized() {
  local options log=$OUT/sanitize-$1.log
  # PyTorch probes the driver with calls that are allowed to fail: no errors of ours.
  options=$([ "$1" = memcheck ] && echo --report-api-errors no)
  echo "== compute-sanitizer --tool $1" | tee "$log"
  timeout -k 10 "${SANITIZE_SECONDS:-300}" compute-sanitizer --tool "$1" $options --error-exitcode 9 --print-limit 20 \
    $PYTHON -m gpu.sanitize_grid 2>&1 | tee -a "$log" | tail -25
  return "${PIPESTATUS[0]}"
}
sanitize-record() {
  for tool in $tools; do cat "$OUT/sanitize-$tool.log"; done >"$OUT/sanitize.log" &&
    $PYTHON -m gpu.sanitize_grid --record "$OUT/sanitize.log" "$OUT"
}

result() {
  local scores=()
  [ -n "${FACTORS:-}" ] && [[ $1 == operator || $1 == trace ]] && scores=(--scores "factors:$FACTORS")
  timeout -k 10 "${BENCH_SECONDS:-560}" $PYTHON -m ksieve_lab bench "$1" "${scores[@]}" ${ARGS:-} --out "$OUT" \
    2>&1 | tee "$OUT/$1.log"
  return "${PIPESTATUS[0]}"
}
replay() {
  timeout -k 10 "${BENCH_SECONDS:-560}" $PYTHON -m ksieve_lab replay ${ARGS:-430K} --backend cuda --out "$OUT" 2>&1 | tee "$OUT/replay.log"
  return "${PIPESTATUS[0]}"
}

[ $# -gt 0 ] || { sed -n '2,23s/^# \{0,1\}//p' "$0"; exit 2; }
results="regress operator decode short general options segments layer blocks engines engines-first trace worst ablation
  chain"
steps="quick suite $(cut -d: -f1 <<<"$parts" | sed 's/^/suite-/') compile sanitize sanitize-memcheck
  sanitize-racecheck sanitize-synccheck sanitize-record replay $results"
everything="sanitize-racecheck sanitize-memcheck sanitize-synccheck suite-serving suite-kernels suite-held-aimed
  suite-adapters suite-options suite-half suite-entries suite-tiles suite-pairs suite-contract suite-callers suite-rankings
  suite-entries-others suite-slots suite-rows suite-held suite-held-others suite-blocks-options suite-blocks"
if [ "$*" = all ]; then # suite-host is alone, suite-ranks takes all GPUs, and the last step reads what the others wrote
  rc=0
  for some in compile "$everything" suite-host "suite-ranks sanitize-record"; do
    bash "scripts/$(basename "$0")" $some || rc=1
    export KSIEVE_SUITE_COMPILED=1
  done
  exit $rc
fi
for step in "$@"; do
  printf '%s\n' $steps | grep -qxF -- "$step" || { echo "no step '$step':" $steps >&2; exit 2; }
done
GPUS=${GPUS:-1}
if [ "${SIDE:-$GPUS}" -gt 1 ] && [ $# -gt 1 ]; then
  # Each step's number among those that run gives its GPU. Threads of all steps together are as many as processors: of
  # nineteen steps with 128 threads each, one of 64 s took 220.
  threads=$(($(nproc) / ${SIDE:-$GPUS}))
  export GPUS OMP_NUM_THREADS=$((threads > 1 ? threads : 1)) NUMBA_NUM_THREADS=$((threads > 1 ? threads : 1))
  printf '%s\n' "$@" | xargs -P "${SIDE:-$GPUS}" --process-slot-var=SLOT -I{} bash -c \
    'CUDA_VISIBLE_DEVICES=$((SLOT % GPUS)) bash "scripts/$0" "$1"' "$(basename "$0")" {}
  exit
fi
for step in "$@"; do
  begin=$SECONDS
  echo "==== $step"
  case $step in
    suite-*) suite_part "${step#suite-}" ;;
    sanitize-*check) sanitized "${step#sanitize-}" ;;
    *) if grep -qw -- "$step" <<<"$results"; then result "$step"; else $step; fi ;;
  esac || failed+=("$step")
  echo "==== $step: $((SECONDS - begin)) s"
done
[ ${#failed[@]} = 0 ] && echo "all steps passed" || { echo "FAILED: ${failed[*]}"; exit 1; }
