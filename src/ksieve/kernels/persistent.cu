// Families persistent_sampled and persistent_exact: one CTA owns a row from boundary to output.
//
//   1. the first wave takes row blockIdx.x; later rows come from a device queue in completion order
//   2. per row: propose, certify, refine (select.cuh); without a policy the direct-exact route
//   3. the last CTA to leave restores the queue, so that a replayed graph starts as the first launch did
//
// Row reads: 1 + 1/stride certified, 2 direct-exact. Any shape, any k <= kCapacity, any GPU from sm_80.
#include "select.cuh"
#include "workspace.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_persistent(const __grid_constant__ Params p) {
  SharedStorage& s = shared_storage();
  wait_for_inputs();
#ifdef KSIEVE_SKEW
  if (p.rows > static_cast<int>(gridDim.x) && blockIdx.x >= gridDim.x / 2) {
    long long begin = clock64();
    long long wait = static_cast<long long>(p.width) * static_cast<int>(sizeof(Score)) * KSIEVE_SKEW / 1024;
    while (clock64() - begin < wait)
      __nanosleep(100);
  }
#endif
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
