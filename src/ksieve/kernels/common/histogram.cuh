// Counting by all threads of a CTA: aggregated histogram updates and the search for the bin that holds a rank.
#pragma once
#include "common/keys.cuh"
#include "common/storage.cuh"

// Returns the sum of `mine` over the lanes before this one. Call by whole warps.
__device__ __forceinline__ int lanes_before(int mine) { return static_cast<int>(lanes_up_to(mine)) - mine; }

// Takes `mine` slots from `counter` for each lane, with one atomic per warp; returns the lane's first. Call by whole
// warps.
__device__ __forceinline__ int reserve_many(int* counter, int mine) {
  int before = lanes_before(mine);
  int base = 0;
  if ((threadIdx.x & 31) == 31) base = atomicAdd(counter, before + mine);
  return __shfl_sync(kFullWarp, base, 31) + before;
}

// Returns the sums of `mine` over the threads before this one, and over all threads. Call by all threads; the only
// barrier comes before warp_totals is read.
struct Sums {
  u32 before;
  u32 all;
};
__device__ __forceinline__ Sums sum_threads(u32 mine) {
  SharedStorage& s = shared_storage();
  const u32 lane = threadIdx.x % 32;
  const u32 warp = threadIdx.x / 32;
  const u32 total = __reduce_add_sync(kFullWarp, mine);
  if (lane == 0) s.warp_totals[warp] = total;
  const u32 in_warp = lanes_up_to(mine) - mine;
  __syncthreads(); // every warp's total is written, for all warps
  const u32 theirs = lane < kWarps ? s.warp_totals[lane] : 0;
  const u32 all = __reduce_add_sync(kFullWarp, theirs);
  return {__reduce_add_sync(kFullWarp, lane < warp ? theirs : 0) + in_warp, all};
}

// Finds the bins that hold `rank` (1-based, from bin 0 up) and optionally `second_rank`, writes them to `found`,
// returns the first, and clears the histogram. Call by all threads, behind a barrier after the last count; returns
// behind a barrier, so that the caller may count into the cleared histogram at once. A rank beyond the total gives bin
// = kBins - 1. `counts` may be another array than the histogram, also of 16-bit counts.
template <class Count = u32>
__device__ __forceinline__ FoundBin find_bin(int rank, int second_rank = 0,
                                             const Count* counts = shared_storage().histogram) {
  SharedStorage& s = shared_storage();
  constexpr int kPerThread = kBins / kThreads;
  constexpr bool kHalves = sizeof(Count) == 2;
  struct alignas(sizeof(Count) * kPerThread) Own {
    Count bin[kPerThread];
  } own;
  const int thread = reread_tid();
  const int lane = thread & 31;
  const int warp = thread >> 5;
  constexpr int kTogether = kPerThread < 4 ? kPerThread : 4; // bins that a thread reads at a time
  struct alignas(4 * kTogether) Bins {
    u32 bin[kTogether];
  };
  // Where a thread reads two pieces, every other group of four threads reads the second one first: a quarter of a warp
  // then accesses every bank once.
  constexpr int kTurns = kPerThread == 2 * kTogether;
  const u32 turned = kTurns ? thread >> 2 & 1 : 0;
  Bins piece[kPerThread / kTogether];
  const Bins* from = reinterpret_cast<const Bins*>(counts) + thread * (kPerThread / kTogether);
  Bins* mine = reinterpret_cast<Bins*>(&s.histogram[thread * kPerThread]);
#pragma unroll
  for (int v = 0; v < kPerThread / kTogether; ++v) {
    if (!kHalves) piece[v] = from[v ^ turned];
    mine[v ^ turned] = {};
  }
  if (kHalves) own = reinterpret_cast<const Own*>(counts)[thread];
  u32 up_to[kPerThread]; // up_to[i]: members of this thread's bins 0 to i
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const u32 read = piece[i / kTogether].bin[i % kTogether];
    const u32 other = piece[i / kTogether ^ kTurns].bin[i % kTogether];
    sum += kHalves ? own.bin[i] : turned ? other : read;
    up_to[i] = sum;
  }
  u32 inclusive = lanes_up_to(sum);
  if (lane == 31) s.warp_totals[warp] = inclusive;
  __syncthreads(); // every warp's total is written, and no thread reads the previous `found` any more
  u32 before = __reduce_add_sync(kFullWarp, lane < warp ? s.warp_totals[lane] : 0) + inclusive - sum;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    u32 wanted = which ? second_rank : rank;
    bool last = thread == kThreads - 1 && wanted > before + sum;
    if (wanted == 0 || !(last || (before < wanted && wanted <= before + sum))) continue;
    wanted -= before;
    int i = 0;
    u32 better = 0;
    u32 with = sum; // members up to and including the bin
#pragma unroll
    for (int j = 0; j < kPerThread - 1; ++j) {
      if (up_to[j] >= wanted) continue;
      better = up_to[j];
      i = j + 1;
    }
#pragma unroll
    for (int j = kPerThread - 2; j >= 0; --j)
      if (up_to[j] >= wanted) with = up_to[j];
    s.found[which] = {thread * kPerThread + i, static_cast<int>(before + better), static_cast<int>(with - better)};
  }
  __syncthreads(); // `found` is visible, and the histogram is clear for every thread
  return s.found[0];
}

// Appends an entry to `tail`, which has room for kTailMax. A barrier must follow before rank_tail.
__device__ __forceinline__ void list_tail(u64 entry) {
  SharedStorage& s = shared_storage();
  int slot = atomicAdd(&s.tail_count, 1);
  if (slot < kTailMax) s.tail[slot] = entry;
}

// Returns the lane-th of the first `count` entries of `tail`, which are distinct, and its rank among them. Call by
// whole warps.
struct RankedEntry {
  u64 entry;
  int rank;
};
__device__ __forceinline__ RankedEntry rank_tail(int count) {
  const SharedStorage& s = shared_storage();
  int lane = static_cast<int>(threadIdx.x & 31);
  KSIEVE_OPAQUE(lane);
  u64 mine = lane < count ? s.tail[lane] : ~0ull;
  int rank = 0;
#pragma unroll 4
  for (int other = 0; other < count; ++other)
    rank += s.tail[other] < mine;
  return {mine, rank};
}
