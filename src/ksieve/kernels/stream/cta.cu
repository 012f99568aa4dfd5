// Families stream and stream_unsampled: one CTA has a row from sample to output.
//
//   1. the first wave takes row blockIdx.x; later rows come from a device queue in completion order
//   2. per row: propose, certify, refine (stream/select.cuh); without a policy or a usable view the exact route. Blocks
//      of scores are pooled first, to the workspace, which mostly stays in L2
//   3. the last CTA to leave restores the queue, so that a replayed graph starts as the first launch did
//
// Row reads: 1 + 1/stride certified, 2 on the exact route, 3 + 1/stride behind a proposal that failed. Any shape, any k
// <= kCapacity, any GPU from sm_80.
#include "common/workspace.cuh"
#include "stream/select.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_stream_cta(const __grid_constant__ Params p) {
  SharedStorage& s = shared_storage();
  wait_for_inputs();
  const int rows = rows_of(p);
  LoadedView view;
  constexpr bool kLoads = kSampled && !kFold; // views are loaded early; select_row loads those of rows that are folded
  constexpr bool kKnown = kLoads && !kWindows && !kBinned; // rows' first scores are known before their lengths
  if (blockIdx.x < rows) {
    fetch_row(p, blockIdx.x);
    if (kKnown) view.load(widest_row(p, blockIdx.x), 0);
    if (kLines && !kBinned) prefetch_view(p, blockIdx.x, p.width, kFold ? 0 : LoadedView::kAll * kPool);
    clear_storage();
  }
  if (kSampled && static_cast<int>(gridDim.x) < rows && blockIdx.x >= gridDim.x / 2) // by half a scan
    stagger_start<Score>(1, [&] { return kSegments ? p.pitch / rows : p.width; }, 40, 50'000);
  wait_all_copies();
  __syncthreads(); // the first row's length has arrived, and counters are zero, for every thread
  if (kLoads && !kKnown && blockIdx.x < rows) view.load(fetched_row(p, blockIdx.x), 0);
  for (int number = blockIdx.x; number < rows;) {
    int claimed = 0;
    if (threadIdx.x == 0) claimed = claim_row(p); // requested here; the value is used where it has arrived
    trace_begin();
    RowTask task = whole_row(p, in_memory(p, fetched_row(p, number)), spill_slice(p, blockIdx.x));
    if constexpr (kBlockRows)
      if (task.row.length > task.row.slots)
        pool_blocks(task.row, reinterpret_cast<float*>(const_cast<Score*>(task.row.scores)));
    find_present(p, task.row);
    if constexpr (kPositions) task.end = (task.row = present_part(task.row)).length;
    const auto announce_next = [&] {
      if (threadIdx.x != 0) return;
      s.next = grid_size() + claimed;
      if (kBinned && s.next < rows) fetch_row(p, s.next); // the row's view is prefetched where its id has arrived
    };
    const auto prefetch_next = [&] {
      int next = s.next;
      if (next >= rows) return release_dependents();
      if (!kBinned) fetch_row(p, next);
      if (kSampled) prefetch_view(p, kBinned ? s.next_id : next, kBinned ? s.next_length : task.row.length);
    };
    const bool finished = select_row(task, number == blockIdx.x, view, announce_next, prefetch_next);
    if (unlikely(size_of(task.row) <= slots_of(p, task.row))) {
      __syncthreads(); // every thread has read this row's length, and the next row is known
      if (s.next < rows) fetch_row(p, s.next);
    }
    if (!finished) run_epilogue(p, task.row.id, sort_slice(p, blockIdx.x));
    trace_write(p, task.row.id);
    wait_all_copies();
    __syncthreads(); // the next row is known, and no thread still works on this one
    number = s.next; // overwritten behind the next barrier
    if (kLoads && number < rows) view.load(fetched_row(p, number), 0);
  }
  if (threadIdx.x == 0) leave_queue(p);
}
