// Phase 3, refine: exact order over the stored frontier only, 11 + 11 + 10 bits of the ordered key; no score is read.
//   1. find the digit that holds the quota; better digits are committed, that digit is the new frontier
//   2. count the next digit over the new frontier, and repeat until it fits the quota or few are left
//   3. emit: everything better than the last frontier, then as much of it as the quota needs
// Stored candidates are never moved: a frontier is a range of keys among them.
#pragma once
#include "certify.cuh"

// With statistics every digit is resolved; without, this many last candidates are ranked by one warp.
constexpr int kFew = kStats ? 0 : kFewest;

// Emits the stored candidates that belong to the answer; q is what is left unresolved of them. With a tie-break those
// of it are taken whose place is at most `last_place`.
__device__ __forceinline__ void emit_stored(const Frontier& q, int last_place) {
  SharedStorage& s = shared_storage();
  bool rank_last = q.count > q.quota && q.count <= kFew;
  // Whether a member of the last frontier is emitted at once: if all are, or if all are equal and it is early.
  auto taken = [&](u64 entry) {
    if (kTies && !rank_last) return tie_place(entry_index(entry)) <= last_place;
    if (!rank_last) return q.count == q.quota || atomicAdd(&s.few_count, 1) < q.quota;
    list_few(kTies ? make_entry(entry_key(entry), tie_place(entry_index(entry))) : entry);
    return false;
  };
  constexpr int kTogether = 8; // entries of a column that registers hold at once
  int height = own_height();
#pragma unroll
  for (int from = 0; from < kColumns; from += kTogether) {
    if (!__any_sync(kFullWarp, from < height)) break;
    u64 entry[kTogether];
#pragma unroll
    for (int b = 0; b < kTogether; ++b)
      if (from + b < kColumns) entry[b] = column_entry(from + b);
    u32 chosen = 0;
    u32 last = 0;
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      if (from + b >= kColumns) break;
      chosen |= entry_key(entry[b]) < q.keys.best ? 1u << b : 0u;
      last |= entry_key(entry[b]) <= q.keys.worst ? 1u << b : 0u;
    }
    u32 stored = (1u << min(max(height - from, 0), kTogether)) - 1;
    chosen &= stored;
    for (last &= stored & ~chosen; last; last &= last - 1)
      if (taken(column_entry(from + __ffs(last) - 1))) chosen |= last & -last;
    u32 place = reserve_many(&s.emitted, __popc(chosen));
    u32 k = s.rule.k;
    int* out = s.rule.row_out;
#pragma unroll
    for (int b = 0; b < kTogether; ++b) {
      if (from + b >= kColumns) break;
      bool wanted = chosen >> b & 1;
      if (wanted && place < k) out[place] = shown_position(entry_index(entry[b]));
      place += wanted;
    }
  }
  int listed = min(s.listed, kListed);
#pragma unroll 1
  for (int first = 0; first < listed; first += kThreads) {
    int slot = first + static_cast<int>(threadIdx.x);
    u64 entry = slot < listed ? list_entry(slot) : 0;
    u32 key = slot < listed ? entry_key(entry) : kNanKey;
    bool chosen = slot < listed && (key < q.keys.best || (key <= q.keys.worst && taken(entry)));
    int place = reserve(&s.emitted, chosen);
    if (chosen) write_front(place, entry_index(entry));
  }
  if (!rank_last) return;
  __syncthreads(); // the last candidates are listed, and every other one is emitted
  if (threadIdx.x >= 32) return;
  RankedEntry last = rank_few(q.count);
  if (static_cast<int>(threadIdx.x) < q.count && last.rank < q.quota)
    write_front(s.emitted + last.rank, kTies ? tie_position(entry_index(last.entry)) : entry_index(last.entry));
}

// Needs a barrier after the last count.
__device__ __forceinline__ void refine(Frontier q) {
  SharedStorage& s = shared_storage();
  if (rarely(q.quota == 0)) return;
  trace_set(kColFilled, q.quota);
  if (rarely(q.count > kCapacity)) { // one value throughout: any stored members will do
    if (kTies) return leave_ties(q.resolved() ? q.keys.best : s.least, q.quota);
    return emit_any(q.quota);
  }
  while (!q.resolved() && q.count != q.quota && q.count > kFew) {
    narrow(q);
    trace_set(kColFilled, q.quota);
    if (!rarely(!q.resolved() && q.count != q.quota && q.count > kFew)) break;
    each_own([&](u64 entry) {
      u32 key = entry_key(entry);
      if (key >= q.keys.best && key <= q.keys.worst) atomicAdd(&s.histogram[bin_of(key, q.digit)], 1u);
    });
    __syncthreads(); // the next digit is counted
  }
  emit_stored(q, kTies && q.count > q.quota && q.count > kFew ? last_tied_place(q.keys, q.quota) : kNoPlace);
}
