// Family split_sampled: several CTAs per row, for few long rows (KV-split).
//
//   1. every CTA of the row rebuilds the same view, and so the same boundary, from the row id alone
//   2. each certifies its own contiguous segment into its shared candidate array
//   3. each publishes: reserves a range of the row's list, copies its candidates, adds its histogram
//   4. the last to arrive gathers the merged state, restores it to zero, and finishes the row alone
//
// Row reads: 1 + splits/stride certified. An underfilled aggregate is recovered by the finisher (no rescue).
#include "select.cuh"
#include "workspace.cuh"

__device__ __forceinline__ void publish(RowState* state) {
  SharedStorage& s = shared_storage();
  int count = s.count;
  if (threadIdx.x == 0) s.flag = count ? atomicAdd(&state->count, count) : 0;
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    u32 members = s.histogram[bin];
    if (members) atomicAdd(&state->histogram[bin], members);
  }
  __syncthreads(); // the reserved range is known
  int base = s.flag;
  u32 least = s.least;
  u32 greatest = s.greatest;
  for (int i = threadIdx.x; i < min(count, kSharedCapacity); i += kThreads) {
    u32 key = s.keys[i];
    least = min(least, key);
    greatest = max(greatest, key);
    if (base + i < kCapacity) state->candidates[base + i] = static_cast<u64>(key) << 32 | static_cast<u32>(s.index[i]);
  }
  least = __reduce_min_sync(kFullWarp, least);
  greatest = __reduce_max_sync(kFullWarp, greatest);
  if (greatest > 0 && (threadIdx.x & 31) == 0) {
    atomicMax(&state->least_not, ~least);
    atomicMax(&state->greatest, greatest);
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

// Loads the merged state into shared memory and leaves the global one zero.
__device__ __forceinline__ void gather(RowState* state) {
  SharedStorage& s = shared_storage();
  int count = __ldcg(&state->count);
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    s.histogram[bin] = __ldcg(&state->histogram[bin]);
    state->histogram[bin] = 0;
  }
  for (int i = threadIdx.x; i < min(count, kSharedCapacity); i += kThreads) {
    u64 entry = __ldcg(&state->candidates[i]);
    s.keys[i] = static_cast<u32>(entry >> 32);
    s.index[i] = static_cast<int>(entry & 0xffffffffu);
  }
  if (threadIdx.x == 0) {
    s.count = count;
    s.ties = __ldcg(&state->ties);
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
  static_assert(kSharedCapacity == kCapacity, "the merged list must fit the finisher's shared memory");
  trace_begin();
  int id = blockIdx.x / p.splits;
  int part = blockIdx.x % p.splits;
  Row row = load_row(p, id);
  RowState* state = row_state(p, id);

  clear_storage();
  __syncthreads(); // storage is empty
  RowTask task = whole_row(p, row, nullptr);
  Stage stage = Stage::kUnbounded;
  if (row.length > p.k && propose(p, row, p.splits)) {
    int size = segment_size(row.length, p.splits);
    task.begin = min(part * size, row.length);
    task.end = min(task.begin + size, row.length);
    set_proposal_rule(task, &state->ties);
    stage = Stage::kProposed;
  } else if (part != 0) { // short, or no usable view: nothing to share
    return;
  }
  if (!select_short(p, row)) {
    if (stage == Stage::kUnbounded) trace_set(kColRoute, kDirect);
    Frontier frontier;
    bool mine = certify(task, stage, false, frontier, [&] {
      if (stage == Stage::kUnbounded) return true;
      publish(state);
      if (!arrive_last(state, p.splits)) return false;
      gather(state);
      return true;
    });
    if (!mine) return;
    refine(task.candidates, frontier);
  }
  trace_write(p, id);
}
