// Phase 3, refine: exact order over the stored frontier only, 11 + 11 + 10 bits of the ordered key; no score is read.
//   1. find the digit that holds the quota; better digits are committed, that digit is the new frontier
//   2. count the next digit over the new frontier, and repeat until it fits the quota or few are left
//   3. emit: everything better than the last frontier, then as much of it as the quota needs
// Stored candidates are never moved: a frontier is a range of keys among them.
#pragma once
#include "certify.cuh"

// With statistics every digit is resolved; without, this many last candidates are ranked by one warp.
constexpr int kFew = kStats ? 0 : 32;

// The last few unresolved candidates, listed in s.small: one warp ranks them and emits the quota's best.
__device__ __forceinline__ void emit_ranked(const Frontier& q) {
  SharedStorage& s = shared_storage();
  int lane = static_cast<int>(threadIdx.x);
  u64 entry = lane < q.count ? load_entry(s.small[lane]) : kEmptyEntry;
  u32 key = entry_key(entry);
  int rank = 0;
  int place = kTies ? tie_place(entry_index(entry)) : lane;
  for (int other = 0; other < q.count; ++other) {
    u32 rival = __shfl_sync(kFullWarp, key, other);
    int rival_place = kTies ? __shfl_sync(kFullWarp, place, other) : other;
    rank += rival < key || (rival == key && rival_place < place);
  }
  if (lane < q.count && rank < q.quota) write_front(s.emitted + rank, entry_index(entry));
}

// Emits the stored candidates that belong to the answer; q is what is left unresolved of them. With a tie-break those
// of it are taken whose place is at most `last_place`.
__device__ __forceinline__ void emit_stored(const Frontier& q, int last_place) {
  SharedStorage& s = shared_storage();
  constexpr int kSpan = 32; // slots per thread between two reservations
  bool rank_last = q.count > q.quota && q.count <= kFew;
  int slots = stored_slots();
  for (int start = 0; start < slots; start += kSpan * kThreads) {
    int first = start + static_cast<int>(threadIdx.x);
    u32 chosen = 0;
    for (int i = 0; i < kSpan && first + i * kThreads < slots; ++i) {
      int slot = first + i * kThreads;
      u64 entry = load_entry(slot);
      u32 key = entry_key(entry);
      bool valid = entry_index(entry) >= 0;
      bool better = valid && key < q.best;
      if (valid && !better && key <= q.worst) {
        int place = q.count == q.quota || (kTies && !rank_last) ? 0 : atomicAdd(&s.small_count, 1);
        if (rank_last) s.small[place] = slot;
        // All are needed, or all are equal: the first to arrive are taken, if nothing else decides.
        better = !rank_last && (kTies ? tie_place(entry_index(entry)) <= last_place : place < q.quota);
      }
      chosen |= better ? 1u << i : 0u;
    }
    // One reservation per warp: its lanes write one behind the other.
    int mine = __popc(chosen);
    int before = mine;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      int other = __shfl_up_sync(kFullWarp, before, offset);
      if (static_cast<int>(threadIdx.x & 31) >= offset) before += other;
    }
    int place = 0;
    if ((threadIdx.x & 31) == 31) place = atomicAdd(&s.emitted, before);
    place = __shfl_sync(kFullWarp, place, 31) + before - mine;
    for (; chosen; chosen &= chosen - 1)
      write_front(place++, entry_index(load_entry(first + (__ffs(chosen) - 1) * kThreads)));
  }
  if (!rank_last) return;
  __syncthreads(); // the last candidates are listed, and every other one is emitted
  if (threadIdx.x < 32) emit_ranked(q);
}

// Needs a barrier after the last count.
__device__ __forceinline__ void refine(Frontier q) {
  SharedStorage& s = shared_storage();
  if (q.quota == 0) return;
  trace_set(kColFilled, q.quota);
  if (q.count > kCapacity) { // one value throughout: any stored members will do
    if (kTies) return leave_ties(q.round == kRounds ? q.best : s.least, q.quota);
    return emit_any(q.quota);
  }
  while (q.round < kRounds && q.count != q.quota && q.count > kFew) {
    narrow(q);
    trace_set(kColFilled, q.quota);
    if (q.round == kRounds || q.count == q.quota || q.count <= kFew) break;
    int shift = digit_shift(q.round);
    int slots = stored_slots();
    for (int slot = threadIdx.x; slot < slots; slot += kThreads) {
      u64 entry = load_entry(slot);
      u32 key = entry_key(entry);
      if (entry_index(entry) >= 0 && key >= q.best && key <= q.worst) atomicAdd(&s.histogram[digit_of(key, shift)], 1u);
    }
    __syncthreads(); // the next digit is counted
  }
  emit_stored(q, kTies && q.count > q.quota && q.count > kFew ? last_tied_place(q.best, q.worst, q.quota) : kNoPlace);
}
