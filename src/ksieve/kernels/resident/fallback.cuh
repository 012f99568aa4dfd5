// Rows that buckets do not select, and that take the exact route: rows that do not fit the ring are read twice from
// global memory; with statistics or tie-breaks, or if some of their scores have no position, rows that fit are read
// from global memory once, and then twice from the ring.
#pragma once
#include "common/workspace.cuh"
#include "resident/select.cuh"

// Writes minus infinity to this thread's vectors of the ring behind a tile that was copied, in place of a scan's own
// loads (start_scan).
__device__ __forceinline__ void use_copied(const Row& row, int begin, int end) {
  const Body body = body_of(row.scores, begin, end);
  if (body.end - body.begin < kTurn) fill_rest(body);
}

// Selects a row that the ring holds without buckets: an exact coarse histogram gives the k-th bin, the scores in
// the ring are classified against it, and refine (stream/refine.cuh) completes the row. `copied`: they are there.
__device__ __forceinline__ void select_from_ring(const RowTask& t, bool copied = false) {
  if (copied) {
    use_copied(t.row, t.begin, t.end);
  } else {
    start_scan(t.row.scores, t.begin, t.end);
  }
  clear_storage();
  __syncthreads(); // counters are zero, for every thread
  CoarseCount counting;
  scan<true>(t.row.scores, t.begin, t.end, counting);
  __syncthreads(); // every score is counted
  FoundBin found = find_bin(open_slots(t.params));
  Frontier frontier = classified(t, found);
  __syncthreads(); // the rule is visible
  Classify classify(shared_storage().rule);
  scan<true>(t.row.scores, t.begin, t.end, classify);
  trace_set(kColRoute, kDirect);
  certify(t, ScanPurpose::kClassified, true, frontier, [] { return Merged::kWhole; });
  refine(t, frontier);
}

// Selects the rows of this CTA that are not resident. Call by all threads.
KSIEVE_COLD void select_others(const Params& p) {
  static_assert(!kKeepsKeys, "an epilogue follows");
  for (int number = blockIdx.x; number < rows_of(p); number += grid_size()) {
    RowTask t = whole_row(p, nth_row(p, number), spill_slice(p, blockIdx.x));
    find_present(p, t.row);
    if constexpr (kPositions) t.end = (t.row = present_part(t.row)).length;
    const int k = slots_of(p, t.row);
    if (kFits && (t.row.length <= k || fits(t.row, k))) continue;
    trace_begin();
    if (!kFits && size_of(t.row) > k && t.row.length <= kMaxResident) {
      select_from_ring(t);
    } else {
      LoadedView none;
      select_row(t, false, none, [] {}, [] {});
    }
    if (number + grid_size() >= rows_of(p)) release_dependents();
    run_epilogue(p, t.row.id, sort_slice(p, blockIdx.x));
    trace_write(p, t.row.id);
    __syncthreads(); // no thread still works on the row
  }
}
