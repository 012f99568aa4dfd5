// Takes a tile of columns into account: one CTA for each row appends the scores that can be among the row's k best to
// the row's list (ksieve.Running, docs/decisions/0041-keep.md). Where the list is full it is compacted to the k best of
// it, whose worst is the bound of those that follow. Every input is exact, in one launch, and a tile is read once.
#include "common/histogram.cuh"
#include "common/load.cuh"

constexpr int kVectors = 4;      // 16-byte loads of a thread in flight
constexpr int kMostSlots = 4096; // MOST_SLOTS of backends/cuda/keep.py
constexpr u64 kNoBound = ~0ull;  // fewer than k scores are known
using Slot = unsigned short;

// The kernel's only argument; the host packs it (backends/cuda/keep.py).
struct Tile {
  const Score* scores; // (rows, width), `pitch` apart
  const int* starts;   // (rows,) first column of each row's window; null: 0
  const int* ends;     // (rows,) column behind it; null: width
  const int* num_rows; // live rows; null: all
  const int* row_k;    // (rows,) k of each row; null: k
  Score* values;       // (rows, capacity) lists
  int* places;         // (rows, capacity) positions of these scores
  int* held;           // (rows,) entries of each list
  u64* bounds;         // (rows,) composites that are not less decide nothing
  float* cutoff;       // (rows,) the score of the bound, for producers
  i64 pitch;           // elements
  int width;
  int first; // position of the first column
  int k;
  int capacity; // more than k
  int flags;
  int reserved;
};
static_assert(sizeof(Tile) == 11 * 8 + 6 * 4, "the host packs 112 bytes");
constexpr int kByPosition = 1; // of equal scores positions decide
constexpr int kHighFirst = 2;  // the highest ones are selected
constexpr int kRecount = 4;    // the list is the scores of the first k slots that have a position; no bound is known
constexpr int kSettle = 8;     // at most k entries stay, and the k slots that none has get position -1

struct Shared {
  u64 least; // extreme composites of the list
  u64 greatest;
  u64 worst; // of those that stay
  int held;
  int holes;
  int filled;
  int overflow[2]; // number of the last round in which the list was full, of even and odd rounds
};
__shared__ Shared shared;

// Slots below k that a compaction empties.
__device__ __forceinline__ Slot* holes() { return reinterpret_cast<Slot*>(shared_storage().ring); }
static_assert(sizeof(SharedStorage::ring) >= kMostSlots * sizeof(Slot), "holes lie where loads of a scan would");

// A smaller composite is a better score, or an equal one at a position that the tie-break prefers.
__device__ __forceinline__ u64 composite(const Tile& p, Score score, int position) {
  return make_entry(order_key(widen(score)), p.flags & kHighFirst ? 0x7fffffff - position : position);
}

struct List {
  const Tile& p;
  Score* values;
  int* places;
  __device__ __forceinline__ List(const Tile& p, int row)
      : p(p), values(p.values + static_cast<i64>(row) * p.capacity),
        places(p.places + static_cast<i64>(row) * p.capacity) {}

  // Calls visit(slot, composite) for this thread's share of slots [begin, end); several are loaded at a time.
  template <class Visit> __device__ __forceinline__ void each(int begin, int end, Visit visit) const {
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int first = begin + threadIdx.x; first < end; first += kTogether * kThreads) {
      u64 entry[kTogether];
#pragma unroll
      for (int b = 0; b < kTogether; ++b) {
        const int slot = min(first + b * kThreads, end - 1);
        entry[b] = composite(p, values[slot], places[slot]);
      }
#pragma unroll
      for (int b = 0; b < kTogether; ++b)
        if (first + b * kThreads < end) visit(first + b * kThreads, entry[b]);
    }
  }
};

__device__ __forceinline__ u64 least_of_warp(u64 mine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    mine = min(mine, __shfl_xor_sync(kFullWarp, mine, offset));
  return mine;
}
__device__ __forceinline__ bool first_lane() { return (threadIdx.x & 31) == 0; }

__device__ __forceinline__ void reset_extremes() {
  shared.least = kNoBound;
  shared.greatest = shared.worst = 0;
  shared.holes = shared.filled = 0;
}

// Leaves the k best of a list of at least k entries, in any order, and returns the row's new bound. Call by all threads
// behind a barrier after the last change of the list; returns behind one.
__device__ __noinline__ u64 compact(const Tile& p, int row, int k) {
  const List list(p, row);
  const int n = min(shared.held, p.capacity);
  u64 least = kNoBound;
  u64 greatest = 0;
  list.each(0, n, [&](int, u64 entry) {
    least = min(least, entry);
    greatest = max(greatest, entry);
  });
  least = least_of_warp(least);
  greatest = ~least_of_warp(~greatest);
  if (first_lane()) {
    atomicMin(&shared.least, least);
    atomicMax(&shared.greatest, greatest);
  }
  __syncthreads(); // the extremes of all threads are joined, and no thread reads `held` any more
  // Digits over the composites that there are: the last of the k best ends the digit's bin that has just as many.
  u64 base = shared.least;
  const u64 span = shared.greatest - base;
  int shift = max(0, 64 - __clzll(static_cast<i64>(span)) - kBinBits);
  int wanted = k;
  while (true) {
    list.each(0, n, [&](int, u64 entry) {
      const u64 bin = (entry - base) >> shift;
      if (entry >= base && bin < kBins) atomicAdd(&shared_storage().histogram[bin], 1u);
    });
    __syncthreads(); // all threads have counted
    const Boundary found = find_boundary(wanted);
    wanted -= found.before;
    base += static_cast<u64>(found.bin) << shift;
    if (found.count == wanted || shift == 0) break;
    shift = max(0, shift - kBinBits);
  }
  const u64 last = base + min((1ull << shift) - 1, ~base);
  u64 worst = 0;
  list.each(0, n, [&](int slot, u64 entry) {
    if (entry <= last) {
      worst = max(worst, entry);
    } else if (slot < k) {
      holes()[atomicAdd(&shared.holes, 1)] = static_cast<Slot>(slot);
    }
  });
  worst = ~least_of_warp(~worst);
  if (first_lane()) atomicMax(&shared.worst, worst);
  __syncthreads(); // every hole is listed, and the worst entry that stays is known, for all threads
  const u64 bound = p.flags & kByPosition ? shared.worst : shared.worst >> 32 << 32;
  list.each(k, n, [&](int slot, u64 entry) {
    if (entry > last) return;
    const int hole = atomicAdd(&shared.filled, 1);
    if (hole >= shared.holes) return; // a position came twice
    const int to = holes()[hole];
    list.values[to] = list.values[slot];
    list.places[to] = list.places[slot];
  });
  __syncthreads(); // entries are moved, and no thread needs the counters any more
  if (threadIdx.x == 0) {
    reset_extremes();
    shared.held = k;
  }
  __syncthreads(); // the counters are reset, for all threads
  return bound;
}

// Vectors of a thread, and one bit for each of their scores.
struct Scores {
  Raw raw[kVectors];
  u32 valid; // scores inside the window
};
static_assert(kVectors * kVector <= 32, "a bit for each score");

// Loads the vectors whose first scores are at `first` and each kStep behind it. A vector that is not wholly inside
// [begin, end) is loaded score by score.
__device__ __forceinline__ Scores load_vectors(const Score* scores, int first, int begin, int end) {
  Scores found = {};
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const int at = first + u * kStep;
    if (at >= begin && at <= end - kVector) {
      found.raw[u] = load_once(scores + at);
      found.valid |= ((1u << kVector) - 1) << (u * kVector);
    } else if (at < end) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (at + i < begin || at + i >= end) continue;
        found.valid |= 1u << (u * kVector + i);
        found.raw[u].word[kHalfScores ? i / 2 : i] |= bits_of(scores[at + i]) << (kHalfScores ? i % 2 * 16 : 0);
      }
    }
  }
  return found;
}

// Calls visit(score, position, bit) for each of a thread's scores in `which`.
template <class Visit>
__device__ __forceinline__ void each_score(const Raw (&raw)[kVectors], int position, u32 which, Visit visit) {
#pragma unroll
  for (int u = 0; u < kVectors; ++u)
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const u32 bit = 1u << (u * kVector + i);
      if (which & bit) visit(loaded(raw[u], i), position + u * kStep + i, bit);
    }
}

// Appends the scores in `pending` that are better than the bound, and returns those for which there was no slot. Call
// by whole warps.
__device__ __forceinline__ u32 append(const List& list, Raw (&raw)[kVectors], int position, u32 pending, u64 bound) {
#pragma unroll
  for (int u = 0; u < kVectors; ++u)
    KSIEVE_AWAIT_WORDS(raw[u]); // ranked scores are computed again, and not kept
  u32 wanted = 0;
  each_score(raw, position, pending, [&](Score score, int at, u32 bit) {
    if (composite(list.p, score, at) < bound) wanted |= bit;
  });
  if (!__any_sync(kFullWarp, wanted != 0)) return 0;
  const u32 own = __popc(wanted);
  const u32 up_to = lanes_up_to(own);
  int slot = 0;
  if ((threadIdx.x & 31) == 31) slot = atomicAdd(&shared.held, static_cast<int>(up_to));
  slot = __shfl_sync(kFullWarp, slot, 31) + static_cast<int>(up_to - own);
  each_score(raw, position, wanted, [&](Score score, int at, u32 bit) {
    if (slot < list.p.capacity) {
      list.values[slot] = score;
      list.places[slot] = at;
      wanted &= ~bit;
    }
    ++slot;
  });
  return wanted;
}

// Returns the float that a ranked score which is better than the bound reaches; NaN is compared apart.
__device__ __forceinline__ float least_score(u64 bound) { return hot_cutoff(entry_key(bound - 1)); }

// Returns the cutoff of a producer: NaN bounds nothing.
__device__ __forceinline__ float cutoff_of(u64 bound, int k) {
  const float everything = __uint_as_float(kRanking == Ranking::kSmallest ? 0x7f800000u : 0xff800000u);
  if (k == 0) return -everything;
  const u32 key = entry_key(bound);
  const float score = key == kNanKey ? everything : score_of_ranked(score_of_key(key));
  return score != score ? everything : score;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_tiles_keep(const __grid_constant__ Tile p) {
  const int row = blockIdx.x;
  if (p.num_rows && row >= *p.num_rows) return;
  const int k = p.row_k ? min(max(p.row_k[row], 0), p.k) : p.k;
  const List list(p, row);
  const Score* scores = p.scores + row * p.pitch;
  const int begin = p.starts ? min(max(p.starts[row], 0), p.width) : 0;
  const int end = k == 0 ? 0 : p.ends ? min(p.ends[row], p.width) : p.width;
  // Scores that a thread's vectors lie in front of the window, so that they are aligned.
  const int misaligned = static_cast<int>(reinterpret_cast<u64>(scores + begin) / sizeof(Score) % kVector);
  int at = begin - misaligned + own_offset();
  Scores found = load_vectors(scores, at, begin, end);
  u64 bound = p.flags & kRecount ? kNoBound : p.bounds[row];
  clear_counts();
  if (threadIdx.x == 0) {
    reset_extremes();
    shared.held = p.flags & kRecount ? 0 : p.held[row];
    shared.overflow[0] = shared.overflow[1] = 0;
  }
  __syncthreads(); // counters and the histogram are set, for all threads
  if (p.flags & kRecount) {
    int own = 0;
    for (int i = threadIdx.x; i < k; i += kThreads)
      own += list.places[i] >= 0;
    if (own) atomicAdd(&shared.held, own);
  }
  int round = 0;
  while (at - own_offset() < end) { // the same number of rounds for every thread
    const float least = least_score(bound);
    u32 pending = 0;
    each_score(found.raw, at, ~0u, [&](Score score, int, u32 bit) { pending |= widen(score) < least ? 0 : bit; });
    pending &= found.valid;
    while (true) {
      ++round;
      if (__any_sync(kFullWarp, pending != 0)) pending = append(list, found.raw, p.first + at, pending, bound);
      if (pending) atomicMax(&shared.overflow[round & 1], round);
      __syncthreads(); // entries are appended, and it is known whether some found no slot, for all threads
      if (shared.overflow[round & 1] != round) break;
      bound = compact(p, row, k);
      KSIEVE_OPAQUE(at); // loaded again, and not kept in registers meanwhile
      found = load_vectors(scores, at, begin, end);
    }
    at += kVectors * kStep;
    found = load_vectors(scores, at, begin, end);
  }
  __syncthreads(); // entries are counted, for all threads
  const bool over = bound == kNoBound || p.flags & kSettle && shared.held > k;
  if (over && k > 0 && shared.held >= k) bound = compact(p, row, k);
  if (p.flags & kSettle)
    for (int i = shared.held + threadIdx.x; i < p.k; i += kThreads)
      list.places[i] = -1;
  if (threadIdx.x != 0) return;
  p.held[row] = shared.held;
  p.bounds[row] = bound;
  p.cutoff[row] = cutoff_of(bound, k);
}
