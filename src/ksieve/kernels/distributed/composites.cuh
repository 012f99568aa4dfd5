// What the kernels of ksieve.distributed share. A row's scores lie on several processes; each process has selected its
// own k best. A composite holds the ordered key of a score above its global position: a smaller one is a better score,
// or an equal one that the tie-break prefers, and no two are equal (docs/decisions/0029-ranks.md).
#pragma once
#include "common/keys.cuh"
#include "common/ranking.cuh"
#include "distributed/order.cuh"

constexpr i64 kNothing = 0x7fffffffffffffffll; // the composite of a slot without a score

// Arguments of the three kernels; the host packs them (backends/cuda/ranks.py). Arrays are contiguous.
struct Shard {
  const int* ids;      // (rows, k) positions in this process's shard, -1 where unused, in any order
  const Score* values; // (rows, k) their scores
  i64* best;           // (rows, k) composites, ascending
  i64* samples;        // (rows, num_samples) every step-th composite
  const i64*
      gathered;  // (world, words) of each process: composites (rows, k) with kGathered, else samples; then its tag
  i64* merged;   // (rows, 1 + room): number of composites up to the low sample; those between it and the high one
  int* below;    // (rows,) composites of this process up to the low sample
  const i64* ks; // (rows,) k of each row; null: k
  int* indices;  // (rows, k) result
  int* counts;   // (rows,) result
  i64* sent_tag; // (1,) behind what this process sends
  int* flag;     // (1,) set to 1 where tags differ
  i64 tag;       // of the call as this process takes it
  i64 words;     // words that a process sends
  int rows;
  int k;
  int step;
  int num_samples;
  int room;
  int world;
  int process;
  int position_bits;
  int extent; // one more than the last global position
  int first;  // contiguous shards: global position of this process's first score
  int stripe; // interleaved shards: positions that lie together on a process; 0: shards are contiguous
  int flags;
};
static_assert(sizeof(Shard) == 14 * 8 + 12 * 4, "the host packs 160 bytes");
constexpr int kHighFirst = 1; // the tie-break prefers the highest positions
constexpr int kOfShard = 2;   // results are positions in the shard
constexpr int kGathered = 4;  // all composites of all processes are gathered, and no samples

// Whether a process takes the call for another one than this process does: every warp finds out. Call by all threads.
KSIEVE_RANKS bool ranks_differ(const Shard& p) {
  bool differ = false;
  for (int process = threadIdx.x % 32; process < p.world; process += 32)
    differ |= p.gathered[(process + 1) * p.words - 1] != p.tag;
  return __any_sync(kFullWarp, differ);
}

__device__ __forceinline__ int k_of_row(const Shard& p, int row) {
  return p.ks ? static_cast<int>(min(max(p.ks[row], 0ll), static_cast<i64>(p.k))) : p.k;
}

__device__ __forceinline__ int global_position(const Shard& p, int id) {
  return p.stripe ? (id / p.stripe * p.world + p.process) * p.stripe + id % p.stripe : p.first + id;
}
__device__ __forceinline__ int position_in_shard(const Shard& p, int position) {
  return p.stripe ? position / p.stripe / p.world * p.stripe + position % p.stripe : position - p.first;
}

__device__ __forceinline__ i64 composite(const Shard& p, int id, Score score) {
  if (id < 0) return kNothing;
  const int position = global_position(p, id);
  const int place = p.flags & kHighFirst ? p.extent - 1 - position : position;
  return static_cast<i64>(order_key(widen(score))) << p.position_bits | place;
}
__device__ __forceinline__ int position_of_composite(const Shard& p, i64 composite) {
  const int place = static_cast<int>(composite & ((1ll << p.position_bits) - 1));
  return p.flags & kHighFirst ? p.extent - 1 - place : place;
}

// Returns how many of n ascending composites are at most `last`; none of them is kNothing.
__device__ __forceinline__ int count_up_to(const i64* ascending, int n, i64 last) {
  last = min(last, kNothing - 1);
  int begin = 0;
  while (n > 0) {
    const int half = n / 2;
    const bool inside = ascending[begin + half] <= last;
    begin = inside ? begin + half + 1 : begin;
    n = inside ? n - half - 1 : half;
  }
  return begin;
}

// The same, by all threads of a warp: each reads once where one thread waits for five reads, one behind another.
KSIEVE_RANKS int count_up_to_by_warp(const i64* ascending, int n, i64 last) {
  last = min(last, kNothing - 1);
  int begin = 0;
  while (n > 0) {
    const int part = n / 33 + 1; // of which a thread reads the last one; the rest behind the 32 parts is no longer
    const int at = (static_cast<int>(threadIdx.x % 32) + 1) * part - 1;
    const bool inside = at < n && ascending[begin + at] <= last;
    const int parts = __popc(__ballot_sync(kFullWarp, inside));
    begin += parts * part;
    n = min(n - parts * part, part - 1);
  }
  return begin;
}
