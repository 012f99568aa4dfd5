// Family split_sampled: several CTAs per row, for few long rows (KV-split).
//
//   1. every CTA of the row rebuilds the same view, and so the same boundary, from the row id alone
//   2. each scans its own contiguous segment into its own candidate slots
//   3. each publishes: reserves a range of the row's list, copies its candidates, adds its histogram
//   4. the last to arrive gathers the merged state, restores it to zero, and finishes the row alone
//
// Row reads: 1 + splits/stride certified. An underfilled aggregate is rescued or recovered by the finisher alone.
#include "select.cuh"
#include "workspace.cuh"

// Moves the stored candidates of this segment to the row's list, and what was only counted to the row's state.
__device__ __forceinline__ void publish(RowState* state) {
  SharedStorage& s = shared_storage();
  int slots = stored_slots();
  if (threadIdx.x == 0) s.flag = s.count ? atomicAdd(&state->count, s.count) : 0;
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
    if (s.histogram[bin]) atomicAdd(&state->histogram[bin], s.histogram[bin]);
  __syncthreads(); // the segment's range of the list is known
  for (int first = 0; first < slots; first += kThreads) {
    int slot = first + static_cast<int>(threadIdx.x);
    u64 entry = slot < slots ? load_entry(slot) : kEmptyEntry;
    int place = reserve(&s.flag, entry_index(entry) >= 0);
    bool listed = entry_index(entry) >= 0 && place < kCapacity;
    if (listed) row_list(state)[place] = entry;
    if (entry_index(entry) >= 0 && !listed) track_overflow(entry_key(entry));
  }
  __syncthreads(); // every candidate that is not in the list is known
  if (threadIdx.x == 0 && s.greatest > 0) {
    atomicMax(&state->least_not, ~s.least);
    atomicMax(&state->greatest, s.greatest);
  }
}

// Whether this CTA is the last of its row to publish; then everything published is visible to all its threads.
__device__ __forceinline__ bool arrive_last(RowState* state, int splits) {
  SharedStorage& s = shared_storage();
  __threadfence();
  __syncthreads(); // every thread's part of the publication is visible device-wide
  if (threadIdx.x == 0) s.flag = atomicAdd(&state->arrived, 1u) == static_cast<u32>(splits) - 1;
  __syncthreads(); // the verdict is known
  __threadfence();
  return s.flag;
}

// Loads the merged state into empty storage and leaves the global one zero.
__device__ __forceinline__ void gather(RowState* state) {
  SharedStorage& s = shared_storage();
  int count = __ldcg(&state->count);
  int ties = __ldcg(&state->ties);
  int listed = min(count, kCapacity);
  for (int i = threadIdx.x; i < min(listed, kSharedSlots); i += kThreads)
    s.entries[i] = __ldcg(&row_list(state)[i]);
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    s.histogram[bin] = __ldcg(&state->histogram[bin]);
    state->histogram[bin] = 0;
  }
  if (threadIdx.x == 0) {
    s.slots = listed;
    s.spill = row_list(state) + kSharedSlots; // what does not fit shared memory stays where it is
    s.count = count;
    s.ties = ties;
    s.least = ~__ldcg(&state->least_not);
    s.greatest = __ldcg(&state->greatest);
  }
  __syncthreads(); // the merged state is loaded, by everybody
  if (threadIdx.x == 0) {
    state->count = state->ties = 0;
    state->arrived = state->least_not = state->greatest = 0;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_split(const __grid_constant__ Params p) {
  trace_begin();
  wait_for_inputs();
  int id = blockIdx.x / p.splits;
  int part = blockIdx.x % p.splits;
  Row row = load_row(p, id);
  bool shared_work = view_usable(p, row);
  if (!shared_work && part != 0) return; // short, or no usable view: nothing to share
  RowState* state = row_state(p, id);
  RowTask task = whole_row(p, row, segment_spill(state, part));
  if (!select_short(p, row)) {
    if (shared_work) {
      int size = segment_size(row.length, p.splits);
      task.begin = min(part * size, row.length);
      task.end = min(task.begin + size, row.length);
    }
    start_scan(row.scores, task.begin, task.end);
    clear_storage();
    __syncthreads(); // storage is empty
    if (shared_work) {
      propose(p, row, p.splits);
      set_proposal_rule(task, &state->ties);
    } else {
      trace_set(kColRoute, kDirect);
    }
    Frontier frontier;
    bool mine = certify(task, shared_work ? Stage::kProposed : Stage::kUnbounded, false, frontier, [&] {
      if (!shared_work) return true;
      publish(state);
      if (!arrive_last(state, p.splits)) return false;
      gather(state);
      return true;
    });
    if (!mine) return;
    release_dependents();
    refine(frontier);
  }
  finish_row(p, id, row_sort_slice(p, state));
  trace_write(p, id);
}
