// Phase 3, refine: exact order over the frontier only, 11 + 11 + 10 bits of the ordered key, all on chip.
//   1. find the digit that holds the quota; better digits are committed, that digit is the new frontier
//   2. count the next digit over the new frontier, and repeat until it fits the quota or few are left
//   3. emit: everything better than the last frontier, then as much of it as the quota needs
// Stored candidates are never moved: a frontier is a range of keys among them.
#pragma once
#include "certify.cuh"

// With statistics every digit is resolved; without, this many last candidates are ranked by one warp.
constexpr int kFew = kStats ? 0 : 32;

// Emits the stored candidates that belong to the answer; q is what is left unresolved of them.
__device__ __forceinline__ void emit_stored(const Candidates& candidates, int stored, const Frontier& q) {
  SharedStorage& s = shared_storage();
  bool rank_last = q.count > q.quota && q.count <= kFew;
  for (int first = 0; first < stored; first += kThreads) {
    int slot = first + threadIdx.x;
    u32 key = slot < stored ? candidates.key(slot) : kNanKey;
    bool better = slot < stored && key < q.best;
    if (slot < stored && key >= q.best && key <= q.worst) {
      int place = q.count == q.quota ? 0 : atomicAdd(&s.small_count, 1);
      if (rank_last) s.small[place] = slot;
      better = !rank_last && place < q.quota; // all are needed, or all are equal: the first to arrive are taken
    }
    int place = reserve(&s.emitted, better);
    if (better) write_front(place, candidates.index(slot));
  }
  if (!rank_last) return;
  __syncthreads(); // the last candidates are listed, and every other one is emitted
  if (threadIdx.x < 32) {
    int lane = static_cast<int>(threadIdx.x);
    int slot = lane < q.count ? s.small[lane] : 0;
    u32 key = lane < q.count ? candidates.key(slot) : kNanKey;
    int rank = 0;
    for (int other = 0; other < q.count; ++other) {
      u32 rival = __shfl_sync(kFullWarp, key, other);
      rank += rival < key || (rival == key && other < lane);
    }
    if (lane < q.count && rank < q.quota) write_front(s.emitted + rank, candidates.index(slot));
  }
}

// Needs a barrier after the last count.
__device__ __forceinline__ void refine(const Candidates& candidates, Frontier q) {
  SharedStorage& s = shared_storage();
  if (q.quota == 0) return;
  if (q.count > kCapacity) { // one value throughout: any stored members will do
    trace_set(kColFilled, q.quota);
    for (int slot = threadIdx.x; slot < q.quota; slot += kThreads)
      write_front(s.emitted + slot, candidates.index(slot));
    return;
  }
  int stored = q.count;
  while (q.round < kRounds && q.count != q.quota && q.count > kFew) {
    narrow(q);
    if (q.round == kRounds || q.count == q.quota || q.count <= kFew) break;
    int shift = digit_shift(q.round);
    for (int slot = threadIdx.x; slot < stored; slot += kThreads) {
      u32 key = candidates.key(slot);
      if (key >= q.best && key <= q.worst) atomicAdd(&s.histogram[digit_of(key, shift)], 1u);
    }
    __syncthreads(); // the next digit is counted
  }
  trace_set(kColFilled, q.quota);
  emit_stored(candidates, stored, q);
}
