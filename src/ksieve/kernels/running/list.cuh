// The list of a row's best scores so far in global memory, and its compaction to the k best (running/keep.cu).
#pragma once
#include "common/histogram.cuh"
#include "common/load.cuh"

constexpr int kVectors = 4;      // 16-byte loads of a thread in flight
constexpr int kMostSlots = 4096; // MOST_SLOTS of backends/cuda/keep.py
using Slot = unsigned short;

// The kernel's only argument; the host packs it (backends/cuda/keep.py).
struct Push {
  const Score* scores;  // (rows, width), `pitch` apart
  const void* starts;   // (rows,) position at which each row's window begins; null: 0
  const void* ends;     // (rows,) position behind it; null: no end
  const int* num_rows;  // live rows; null: all
  const int* row_k;     // (rows,) k of each row; null: k
  Score* values;        // (rows, capacity) lists
  int* places;          // (rows, capacity) positions of these scores
  int* held;            // (rows,) entries of each list
  u64* cutoffs;         // (rows,) a score matters if its composite is less
  float* cutoff_scores; // (rows,) scores of the cutoffs, for producers
  i64 pitch;            // elements
  int width;
  int first; // position of the first column
  int k;
  int capacity; // at least 3 k, and whole vectors
  int flags;
  int reserved;
};
static_assert(sizeof(Push) == 11 * 8 + 6 * 4, "the host packs 112 bytes");
constexpr int kByPosition = 1;  // of equal scores positions decide
constexpr int kHighFirst = 2;   // the highest ones are selected
constexpr int kRecount = 4;     // the list is the scores of the first k slots that have a position; no cutoff is known
constexpr int kSettle = 8;      // at most k entries stay, and the k slots that none has get position -1
constexpr int kLongStarts = 16; // starts have 64 bits
constexpr int kLongEnds = 32;

struct Shared {
  u32 least; // extreme keys
  u32 greatest;
  u32 worst; // key of those that stay
  int moves; // slots that a compaction empties, and 2^16 times those whose entries fill them
  int held;
  int full; // some score found no slot
};
__shared__ Shared shared;

// Slots that a compaction empties, and those behind them whose entries stay.
__device__ __forceinline__ Slot* holes() { return reinterpret_cast<Slot*>(shared_storage().ring); }
__device__ __forceinline__ Slot* movers() { return holes() + kMostSlots; }
static_assert(sizeof(SharedStorage::ring) >= 2 * kMostSlots * sizeof(Slot) && kStages >= kVectors,
              "slots lie where vectors are staged");

// The lower half of a composite: positions in the order in which the tie-break prefers them.
__device__ __forceinline__ u32 rank_of(const Push& p, int position) {
  return p.flags & kHighFirst ? 0x7fffffff - position : position;
}

struct List {
  const Push& p;
  Score* values;
  int* places;
  __device__ __forceinline__ List(const Push& p, int row)
      : p(p), values(p.values + static_cast<i64>(row) * p.capacity),
        places(p.places + static_cast<i64>(row) * p.capacity) {}

  static constexpr int kTogether = 24 / kVector; // 16-byte loads of a thread in flight
  static constexpr int kChunk = kTogether * kStep;

  // Calls visit(slot, key, bit, filled) for this thread's share of the first n slots from `first` on, a chunk at most,
  // and for up to a vector's slots behind them, which are not filled: predicates, where branches would be one per
  // entry.
  template <class Visit> __device__ __forceinline__ void chunk(int first, int n, Visit visit) const {
    const int own = first + own_offset();
    Raw raw[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
      raw[u] = *reinterpret_cast<const Raw*>(values + (own + u * kStep < n ? own + u * kStep : 0));
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int left = n - own - u * kStep;
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        visit(own + u * kStep + i, order_key(widen(loaded(raw[u], i))), 1u << (u * kVector + i), i < left);
    }
  }
  template <class Visit> __device__ __forceinline__ void each(int n, Visit visit) const {
#pragma unroll 1
    for (int first = 0; first < n; first += kChunk)
      chunk(first, n, visit);
  }
  // Of equal scores: the lower half of a slot's composite, or where positions do not decide, the slot.
  __device__ __forceinline__ u32 rank(int slot) const {
    return p.flags & kByPosition ? rank_of(p, places[slot]) : slot;
  }
};

__device__ __forceinline__ void reset_counters() {
  shared.least = ~0u;
  shared.greatest = shared.worst = shared.moves = 0;
  shared.full = 0;
}

// The last of the best keys: `wanted` of the `count` keys up to `key` that no better bin has.
struct Last {
  u32 key;
  int wanted;
  int count;
};

// Finds the `wanted` best of all keys, and up to `slack` more, unless more keys are equal; keys.visit(visit) visits
// this thread's, and says whether they count. Call by all threads, behind a barrier after the last call, or after
// extremes are reset; returns behind one, with the histogram clear.
template <class Keys> __device__ __forceinline__ Last last_of_best(int wanted, int slack, const Keys& keys) {
  u32 least = ~0u;
  u32 greatest = 0;
  keys.visit([&](u32 key, bool counts) {
    least = min(least, counts ? key : ~0u);
    greatest = max(greatest, counts ? key : 0);
  });
  fold_extremes(shared, least, greatest);
  __syncthreads(); // the extremes of all threads are joined
  u32 base = shared.least;
  int shift = max(0, 32 - __clz(static_cast<int>(shared.greatest - base)) - kBinBits);
  while (true) {
    const u32 span = kBins - 1 << shift | (1u << shift) - 1;
    keys.visit([&](u32 key, bool counts) {
      if (counts && key - base <= span) atomicAdd(&shared_storage().histogram[(key - base) >> shift], 1u);
    });
    __syncthreads(); // all threads have counted, and read the extremes
    const FoundBin found = find_bin(wanted);
    wanted -= found.before;
    base += static_cast<u32>(found.bin) << shift;
    if (threadIdx.x == 0) {
      shared.least = ~0u;
      shared.greatest = 0;
    }
    if (found.count - wanted <= slack || shift == 0) return {base + min((1u << shift) - 1, ~base), wanted, found.count};
    shift = max(0, shift - kBinBits);
  }
}

struct ListKeys {
  const List& list;
  int n;
  template <class Visit> __device__ __forceinline__ void visit(Visit visit) const {
    list.each(n, [&](int, u32 key, u32, bool filled) { visit(key, filled); });
  }
};

// Ranks of the entries with one key.
struct EqualRanks {
  const List& list;
  int n;
  u32 equal;
  template <class Visit> __device__ __forceinline__ void visit(Visit visit) const {
    list.each(n, [&](int slot, u32 key, u32, bool filled) {
      if (filled && key == equal) visit(list.rank(slot), true);
    });
  }
};

// Leaves the k best of a list of at least k entries, in any order, and returns the row's new cutoff. A full list may
// keep an eighth more, which saves reads of it. Call by all threads behind a barrier after the last change of the list;
// returns behind one. Inlined: registers that a function saves would be spilled.
__device__ __forceinline__ u64 compact(const Push& p, int row, int k) {
  const List list(p, row);
  const int n = min(shared.held, p.capacity);
  const int slack = shared.full ? min(k / 8, kMostSlots - k) : 0;
  const Last last = last_of_best(k, slack, ListKeys{list, n});
  int kept = k + last.count - last.wanted;
  u32 rank = ~0u;
  if (last.count - last.wanted > slack) {
    kept = k;
    __syncthreads(); // the extremes are reset, for all threads
    rank = last_of_best(last.wanted, 0, EqualRanks{list, n, last.key}).key;
  }
  u32 worst = 0;
#pragma unroll 1
  for (int first = 0; first < n; first += List::kChunk) {
    u32 empty = 0;
    u32 moved = 0;
    list.chunk(first, n, [&](int slot, u32 key, u32 bit, bool filled) {
      bool stays = filled && key <= last.key;
      if (unlikely(rank != ~0u) && stays && key == last.key) stays = list.rank(slot) <= rank;
      worst = max(worst, stays ? key : 0);
      moved |= stays && slot >= kept ? bit : 0;
      empty |= filled && !stays && slot < kept ? bit : 0;
    });
    const u32 at = reserve_many(&shared.moves, __popc(empty) | __popc(moved) << 16);
    const auto list_slots = [&](Slot* to, int next, u32 bits) {
      for (; bits && next < kMostSlots; bits &= bits - 1) { // a position that came twice can make more
        const int b = __ffs(static_cast<int>(bits)) - 1;
        to[next++] = static_cast<Slot>(index_of_bit(b, first + own_offset()));
      }
    };
    list_slots(holes(), at & 0xffff, empty);
    list_slots(movers(), at >> 16, moved);
  }
  worst = __reduce_max_sync(kFullWarp, worst);
  if ((threadIdx.x & 31) == 0) atomicMax(&shared.worst, worst);
  __syncthreads(); // every hole and mover is listed, and the worst entry that stays is known, for all threads
  worst = shared.worst;
  const int moves = min(shared.moves & 0xffff, static_cast<u32>(shared.moves) >> 16);
  constexpr int kMoved = 4; // entries of a thread in flight
  for (int first = threadIdx.x; first < moves; first += kMoved * kThreads) {
    Score value[kMoved];
    int place[kMoved];
#pragma unroll
    for (int m = 0; m < kMoved; ++m) {
      const int from = movers()[min(first + m * kThreads, moves - 1)];
      value[m] = list.values[from];
      place[m] = list.places[from];
    }
#pragma unroll
    for (int m = 0; m < kMoved; ++m) {
      if (first + m * kThreads >= moves) break;
      const int to = holes()[first + m * kThreads];
      list.values[to] = value[m];
      list.places[to] = place[m];
    }
  }
  __syncthreads(); // entries are moved, and no thread needs the counters any more
  if (threadIdx.x == 0) {
    reset_counters();
    shared.held = kept;
  }
  __syncthreads(); // the counters are reset, for all threads
  return p.flags & kByPosition ? make_entry(worst, static_cast<int>(rank)) : make_entry(worst, 0);
}
