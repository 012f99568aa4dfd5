// Finds how many of this process's composites are among the k best of all processes, and writes their positions,
// ascending: one CTA for each row.
//   with samples: the slots that all processes have added up hold the composites behind the low sample; the last of the
//   k best is found by its rank among them
//   without: all composites of all processes were gathered, and each of this process's is ranked among them
// Where the processes' tags differ, none is among them.
#include "distributed/composites.cuh"

// Returns how many composites of this process are among the k best, where all processes' are gathered; -1 where tags
// differ. Call by all threads.
__device__ __forceinline__ int count_among_gathered(const Shard& p, i64 row, int k, const i64* best) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  i64* others = elements_on_chip<i64>();
  i64 own[kEach];
  int rank_of[kEach]; // of each composite, among all
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    own[e] = slot_of(e) < p.k ? best[slot_of(e)] : kNothing;
    rank_of[e] = slot_of(e);
  }
  const i64* theirs = p.gathered + row * p.k;
  for (int process = 0; process < p.world; ++process, theirs += p.words) {
    if (process == p.process) continue;
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (slot_of(e) < kSortSize) others[slot_of(e)] = slot_of(e) < p.k ? theirs[slot_of(e)] : kNothing;
    __syncthreads();                                 // a process's composites are on chip, for all threads
    constexpr int kTogether = kEach < 4 ? kEach : 4; // searches that advance together: each waits for shared memory
#pragma unroll
    for (int first = 0; first < kEach; first += kTogether) {
      int better[kTogether] = {};
#pragma unroll
      for (int half = kSortSize / 2; half > 0; half /= 2)
#pragma unroll
        for (int e = 0; e < kTogether; ++e)
          better[e] += others[better[e] + half - 1] < own[first + e] ? half : 0;
#pragma unroll
      for (int e = 0; e < kTogether; ++e)
        rank_of[first + e] += better[e] + (others[better[e]] < own[first + e]);
    }
    __syncthreads(); // no thread reads them any more
  }
  __syncthreads(); // the counter is zero, for every thread
  u32 within = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    within += own[e] != kNothing && rank_of[e] < k;
  within = __reduce_add_sync(kFullWarp, within);
  if (threadIdx.x % 32 == 0 && within) atomicAdd(&count, static_cast<int>(within));
  __syncthreads(); // the count is complete, for all threads
  return count;
}

// Returns the same from the added slots. Call by all threads.
__device__ __forceinline__ int count_by_samples(const Shard& p, i64 row, int k, const i64* best) {
  __shared__ i64 last;
  const i64* merged = p.merged + row * (1 + p.room);
  const int left = k - static_cast<int>(merged[0]);
  if (left <= 0) return p.below[row];
  i64 between[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    between[e] = slot_of(e) < p.room ? kNothing - merged[1 + slot_of(e)] : kNothing;
  order_by_buckets(between, kNothing, [&](int rank, i64 element) {
    if (rank == left - 1) last = element;
  });
  // In a row of fewer scores the last is kNothing, which all composites are in front of.
  __syncthreads(); // the last of the k best is known, for all threads
  return count_up_to_by_warp(best, p.k, last);
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_distributed_select(const __grid_constant__ Shard p) {
  const i64 row = blockIdx.x;
  const int k = k_of_row(p, static_cast<int>(row));
  const i64* best = p.best + row * p.k;
  int count = 0;
  if (ranks_differ(p)) {
    if (threadIdx.x == 0) *p.flag = 1;
  } else {
    count = p.flags & kGathered ? count_among_gathered(p, row, k, best) : count_by_samples(p, row, k, best);
  }
  if (threadIdx.x == 0) p.counts[row] = count;
  if (!p.indices) return;
  constexpr u32 kUnused = ~0u;
  u32 own[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    own[e] = kUnused;
    if (slot_of(e) >= count) continue;
    const int position = position_of_composite(p, best[slot_of(e)]);
    own[e] = static_cast<u32>(p.flags & kOfShard ? position_in_shard(p, position) : position);
  }
  int* indices = p.indices + row * p.k;
  order_by_buckets(own, kUnused, [&](int rank, u32 position) {
    if (rank < p.k) indices[rank] = static_cast<int>(position); // -1 where unused
  });
}
