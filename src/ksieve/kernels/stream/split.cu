// Family stream_split: several CTAs per row, for few long rows (KV-split).
//
//   1. every CTA of the row rebuilds the same view, and so the same cutoff, from the row id alone
//   2. each scans its own contiguous part into its own candidate slots
//   3. each publishes: reserves a range of the row's list and copies its candidates there
//   4. the last to arrive gathers the list, restores the row's state to zero, and finishes the row alone
//
// Row reads: 1 + splits/stride certified. Where the parts together have fewer than k candidates, the last CTA alone
// scans the rescue band or takes the exact route; where their candidates outgrow the list, it scans the whole row
// again.
#include "stream/join.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_stream_split(const __grid_constant__ Params p) {
  SharedStorage& s = shared_storage();
  trace_begin();
  wait_for_inputs();
  int id = blockIdx.x / p.splits;
  int part = blockIdx.x % p.splits;
  LoadedView view;
  if (!kWindows) view.load(widest_row(p, id), 0);
  Row row = load_row(p, id);
  if (kWindows) view.load(row, 0);
  bool shared_work = view_usable(p, row);
  if (!shared_work && part != 0) return; // a short row, or no usable view: nothing to share
  RowState* state = row_state(p, id);
  u64* list = row_list(p, id);
  RowTask task = whole_row(p, row, part_spill(p, id, part));
  bool finished = false;
  if (select_short(p, row)) {
    fold_short(p, row);
  } else {
    if (shared_work) {
      int size = part_size(row.length, p.splits);
      task.begin = min(part * size, row.length);
      task.end = min(task.begin + size, row.length);
    }
    prefetch_references(row);
    begin_fold();
    clear_storage();
    view.wait();
    start_scan(row.scores, task.begin, task.end);
    __syncthreads(); // counters are zero, for every thread
    note_references(row);
    if (shared_work) {
      propose(p, row, view, p.splits, s.proposal);
      set_proposal_rule(task, s.proposal, &state->num_ties);
    } else {
      trace_set(kColRoute, kDirect);
    }
    wait_for_references(p, row);
    Frontier frontier;
    const ScanPurpose purpose = shared_work ? ScanPurpose::kProposed : ScanPurpose::kNoCutoff;
    bool mine = certify(task, purpose, false, frontier, [&] {
      if (!shared_work) return Merged::kWhole;
      publish(state, list);
      publish_fold(state);
      if (!arrive_last(state, p.splits)) return Merged::kOther;
      join_fold(state);
      return join(state, list);
    });
    if (!mine) return;
    release_dependents();
    finish_fold(p, row, true);
    finished = refine(task, frontier);
  }
  if (!finished) run_epilogue(p, id, row_sort_slice(p, id));
  trace_write(p, id);
}
