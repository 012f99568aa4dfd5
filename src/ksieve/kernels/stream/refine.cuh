// Phase 3, refine: exact order over the stored frontier only; no score is read. A digit spreads the frontier's range of
// keys over 2,048 bins; with statistics the digits are the paper's, of 11, 11 and 10 bits of the key.
//   1. find the bin that holds the remaining_k-th candidate: its members are the new frontier, and those of better bins
//      are selected
//   2. count the new frontier by the next digit, and repeat until exactly remaining_k are left, or few
//   3. write every candidate better than the last frontier, then as many of its members as slots are open
#pragma once
#include "common/sort.cuh"
#include "epilogue/slots.cuh"
#include "length_bins.cuh"
#include "stream/certify.cuh"

// Most slots in the order of their scores that are ranked where they are collected. The epilogue would read positions
// back from memory, and then scores.
constexpr bool kRanksSlots =
    kOrder == Order::kValue && !kExpand && !kPositions && !kForced && !kBlockRows && !kStats && kMaxResident == 0;
constexpr int kRankedSlots = kRanksSlots ? (kThreads < 128 ? kThreads : 128) : 0;

// Whether candidates keep their keys until slots are written as they are to be: a score that is read again has mostly
// left L2, and costs 64 bytes of memory. Small CTAs that take listed rows have no registers left for that.
constexpr bool kKeepsKeys = (kWritesSlots || kRankedSlots > 0) && kColumns > 0 && !(kBinned && kSmall);

// Returns the bits of the score of a candidate. Zeros share a key, and so do NaN.
__device__ __forceinline__ u32 bits_of_candidate(u32 key, int position, const SlotWriter& slots) {
  const float score = score_of_ranked(score_of_key(key));
  if (unlikely(!(score < 0.0f || score > 0.0f))) return slots.read_bits(position);
  return Stored::bits_of(score);
}

// Most candidates of a last frontier that one warp ranks: none with statistics, for which every digit is counted.
constexpr int kFew = kStats ? 0 : kTailMax;

constexpr int kEmitted = 4; // entries of a long list that a thread writes with one reservation of its warp

// Returns the rank of the lane's entry among the first `count` lanes': by keys, then by the distances of their
// positions. Call by whole warps.
__device__ __forceinline__ int rank_by_position(u64 entry, int count) {
  const bool listed = static_cast<int>(threadIdx.x & 31) < count;
  const u64 mine = listed ? make_entry(entry_key(entry), tie_distance(entry_index(entry))) : ~0ull;
  int rank = 0;
#pragma unroll 1
  for (int other = 0; other < count; ++other)
    rank += __shfl_sync(kFullWarp, mine, other) < mine;
  return rank;
}

// Ranks the listed candidates of the last frontier, and calls put(rank, index, key) for each that is in the answer.
// Call by a warp.
template <class Put> __device__ __forceinline__ void rank_frontier(const Frontier& q, Put put) {
  RankedEntry mine = rank_tail(q.count);
  if constexpr (kTies && kPositions) mine.rank = rank_by_position(mine.entry, q.count);
  const int index = entry_index(mine.entry);
  if (static_cast<int>(threadIdx.x & 31) < q.count && mine.rank < q.remaining_k)
    put(mine.rank, kTies && !kPositions ? tie_position(index) : index, entry_key(mine.entry));
}

// Writes the slots of a row in the order of their scores, from collected codes and keys, which are in the ring, and if
// `rank_last` from the last frontier. Call by all threads.
KSIEVE_RANKED void write_ranked(const RowTask& t, const Frontier& q, bool rank_last, const int* codes,
                                const int* keys) {
  SharedStorage& s = shared_storage();
  u64* area = reinterpret_cast<u64*>(s.ring);
  const int k = static_cast<int>(s.rule.k);
  const int last = k - (rank_last ? q.remaining_k : 0);
  const int own = static_cast<int>(threadIdx.x);
  auto element = [](int index, u32 key) { return make_entry(key, kTies ? tie_distance(index) : index); };
  const SlotWriter slots(t.params, scores_of(t), t.row.id, kWindows ? s.base : 0);
  __syncthreads();  // every thread's codes are collected, and the last candidates listed
  u64 mine = ~0ull; // unless scores have changed meanwhile, every slot has a code
  if (own < min(s.num_selected, last)) mine = element(index_of_code(codes[own]), static_cast<u32>(keys[own]));
  __syncthreads(); // every code has been read
  if (own < last) area[own] = mine;
  if (rank_last && threadIdx.x >= kThreads - 32)
    rank_frontier(q, [&](int rank, int index, u32 key) { area[last + rank] = element(index, key); });
  rank_area(area, k);
  slots.write(
      0, k,
      [&](int slot) {
        const int at = entry_index(area[slot]);
        if (kFold && !fills(t.params, t.row.id, slot, score_of_key(entry_key(area[slot])))) return -1;
        return kTies ? tie_position(at) : at;
      },
      [&](int slot, int position) { return bits_of_candidate(entry_key(area[slot]), position, slots); }, kThreads, own);
  slots.finish(k);
}

// Writes the stored candidates that belong to the answer; `q` is the last frontier. With a tie-break, the members of
// `q` are written whose distance is at most `last_distance`. Returns whether slots are as they are to be, so that no
// epilogue is needed. Call by all threads.
__device__ __forceinline__ bool emit_stored(const RowTask& t, const Frontier& q, int last_distance) {
  SharedStorage& s = shared_storage();
  bool rank_last = q.count > q.remaining_k && q.count <= kFew;
  // Returns whether a member of the last frontier is written at once: if all are, or if all are equal and slots are
  // left.
  auto taken = [&](u64 entry) {
    if (kTies && !rank_last) return tie_distance(entry_index(entry)) <= last_distance;
    if (!rank_last) return q.count == q.remaining_k || atomicAdd(&s.tail_count, 1) < q.remaining_k;
    list_tail(kTies && !kPositions ? make_entry(entry_key(entry), tie_distance(entry_index(entry))) : entry);
    return false;
  };
  // Where all output slots are still free, codes of indices are collected in the ring, which is idle, for
  // write_collected.
  constexpr int kCollected = sizeof(s.ring) / sizeof(int);
  constexpr int kKeys = kCollected / 2; // keys lie behind the codes
  int* ring = reinterpret_cast<int*>(s.ring);
  constexpr bool kKeeps = kKeepsKeys && (kWritesValues || kRanksSlots);
  constexpr u32 kMost = kKeeps ? kKeys : kCollected;
  u32 k = s.rule.k;
  int* out = s.rule.row_out;
  bool collects = kColumns && s.rule.mode != Mode::kClassify && k <= kMost;
  int* to = collects ? ring : out;
  int thread_count = own_height();
  u32 chosen = 0;              // entries of this thread's column that are selected, as bits
  u32 last = 0;                // entries of the column that are in the last frontier, as bits
  constexpr int kTogether = 8; // entries that are loaded at once
#pragma unroll
  for (int at = 0; at < kColumns; ++at) {
    if (at % kTogether == 0 && !__any_sync(kFullWarp, at < thread_count)) break;
    u32 key = column_key(at);
    chosen |= key < q.keys.best ? 1u << at : 0u;
    last |= key <= q.keys.worst ? 1u << at : 0u;
  }
  u32 stored = thread_count == 32 ? ~0u : (1u << thread_count) - 1;
  chosen &= stored;
  for (last &= stored & ~chosen; last; last &= last - 1)
    if (taken(column_entry(__ffs(last) - 1))) chosen |= last & -last;

  int listed = min(s.listed, kListed);
#pragma unroll 1
  for (int first = threadIdx.x; kLongList && (first & ~31) < listed; first += kEmitted * kThreads) {
    u64 entry[kEmitted];
#pragma unroll
    for (int b = 0; b < kEmitted; ++b)
      entry[b] = first + b * kThreads < listed ? list_entry(first + b * kThreads) : ~0ull;
    u32 wanted = 0;
#pragma unroll
    for (int b = 0; b < kEmitted; ++b) {
      u32 key = entry_key(entry[b]);
      if (first + b * kThreads >= listed) continue;
      if (key < q.keys.best || (key <= q.keys.worst && taken(entry[b]))) wanted |= 1u << b;
    }
    u32 out_slot = reserve_many(&s.num_selected, __popc(wanted));
#pragma unroll
    for (int b = 0; b < kEmitted; ++b) {
      if (!(wanted >> b & 1)) continue;
      int index = entry_index(entry[b]);
      if (out_slot < k) to[out_slot] = collects ? code_of_index(index) : shown_position(index);
      if (kKeeps && collects && out_slot < k) ring[kKeys + out_slot] = static_cast<int>(entry_key(entry[b]));
      ++out_slot;
    }
  }
  // By the warps that have entries of the list.
#pragma unroll 1
  for (int slot = threadIdx.x; !kLongList && (slot & ~31) < listed; slot += kThreads) {
    u64 entry = slot < listed ? list_entry(slot) : 0;
    u32 key = slot < listed ? entry_key(entry) : kNanKey;
    bool wanted = slot < listed && (key < q.keys.best || (key <= q.keys.worst && taken(entry)));
    u32 out_slot = reserve(&s.num_selected, wanted);
    int index = entry_index(entry);
    if (wanted && out_slot < k) to[out_slot] = collects ? code_of_index(index) : shown_position(index);
    if (kKeeps && collects && wanted && out_slot < k) ring[kKeys + out_slot] = static_cast<int>(key);
  }
  const bool ranks = rank_last && threadIdx.x >= kThreads - 32; // the last warp, when all last candidates are listed
  auto write_last = [&](int rank, int index, u32) { write_front(s.rule.k - q.remaining_k + rank, index); };
  if (rank_last && !collects) {
    __syncthreads(); // every thread's last candidates are listed, for the last warp
    if (ranks) rank_frontier(q, write_last);
  }

  if (!kColumns) return false;
  LaneSums sums = few_before<kColumns>(__popc(chosen));
  u32 out_slot = 0;
  if ((threadIdx.x & 31) == 0 && sums.total) out_slot = atomicAdd(&s.num_selected, sums.total);
  out_slot = __shfl_sync(kFullWarp, out_slot, 0) + sums.before;
  if (unlikely(!collects)) {
    for (; chosen && out_slot < k; chosen &= chosen - 1)
      out[out_slot++] = shown_position(entry_index(column_entry(__ffs(chosen) - 1)));
    return false;
  }
  if (unlikely(out_slot + __popc(chosen) > kMost)) chosen = 0; // only if scores have changed meanwhile
  if constexpr (kKeeps) {
    u32 slot = out_slot;
    for (u32 left = chosen; left; left &= left - 1)
      ring[kKeys + slot++] = static_cast<int>(column_key(__ffs(left) - 1));
  }
  u32 next = static_cast<u32>(__cvta_generic_to_shared(ring + out_slot)); // a shared address: its stores are cheaper
#pragma unroll
  for (int from = 0; from < kColumns; from += kTogether) {
    if (!__any_sync(kFullWarp, chosen >> from)) break;
    int code[kTogether];
#pragma unroll
    for (int b = 0; b < kTogether && from + b < kColumns; ++b)
      code[b] = code_of_local(load_column_index(from + b));
#pragma unroll
    for (int b = 0; b < kTogether && from + b < kColumns; ++b) {
      const u32 wanted = chosen & 1u << (from + b);
      if (wanted) store_shared(next, code[b]);
      next += (wanted >> (from + b)) * sizeof(int); // shift and sum are one instruction
    }
  }
  if constexpr (kKeepsKeys && kRanksSlots) {
    if (k <= kRankedSlots) {
      write_ranked(t, q, rank_last, ring, ring + kKeys);
      return true;
    }
  } else if constexpr (kKeepsKeys) {
    const SlotWriter slots(t.params, scores_of(t), t.row.id, kWindows ? s.base : 0);
    __syncthreads(); // every thread's codes are collected, and the last candidates listed
    const int last = static_cast<int>(k) - (rank_last ? q.remaining_k : 0);
    if (ranks) {
      rank_frontier(q, [&](int rank, int index, u32 key) {
        slots.write(
            last + rank, last + rank + 1, [&](int) { return index; },
            [&](int, int position) { return bits_of_candidate(key, position, slots); }, 1, 0);
      });
    } else {
      slots.write(
          0, min(s.num_selected, last), [&](int slot) { return index_of_code(ring[slot]); },
          [&](int slot, int position) {
            return bits_of_candidate(static_cast<u32>(ring[kKeys + slot]), position, slots);
          },
          rank_last ? kThreads - 32 : kThreads, static_cast<int>(threadIdx.x));
    }
    slots.finish(static_cast<int>(k));
    return true;
  }
  __syncthreads(); // every thread's codes are collected, and the last candidates listed
  if (ranks) {
    rank_frontier(q, write_last);
    return false;
  }
  const int count = static_cast<int>(min(static_cast<u32>(s.num_selected), k));
  write_collected<false>(
      out, ring, count, count, [](int code) { return shown_position(index_of_code(code)); },
      rank_last ? kThreads - 32 : kThreads);
  return false;
}

// Completes a row from its frontier. Returns whether no epilogue is needed. Call by all threads, behind a barrier after
// the last count.
__device__ __forceinline__ bool refine(const RowTask& t, Frontier q) {
  SharedStorage& s = shared_storage();
  if (unlikely(q.remaining_k == 0)) return false;
  trace_set(kColFilled, q.remaining_k);
  if (unlikely(q.count > kCapacity)) { // all candidates have one value: any stored ones will do
    if (kTies) {
      leave_ties(q.resolved() ? q.keys.best : s.least, q.remaining_k);
    } else {
      emit_any(q.remaining_k);
    }
    return false;
  }
  while (!q.resolved() && q.count != q.remaining_k && q.count > kFew) {
    narrow(q);
    trace_set(kColFilled, q.remaining_k);
    if (!unlikely(!q.resolved() && q.count != q.remaining_k && q.count > kFew)) break;
    each_own([&](u64 entry) {
      u32 key = entry_key(entry);
      if (key >= q.keys.best && key <= q.keys.worst) atomicAdd(&s.histogram[bin_of(key, q.digit)], 1u);
    });
    __syncthreads(); // every thread's candidates are counted by the next digit
  }
  return emit_stored(t, q,
                     kTies && q.count > q.remaining_k && q.count > kFew ? last_tie_distance(q.keys, q.remaining_k)
                                                                        : kMaxTieDistance);
}
