// The selection of a row by one CTA: propose, certify, refine. Kernels differ in which CTA works on which rows and
// segments.
#pragma once
#include "epilogue/epilogue.cuh"
#include "length_bins.cuh"
#include "stream/refine.cuh"

// Selects every position of a row with at most k scores. Returns whether the row has so few.
__device__ __forceinline__ bool select_short(const Params& p, const Row& row) {
  if (row.length > slots_of(p, row)) return false;
  trace_set(kColCommitted0, row.length);
  write_short(row_output(p, row.id), row.length, p.k, row.base);
  return true;
}

// Returns the task of a whole row. Call by all threads; a barrier must follow before the facts that thread 0 writes are
// read.
__device__ __forceinline__ RowTask whole_row(const Params& p, const Row& row, u64* spill) {
  if (threadIdx.x == 0) {
    shared_storage().spill = spill;
    if constexpr (kWindows) {
      shared_storage().row_slots = row.slots;
      shared_storage().window = row.scores;
      shared_storage().base = row.base;
    }
    if constexpr (kTies) {
      shared_storage().tie_last = row.length - 1;
      shared_storage().tie_from = p.options.flags & kHighest ? row.length - 1 : 0;
    }
  }
  return {p, row, 0, row.length};
}

// Selects a row whose `view` is being loaded. Call by all threads. `first`: the CTA's first row, with counters zero;
// its view is waited for in front of other loads, since all CTAs begin at once, and memory would serve whole rows of
// the scan before the view's lines. ahead() runs behind a barrier, before the row is scanned; meanwhile() runs when the
// row has been read and only on-chip work is left, but not for a short row.
template <class Ahead, class Meanwhile>
__device__ __forceinline__ void select_row(const RowTask& t, bool first, LoadedView& view, Ahead ahead,
                                           Meanwhile meanwhile) {
  if (select_short(t.params, t.row)) {
    wait_all_copies();
    __syncthreads(); // every thread has read the row; slots may be sorted where its copies were
    return ahead();
  }
  if (first) {
    view.wait();
  } else {
    clear_storage();
  }
  start_scan(t.row.scores, t.begin, t.end);
  __syncthreads(); // counters are zero, for every thread
  ScanPurpose purpose = ScanPurpose::kUnbounded;
  trace_set(kColRoute, kDirect);
  if (view_usable(t.params, t.row)) {
    propose(t.params, t.row, view, 1);
    set_proposal_rule(t, &shared_storage().num_ties);
    purpose = ScanPurpose::kProposed;
  }
  ahead();
  Frontier frontier;
  certify(t, purpose, false, frontier, [] { return Merged::kWhole; });
  meanwhile();
  refine(frontier);
}
