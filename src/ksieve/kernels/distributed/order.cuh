// Puts a row's elements in order by buckets; all threads of a CTA.
//   1. the range of the elements is cut into buckets of equal width, at most kSortSize of them
//   2. elements are counted into buckets; sums of the counts say where each bucket begins
//   3. elements are written bucket by bucket
//   4. each finds its rank among those of its bucket, by comparing with all of them
// Outliers widen the buckets, and ties fall into one. Where a bucket has more than kMostInBucket elements, every bucket
// is cut between its own least and greatest element into as many buckets as it has elements, and 2 is done again. If
// one is overfull even then, the row goes through the bitonic sort.
#pragma once
#include "common/sort.cuh"

constexpr int kSortSize = KSIEVE_RANKS_SORT; // slots of a row, rounded up to a power of two of at least kSortChunk
constexpr int kEach = kSortSize > kThreads ? kSortSize / kThreads : 1; // elements of a thread
constexpr int kMostInBucket = 32;                                      // most elements of a bucket
constexpr int kBucketBits = 16;
constexpr u32 kBucketMask = (1 << kBucketBits) - 1;
constexpr u32 kOverfull = 0x80000000u; // beside a warp's count: one of its buckets has more

extern __shared__ __align__(16) unsigned char shared_bytes[];

// On chip: kSortSize elements, or of each bucket the least and the greatest one; and kSortSize counts.
template <class T> __device__ __forceinline__ T* elements_on_chip() { return reinterpret_cast<T*>(shared_bytes); }
__device__ __forceinline__ u32* counts_on_chip() { return reinterpret_cast<u32*>(shared_bytes + 8 * kSortSize); }

// The slot of a thread's e-th element: neighbours in a warp are neighbours in a row.
__device__ __forceinline__ int slot_of(int e) { return e * kThreads + static_cast<int>(threadIdx.x); }

// The buckets of a range of elements.
struct Buckets {
  u64 least;
  int shift; // bits of a bucket's width

  __device__ __forceinline__ Buckets(u64 first, u64 last) : least(first) {
    const int bits = 31 - __clz(kSortSize);
    shift = max(64 - __clzll(static_cast<i64>(last - first)) - bits, 0);
  }
  __device__ __forceinline__ u32 of(u64 element) const { return static_cast<u32>((element - least) >> shift); }
  // Distance from the bucket's begin, in units of the bucket's width over 2^32.
  __device__ __forceinline__ u32 within(u64 element) const {
    return shift ? static_cast<u32>((element - least) << (64 - shift) >> 32) : 0;
  }
};

// Makes of all counts their sums over the buckets before; returns the sum of all, with kOverfull if one is above
// kMostInBucket. Call by all threads, behind a barrier after the last count; a barrier must follow.
__device__ __forceinline__ u32 sum_counts() {
  __shared__ u32 of_warp[kWarps];
  u32* counts = counts_on_chip();
  const int first = static_cast<int>(threadIdx.x) * kEach;
  const u32 lane = threadIdx.x & 31;
  const u32 warp = threadIdx.x >> 5;
  u32 sum = 0;
  bool overfull = false;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const u32 count = first < kSortSize ? counts[first + e] : 0;
    overfull |= count > kMostInBucket;
    sum += count;
  }
  u32 up_to = sum;
#pragma unroll
  for (u32 distance = 1; distance < 32; distance *= 2) {
    const u32 other = __shfl_up_sync(kFullWarp, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  overfull = __any_sync(kFullWarp, overfull);
  if (lane == 31) of_warp[warp] = overfull ? kOverfull | up_to : up_to;
  __syncthreads(); // every warp's count is written, for all warps
  const u32 theirs = lane < kWarps ? of_warp[lane] : 0;
  u32 before = __reduce_add_sync(kFullWarp, lane < warp ? theirs & ~kOverfull : 0) + up_to - sum;
  const u32 all = __reduce_add_sync(kFullWarp, theirs & ~kOverfull);
  overfull = __any_sync(kFullWarp, theirs & kOverfull);
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (first >= kSortSize) break;
    const u32 count = counts[first + e];
    counts[first + e] = before;
    before += count;
  }
  return overfull ? kOverfull | all : all;
}

// Cuts every bucket between its own ends: makes of the buckets that a thread's elements are in the finer ones. Call by
// all threads, behind a barrier after sum_counts; returns behind a barrier, with counts of zero.
template <class T>
__device__ __forceinline__ void cut_again(const T (&own)[kEach], T absent, const Buckets& buckets, u32 all,
                                          u32 (&at)[kEach]) {
  u32* begin = counts_on_chip();
  u32* least = elements_on_chip<u32>();
  u32* width = least + kSortSize; // at first the greatest
#pragma unroll 1
  for (int i = threadIdx.x; i < kSortSize; i += kThreads) {
    least[i] = ~0u;
    width[i] = 0;
  }
  __syncthreads(); // all ends are set, for the threads that move them
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (own[e] == absent) continue;
    at[e] &= kBucketMask;
    atomicMin(&least[at[e]], buckets.within(own[e]));
    atomicMax(&width[at[e]], buckets.within(own[e]));
  }
  __syncthreads(); // the ends of every bucket are known
#pragma unroll 1
  for (int i = threadIdx.x; i < kSortSize; i += kThreads) {
    const u32 count = (i + 1 < kSortSize ? begin[i + 1] : all) - begin[i];
    if (count) width[i] = (width[i] - least[i]) / count + 1; // as many finer buckets as elements reach the greatest
  }
  __syncthreads(); // the widths are known
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    if (own[e] != absent) at[e] = begin[at[e]] + (buckets.within(own[e]) - least[at[e]]) / width[at[e]];
  __syncthreads(); // no thread reads where the wider ones begin
#pragma unroll 1
  for (int i = threadIdx.x; i < kSortSize; i += kThreads)
    begin[i] = 0;
  __syncthreads(); // the counts are zero, for all threads
}

// Ranks the elements that threads bring, one of each slot_of, and calls `take(rank, element)` once for each rank from 0
// to kSortSize - 1; absent elements rank last. Ranks that a warp takes at once lie together. Elements are not negative
// and at most `absent`; none but `absent` is there twice. Call by all threads, behind a barrier after the last use of
// what is on chip; a barrier must follow before the next.
template <class T, class Take>
__device__ __forceinline__ void order_by_buckets(const T (&own)[kEach], T absent, Take take) {
  __shared__ u64 least_of_warp[kWarps];
  __shared__ u64 most_of_warp[kWarps];
  T* sorted = elements_on_chip<T>();
  u32* begin = counts_on_chip();
  u64 least = ~0ull;
  u64 most = 0;
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    if (slot_of(e) < kSortSize) begin[slot_of(e)] = 0;
    if (own[e] == absent) continue;
    least = min(least, static_cast<u64>(own[e]));
    most = max(most, static_cast<u64>(own[e]));
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    least = min(least, __shfl_xor_sync(kFullWarp, least, distance));
    most = max(most, __shfl_xor_sync(kFullWarp, most, distance));
  }
  if (threadIdx.x % 32 == 0) {
    least_of_warp[threadIdx.x / 32] = least;
    most_of_warp[threadIdx.x / 32] = most;
  }
  __syncthreads(); // the counts are zero, and every warp's range is written, for all threads
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    least = min(least, least_of_warp[other]);
    most = max(most, most_of_warp[other]);
  }
  const Buckets buckets(min(least, most), most); // of no elements: of one that is 0
  u32 at[kEach];                                 // bucket, then above the place within it
#pragma unroll
  for (int e = 0; e < kEach; ++e)
    at[e] = own[e] == absent ? 0 : buckets.of(own[e]);
  bool finer = false;
  u32 all;
  while (true) {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (own[e] != absent) at[e] |= atomicAdd(&begin[at[e]], 1u) << kBucketBits;
    __syncthreads(); // every element is counted
    all = sum_counts();
    __syncthreads(); // where buckets begin is known to all threads
    if (!(all & kOverfull)) break;
    if (finer) {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (slot_of(e) < kSortSize) sorted[slot_of(e)] = own[e];
      sort_area(sorted, kSortSize);
      break;
    }
    cut_again(own, absent, buckets, all & ~kOverfull, at);
    finer = true;
  }
  const bool in_order = all & kOverfull;
  all &= ~kOverfull;
  if (!in_order) {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (own[e] != absent) sorted[begin[at[e] & kBucketMask] + (at[e] >> kBucketBits)] = own[e];
    __syncthreads(); // every element is in its bucket
  }
  if (unlikely(finer && !in_order)) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      if (own[e] == absent) continue;
      const u32 b = at[e] & kBucketMask;
      const u32 end = b + 1 < kSortSize ? begin[b + 1] : all;
      at[e] = begin[b];
#pragma unroll 1
      for (u32 other = at[e]; other < end; ++other)
        at[e] += sorted[other] < own[e];
    }
    __syncthreads(); // no thread compares any more
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (own[e] != absent) sorted[at[e]] = own[e];
    __syncthreads(); // every element is in its place, for all threads
  }
#pragma unroll 2 // few instructions: a CTA executes most of them once
  for (u32 slot = threadIdx.x; slot < kSortSize; slot += kThreads) {
    const T element = slot < all ? sorted[slot] : absent;
    u32 rank = slot;
    if (slot < all && !finer) {
      const u32 b = buckets.of(element);
      const u32 end = b + 1 < kSortSize ? begin[b + 1] : all;
      rank = begin[b];
#pragma unroll 1
      for (u32 other = rank; other < end; ++other)
        rank += sorted[other] < element;
    }
    take(static_cast<int>(rank), element);
  }
}
