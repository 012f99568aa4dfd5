// Families persistent_sampled and persistent_exact: one CTA owns a row from boundary to output.
//
//   1. the first wave takes row blockIdx.x; later rows come from a device queue in completion order
//   2. per row: propose, certify, refine (select.cuh); without a policy the direct-exact route
//   3. the last CTA to leave restores the queue, so that a replayed graph starts as the first launch did
//
// Row reads: 1 + 1/stride certified, 2 direct-exact. Any shape, any k <= kCapacity, any GPU from sm_80.
#include "select.cuh"
#include "workspace.cuh"

// Half of the CTAs, one of the two on each multiprocessor, start late by half a scan when there are rows for several
// rounds. Otherwise all of them propose, scan and refine in step, and memory rests while nobody scans.
__device__ __forceinline__ void fall_behind(const Params& p) {
  constexpr i64 kClocks = 30; // per KiB of a row: one multiprocessor's share of memory takes 60
  if (!kSampled || p.rows <= static_cast<int>(gridDim.x) || blockIdx.x < gridDim.x / 2) return;
  i64 begin = clock64();
  while (clock64() - begin < p.width * static_cast<i64>(sizeof(Score)) * kClocks / 1024)
    __nanosleep(100);
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_persistent(const __grid_constant__ Params p) {
  SharedStorage& s = shared_storage();
  wait_for_inputs();
  fall_behind(p);
  for (int id = blockIdx.x; id < p.rows;) {
    if (threadIdx.x == 0) s.next = static_cast<int>(gridDim.x) + claim_row(p); // its latency hides behind the row
    trace_begin();
    RowTask task = whole_row(p, load_row(p, id), spill_slice(p, blockIdx.x));
    select_row(task, [&] {
      int next = s.next;
      if (kSampled && next < p.rows) prefetch_view(p, next, task.row.length);
      if (next >= p.rows) release_dependents();
    });
    finish_row(p, id, sort_slice(p, blockIdx.x));
    trace_write(p, id);
    __syncthreads(); // the next row is known, and nobody still works on this one
    id = s.next;
    __syncthreads(); // everybody knows it, before it is overwritten
  }
  if (threadIdx.x == 0) leave_queue(p);
}
