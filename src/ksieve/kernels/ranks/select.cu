// Finds how many of this rank's composites are among the k best of all ranks, and writes their positions, ascending:
// one CTA for each row.
//   with samples: the slots that all ranks have added up hold the composites behind the low sample; the last of the k
//   best is found by its rank among them
//   without: all composites of all ranks were gathered, and each of this rank's is ranked among them
#include "ranks/composites.cuh"

// Returns how many composites of this rank are among the k best, where all ranks' are gathered. Call by all threads.
__device__ __forceinline__ int count_among_gathered(const Shard& p, i64 row, int k, const i64* best) {
  __shared__ int count;
  __shared__ int better[kSortSize]; // composites of other ranks in front of each of this rank's; a thread's own
  i64* others = sort_buffer();
  if (threadIdx.x == 0) count = 0;
  for (int i = threadIdx.x; i < p.k; i += kThreads)
    better[i] = 0;
  for (int rank = 0; rank < p.world; ++rank) {
    if (rank == p.rank) continue;
    const i64* theirs = p.gathered + (static_cast<i64>(rank) * p.rows + row) * p.k;
    for (int i = threadIdx.x; i < p.k; i += kThreads)
      others[i] = theirs[i];
    __syncthreads(); // a rank's composites are on chip, for all threads
    for (int i = threadIdx.x; i < p.k; i += kThreads)
      better[i] += count_up_to(others, p.k, best[i]);
    __syncthreads(); // no thread reads them any more
  }
  __syncthreads(); // the counter is zero, for every thread
  int own = 0;
  for (int i = threadIdx.x; i < p.k; i += kThreads)
    own += best[i] != kNothing && better[i] + i < k;
  if (own) atomicAdd(&count, own);
  __syncthreads(); // the count is complete, for all threads
  return count;
}

// Returns the same from the added slots. Call by all threads.
__device__ __forceinline__ int count_by_samples(const Shard& p, i64 row, int k, const i64* best) {
  __shared__ i64 last;
  __shared__ int found;
  const i64* merged = p.merged + row * (1 + p.room);
  const int left = k - static_cast<int>(merged[0]);
  if (left <= 0) return p.below[row];
  if (threadIdx.x == 0) last = kNothing;
  i64* between = sort_buffer();
  for (int i = threadIdx.x; i < p.room; i += kThreads)
    between[i] = kNothing - merged[1 + i];
  __syncthreads(); // the slots are on chip, and `last` is set, for all threads
  for (int i = threadIdx.x; i < p.room; i += kThreads) {
    int better = 0;
    if (between[i] == kNothing) continue;
    for (int other = 0; other < p.room; ++other)
      better += between[other] < between[i];
    if (better == left - 1) last = between[i];
  }
  __syncthreads(); // the last of the k best is known; a row of fewer scores keeps kNothing
  if (threadIdx.x == 0) found = count_up_to(best, p.k, last);
  __syncthreads(); // the count is known, for all threads
  return found;
}

extern "C" __global__ void __launch_bounds__(kThreads) ksieve_ranks_select(const __grid_constant__ Shard p) {
  const i64 row = blockIdx.x;
  const int k = k_of_row(p, static_cast<int>(row));
  const i64* best = p.best + row * p.k;
  const int count = p.flags & kGathered ? count_among_gathered(p, row, k, best) : count_by_samples(p, row, k, best);
  if (threadIdx.x == 0) p.counts[row] = count;
  if (!p.indices) return;
  __syncthreads(); // no thread reads composites on chip any more
  u32* ascending = reinterpret_cast<u32*>(shared_bytes);
  const int n = 1 << (32 - __clz(max(count, kSortChunk) - 1));
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const int position = i < count ? position_of_composite(p, best[i]) : -1;
    ascending[i] = static_cast<u32>(position >= 0 && p.flags & kOfShard ? position_in_shard(p, position) : position);
  }
  sort_area(ascending, n);
  for (int i = threadIdx.x; i < p.k; i += kThreads)
    p.indices[row * p.k + i] = i < count ? static_cast<int>(ascending[i]) : -1;
}
