// A push takes some columns into account: one CTA for each row appends the scores that can be among the row's k best to
// the row's list (ksieve.Running, docs/decisions/0041-keep.md). Where the list is full, or has k scores and no cutoff,
// it is compacted to the k best of it, whose worst is the cutoff of those that follow. Every input is exact, in one
// launch. Columns are read once, or twice where fewer than k scores reach the first cutoff, which is guessed.
#include "running/list.cuh"

constexpr int kDrawn = 8 / kVector; // 16-byte loads of a thread in a sample
constexpr u64 kNoCutoff = ~0ull;    // fewer than k scores are known

// Vectors of a thread, and a bit for each of their scores.
struct Scores {
  Raw raw[kVectors];
  u32 valid; // scores inside the window
};
static_assert(kVectors * kVector <= 32, "a bit for each score");

// Loads the vectors whose first scores are at `first` and each `stride` behind it. A vector that is not wholly inside
// [begin, end) is loaded score by score.
template <int kCount = kVectors>
__device__ __forceinline__ Scores load_vectors(const Score* scores, int first, int begin, int end, int stride = kStep) {
  Scores found = {};
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    const int at = first + u * stride;
    if (at >= begin && at <= end - kVector) {
      found.raw[u] = load_once(scores + at);
      found.valid |= ((1u << kVector) - 1) << (u * kVector);
    } else if (at < end) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (at + i < begin || at + i >= end) continue;
        found.valid |= 1u << (u * kVector + i);
        found.raw[u].word[i / kInWord] |= bits_of(scores[at + i]) << i % kInWord * Stored::kBits;
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

// Appends the scores in `pending` that are better than the cutoff, which they reach, and returns those for which there
// was no slot. Most lanes have few: these are taken from shared memory, where any of them has an address. Call by whole
// warps.
__device__ __forceinline__ u32 append(const List& list, const Raw (&raw)[kVectors], int position, u32 pending,
                                      u64 cutoff) {
  SharedStorage& s = shared_storage();
#pragma unroll
  for (int u = 0; u < kVectors; ++u)
    s.ring[u][threadIdx.x] = raw[u];
  const auto score_at = [&](int b) {
    const u32 word = s.ring[b / kVector][threadIdx.x].word[b % kVector / kInWord];
    return score_of_bits(word >> b % kInWord * Stored::kBits);
  };
  const auto place_of = [&](int b) { return index_of_bit(b, position); };
  if (static_cast<u32>(cutoff) + 1 > 1) { // of scores that equal the cutoff's, positions decide
    for (u32 rest = pending; rest; rest &= rest - 1) {
      const int b = __ffs(static_cast<int>(rest)) - 1;
      const u32 rank = rank_of(list.p, place_of(b));
      if (make_entry(order_key(widen(score_at(b))), static_cast<int>(rank)) >= cutoff) pending ^= 1u << b;
    }
    if (!__any_sync(kFullWarp, pending != 0)) return 0;
  }
  int slot = reserve_many(&shared.held, __popc(pending));
  for (; pending && slot < list.p.capacity; pending &= pending - 1) {
    const int b = __ffs(static_cast<int>(pending)) - 1;
    list.values[slot] = score_at(b);
    list.places[slot++] = place_of(b);
  }
  return pending;
}

// Returns the float that a ranked score which is better than the cutoff reaches; NaN is compared apart.
__device__ __forceinline__ float least_score(u64 cutoff) { return hot_cutoff(entry_key(cutoff - 1)); }

// Returns the score of a cutoff, for a producer: one that every score reaches in place of NaN.
__device__ __forceinline__ float score_of_cutoff(u64 cutoff, int k) {
  const float everything = __uint_as_float(kRanking == Ranking::kSmallest ? 0x7f800000u : 0xff800000u);
  if (k == 0) return -everything;
  const u32 key = entry_key(cutoff);
  const float score = key == kNanKey ? everything : score_of_ranked(score_of_key(key));
  return score != score ? everything : score;
}

// The window of a row within the columns of a push.
struct Window {
  const Score* scores; // of the first column
  int begin;
  int end;
  int first; // of thread 0's first vector, which is aligned
};

__device__ __forceinline__ int column_of(const Push& p, const void* ends, int row, bool wide) {
  const i64 position = wide ? static_cast<const i64*>(ends)[row] : static_cast<const int*>(ends)[row];
  return static_cast<int>(min(max(max(position, 0ll) - p.first, 0ll), static_cast<i64>(p.width)));
}

__device__ __forceinline__ Window window_of(const Push& p, int row, int k) {
  const Score* scores = p.scores + row * p.pitch;
  const int begin = p.starts ? column_of(p, p.starts, row, p.flags & kLongStarts) : 0;
  const int end = k == 0 ? 0 : p.ends ? column_of(p, p.ends, row, p.flags & kLongEnds) : p.width;
  return {scores, begin, end,
          begin - static_cast<int>(reinterpret_cast<u64>(scores + begin) / sizeof(Score) % kVector)};
}

struct Sampled {
  const Scores& scores;
  template <class Visit> __device__ __forceinline__ void visit(Visit visit) const {
    each_score(scores.raw, 0, scores.valid, [&](Score score, int, u32) { visit(order_key(widen(score)), true); });
  }
};

// Returns a cutoff that half as many scores again as k are better than, or somewhat more, if a sample is like the
// window. Call by all threads, behind a barrier after counters are reset; returns behind one.
__device__ __forceinline__ u64 guess(const Push& p, Window window, int k) {
  const int n = window.end - window.begin;
  constexpr int kGroup = 8; // threads that read 128 bytes together; groups are spread over the window
  constexpr int kGroups = kThreads / kGroup;
  const int spacing = max(kGroup, n / (kGroups * kDrawn * kVector)) * kVector;
  const int thread = static_cast<int>(threadIdx.x);
  const int first = window.first + thread / kGroup * spacing + thread % kGroup * kVector;
  const Scores sample = load_vectors<kDrawn>(window.scores, first, window.begin, window.end, kGroups * spacing);
  const int wanted = max(1, (k + (p.capacity - k) / 4) * min(n, kDrawn * kStep) / n);
  return make_entry(last_of_best(wanted, wanted / 8, Sampled{sample}).key, -1);
}

// Appends the window's scores from `at` on that are better than the cutoff. Warps read on for themselves until one
// finds the list full; then `at` and `open` say what it has left. Call by whole warps.
struct Scan {
  int at;
  u32 open; // scores of the vectors at `at` that no cutoff has excluded yet
};
__device__ __forceinline__ Scan take(const List& list, const Window& window, Scan from, u64 cutoff) {
  const float least = least_score(cutoff);
  const bool all = entry_key(cutoff - 1) == kNanKey; // NaN, which reaches no number, too
  while (__any_sync(kFullWarp, from.at < window.end)) {
    KSIEVE_OPAQUE(from.at); // otherwise addresses are computed outside the loop, and spilled
    const Scores found = load_vectors(window.scores, from.at, window.begin, window.end);
    u32 pending = 0;
    each_score(found.raw, from.at, ~0u, [&](Score score, int, u32 bit) { pending |= widen(score) >= least ? bit : 0; });
    pending = (all ? ~0u : pending) & found.valid & from.open;
    if (__any_sync(kFullWarp, pending != 0)) {
      from.open = append(list, found.raw, list.p.first + from.at, pending, cutoff);
      if (__any_sync(kFullWarp, from.open != 0)) {
        shared.full = 1;
        return from;
      }
    }
    from.open = ~0u;
    from.at += kVectors * kStep;
  }
  return from;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_running_keep(const __grid_constant__ Push p) {
  const int row = blockIdx.x;
  if (p.num_rows && row >= *p.num_rows) return;
  clear_counts();
  const int k = p.row_k ? min(max(p.row_k[row], 0), p.k) : p.k;
  const List list(p, row);
  const Window window = window_of(p, row, k);
  const bool recount = p.flags & kRecount;
  u64 cutoff = recount ? kNoCutoff : p.cutoffs[row];
  if (threadIdx.x == 0) {
    reset_counters();
    shared.held = recount ? 0 : p.held[row];
  }
  __syncthreads(); // counters are set, for all threads
  if (recount) {
    int own = 0;
    for (int i = threadIdx.x; i < k; i += kThreads)
      own += list.places[i] >= 0;
    if (own) atomicAdd(&shared.held, own);
  }
  // A row's first scores would all be appended.
  bool guessed = cutoff == kNoCutoff && window.end - window.begin > p.capacity && p.held[row] == 0;
  if (guessed) cutoff = guess(p, window, k);
  const Scan begin = {window.first + own_offset(), ~0u};
  Scan left = begin;
  while (true) {
    left = take(list, window, left, cutoff);
    __syncthreads(); // entries are appended, and it is known whether some found no slot, for all threads
    const int held = shared.held;
    const bool full = shared.full;
    if (!full && guessed && held < k) { // what the guess left out may be selected
      guessed = false;
      cutoff = kNoCutoff;
      left = begin;
      __syncthreads(); // no thread needs the number of entries any more
      if (threadIdx.x == 0) shared.held = 0;
      __syncthreads(); // there is none, for all threads
      continue;
    }
    const bool over = full || cutoff == kNoCutoff || (p.flags & kSettle && held > k);
    if (over && held >= k && k > 0) cutoff = compact(p, row, k);
    if (!full) break;
  }
  if (p.flags & kSettle)
    for (int i = shared.held + threadIdx.x; i < p.k; i += kThreads)
      list.places[i] = -1;
  if (threadIdx.x != 0) return;
  p.held[row] = shared.held;
  p.cutoffs[row] = cutoff;
  p.cutoff_scores[row] = score_of_cutoff(cutoff, k);
}
