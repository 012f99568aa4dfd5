// Block-wide counting: aggregated histogram updates and the search for the bin that holds a rank.
#pragma once
#include "keys.cuh"
#include "storage.cuh"

// Finds the bins that hold `rank` (1-based, from bin 0 up) and optionally `second_rank`, and clears the histogram.
// Needs a barrier between the last count and the call; returns behind a barrier, so that the caller may count
// into the cleared histogram at once. A rank beyond the total leaves bin = kBins - 1 with what there is.
__device__ __forceinline__ Boundary find_boundary(int rank, int second_rank = 0,
                                                  const u32* counts = shared_storage().histogram) {
  SharedStorage& s = shared_storage();
  constexpr int kPerThread = kBins / kThreads;
  int lane = threadIdx.x & 31;
  int warp = threadIdx.x >> 5;
  asm volatile("" : "+r"(warp));                             // not kept, and spilled, from one call to the next
  constexpr int kTogether = kPerThread < 4 ? kPerThread : 4; // bins that a thread reads at a time
  struct alignas(4 * kTogether) Bins {
    u32 bin[kTogether];
  };
  u32 bins[kPerThread];
  u32 sum = 0;
  const Bins* from = reinterpret_cast<const Bins*>(&counts[threadIdx.x * kPerThread]);
  Bins* mine = reinterpret_cast<Bins*>(&s.histogram[threadIdx.x * kPerThread]);
#pragma unroll
  for (int v = 0; v < kPerThread / kTogether; ++v) {
    Bins some = from[v];
    mine[v] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      sum += bins[v * kTogether + i] = some.bin[i];
  }
  u32 inclusive = sum;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    u32 other = __shfl_up_sync(kFullWarp, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  if (lane == 31) s.warp_totals[warp] = inclusive;
  __syncthreads(); // every warp's total is written, and nobody reads the previous `found` any more
  u32 before = __reduce_add_sync(kFullWarp, lane < warp ? s.warp_totals[lane] : 0) + inclusive - sum;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    u32 wanted = which ? second_rank : rank;
    bool last = threadIdx.x == kThreads - 1 && wanted > before + sum;
    if (wanted == 0 || !(last || (before < wanted && wanted <= before + sum))) continue;
    u32 better = before;
    int i = 0;
    u32 here = bins[0];
#pragma unroll
    for (int j = 1; j < kPerThread; ++j) {
      if (better + here < wanted && i == j - 1) {
        better += here;
        here = bins[j];
        i = j;
      }
    }
    s.found[which] = {static_cast<int>(threadIdx.x) * kPerThread + i, static_cast<int>(better), static_cast<int>(here)};
  }
  __syncthreads(); // `found` is visible, and the histogram is clear for everybody
  return s.found[0];
}

// Lists an entry among the few; at most kFewest may come. A barrier must follow before they are ranked.
__device__ __forceinline__ void list_few(u64 entry, SharedStorage& s = shared_storage()) {
  int place = atomicAdd(&s.few_count, 1);
  if (place < kFewest) s.few[place] = entry;
}

// The lane-th of `count` listed entries and how many of them are less; entries are distinct. For whole warps.
struct RankedEntry {
  u64 entry;
  int rank;
};
__device__ __forceinline__ RankedEntry rank_few(int count) {
  const SharedStorage& s = shared_storage();
  int lane = static_cast<int>(threadIdx.x & 31);
  asm volatile("" : "+r"(lane)); // its place is not kept, and spilled, from the beginning
  u64 mine = lane < count ? s.few[lane] : ~0ull;
  int rank = 0;
#pragma unroll 4
  for (int other = 0; other < count; ++other)
    rank += s.few[other] < mine;
  return {mine, rank};
}
