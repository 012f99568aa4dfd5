// Family row_exact: one wide CTA per row, exact without sampling.
//
//   1. a row of at most kHeld scores fits the ring: it is copied there once
//   2. its coarse histogram gives the exact boundary bin; classification reads the ring again
//   3. the next row's copies start; refine (refine.cuh). A longer row is streamed twice by the same CTA (select.cuh)
//
// Row reads: 1 held, 2 streamed. Rows are dealt out in turn: no queue, and no workspace unless candidates spill.
#include "select.cuh"
#include "workspace.cuh"

static_assert(kHeld == 0 || kHeld == kTurn, "the ring holds a row");

__device__ __forceinline__ bool resident(const Params& p, const Row& row) {
  return row.length > slots_of(p, row) && row.length <= kHeld;
}

// `started`: the row's copies are under way. `meanwhile()` runs when nobody needs them any more.
template <class Meanwhile>
__device__ __forceinline__ void select_resident(const RowTask& t, bool started, Meanwhile meanwhile) {
  if (!started) start_scan(t.row.scores, t.begin, t.end);
  clear_storage();
  __syncthreads(); // storage is empty
  CoarseCount counting;
  scan<true>(t.row.scores, t.begin, t.end, counting);
  __syncthreads(); // every score is counted
  Boundary found = find_boundary(open_slots(t.params));
  Frontier frontier = classified(t, found);
  __syncthreads(); // the rule is visible
  Classify classify(shared_storage().rule);
  scan<true>(t.row.scores, t.begin, t.end, classify);
  trace_set(kColRoute, kDirect);
  certify(t, Stage::kClassified, true, frontier, [] { return Merged::kWhole; });
  meanwhile();
  refine(frontier);
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_row(const __grid_constant__ Params p) {
  wait_for_inputs();
  bool started = false;
  for (int id = blockIdx.x; id < p.rows; id += gridDim.x) {
    int next = id + static_cast<int>(gridDim.x);
    trace_begin();
    RowTask task = whole_row(p, load_row(p, id), spill_slice(p, blockIdx.x));
    if (resident(p, task.row)) {
      select_resident(task, started, [&] {
        started = false;
        if (kFinish || next >= p.rows) return; // slots are sorted where the ring is
        Row row = load_row(p, next);
        started = resident(p, row);
        if (started) start_scan(row.scores, 0, row.length);
      });
    } else {
      started = false;
      select_row(task, 0, [] {}, [] {});
    }
    if (next >= p.rows) release_dependents();
    finish_row(p, id, sort_slice(p, blockIdx.x));
    trace_write(p, id);
    __syncthreads(); // nobody still works on the row
  }
}
